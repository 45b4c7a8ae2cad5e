"""What operators do with patronictl that leaves the data as it is."""

import trio

from ...local.words import span
from .world import World

__all__ = ["fail_over", "look_around", "reload_and_restart"]


async def look_around(world: World) -> None:
    """The verbs that only read show the cluster as it is."""
    world.say("")
    primary, _ = await world.primary()
    shown = await world.control("topology")
    right = all(node.name in shown for node in world.nodes)
    world.check("patronictl topology", "shows all nodes", right=right)
    shown = await world.control("dsn")
    right = f"port={primary.port}" in shown
    world.check("patronictl dsn", "names the primary", right=right)
    words = ("-U", "postgres", "-d", "postgres", "-c", "SELECT 40 + 2")
    shown = await world.control("query", "-m", primary.name, *words)
    world.check("patronictl query", "asks the primary", right="42" in shown)


async def reload_and_restart(world: World) -> None:
    """Nodes read their files again, and a replica is restarted; the primary stays."""
    world.say("")
    held = await world.hold()
    await world.control("reload", "--force")
    before = await world.states()
    replica = next(node for node in before if node is not held.node)
    await world.control("restart", replica.name, "--force")
    whole = await world.whole()
    after = (await world.states()).get(replica)
    right = whole is not None and after is not None and after.started != before[replica].started
    world.check("patronictl restart", f"{replica.name} was restarted", right=right)
    await world.check_held("patronictl reload and restart", held)


async def fail_over(world: World) -> None:
    """The operator names the next primary."""
    heir = await world.safe_to_leave()
    world.say("")
    began = trio.current_time()
    await world.control("failover", "--candidate", heir.name, "--force")
    took = await world.wait(lambda states: heir in states and states[heir].primary)
    whole = await world.whole()
    world.check(
        "patronictl failover",
        right=None not in (took, whole),
        words=f"{heir.name} is primary; longest time without a row "
        f"{span(world.rows.longest_gap(began))}",
    )
