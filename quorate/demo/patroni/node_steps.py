"""What happens to the nodes: what operators do with Patroni, and a primary that dies."""

from typing import Final

import trio

from ...local.words import span
from .nodes import SETTINGS, Node
from .world import World

__all__ = [
    "change_the_configuration",
    "check_all_rows",
    "come_up",
    "kill_the_primary",
    "pause_and_resume",
    "reinitialize_a_replica",
    "switch_over",
]

_WORK_MEM: Final = "5MB"
_PAUSED: Final = "Maintenance mode: on"
_TRIES: Final = 100
_LOOK_SECONDS: Final = 0.2


async def come_up(world: World) -> None:
    """Patroni founds its cluster in an empty store, and clones the first server twice."""
    world.say("Starting three nodes: Patroni, and PostgreSQL under it.")
    began = trio.current_time()
    for node in world.nodes:
        await node.start()
    took = await world.whole()
    if took is None:
        for node in world.nodes:
            world.say(f"{node.log}:\n{node.log.read_text(errors='replace')[-2000:]}")
        raise TimeoutError("the nodes do not come up; see their logs above")
    primary, _ = await world.primary()
    created = await world.rows.create()
    world.check("bootstrap", f"{primary.name} is primary, two are replicas", right=created)
    world.say(f"All of it took {span(trio.current_time() - began)}.")
    world.say("From now on a client writes a row every half second, to whichever is primary.")


async def change_the_configuration(world: World) -> None:
    """Every node takes over a changed parameter."""
    world.say("")
    shown = await world.control("list")
    names = [node.name for node in world.nodes]
    right = all(name in shown for name in names)
    world.check("patronictl list", "shows all nodes", right=right)
    change = f"postgresql.parameters.work_mem={_WORK_MEM}"
    await world.control("edit-config", "--force", "--set", change)
    shown = await world.control("show-config")
    world.check("patronictl show-config", "shows the change", right=_WORK_MEM in shown)
    took = [await _takes_over(world, node) for node in world.nodes]
    world.check("patronictl edit-config", "every PostgreSQL has the new value", right=all(took))


async def _takes_over(world: World, node: Node) -> bool:
    for _ in range(_TRIES):
        if await world.ask(node, "SHOW work_mem") == _WORK_MEM:
            return True
        await trio.sleep(_LOOK_SECONDS)
    return False


async def switch_over(world: World) -> None:
    """The operator makes another node the primary."""
    await world.safe_to_leave()
    old, state = await world.primary()
    world.say("")
    began = trio.current_time()
    await world.control("switchover", "--force")
    took = await world.wait(
        lambda states: any(each.primary and node is not old for node, each in states.items())
    )
    whole = await world.whole()
    new, after = await world.primary()
    world.check(
        "switchover",
        right=None not in (took, whole) and after.timeline > state.timeline,
        words=f"{new.name} follows {old.name} as primary; longest time without a row "
        f"{span(world.rows.longest_gap(began))}",
    )


async def kill_the_primary(world: World) -> None:
    """A node whose machine dies is replaced after its lease, and comes back as a replica."""
    await world.safe_to_leave()
    old, _ = await world.primary()
    world.say(f"\nkill -9 of {old.name}, the primary: of its Patroni and of its PostgreSQL.")
    began = trio.current_time()
    await old.crash()
    took = await world.wait(lambda states: any(each.primary for each in states.values()))
    limit = SETTINGS["ttl"] + 2 * SETTINGS["loop_wait"] + SETTINGS["retry_timeout"]
    new, _ = await world.primary()
    world.check(
        "kill -9 of the primary",
        right=took is not None and took <= limit,
        words=f"{new.name} was primary after {span(trio.current_time() - began)} "
        f"(ttl: {SETTINGS['ttl']} s)",
    )
    world.say(f"Starting {old.name} again.")
    await old.start()
    back = await world.whole()
    words = f"a replica after {back and span(back)}"
    world.check("return of the old primary", words, right=back is not None)


async def pause_and_resume(world: World) -> None:
    """In maintenance mode Patroni leaves PostgreSQL alone."""
    world.say("")
    await world.control("pause", "--wait")
    shown = await world.control("list")
    world.check("patronictl pause", "maintenance mode is on", right=_PAUSED in shown)
    await world.control("resume", "--wait")
    shown = await world.control("list")
    world.check("patronictl resume", "maintenance mode is off", right=_PAUSED not in shown)


async def reinitialize_a_replica(world: World) -> None:
    """A replica throws its data away and clones the primary again."""
    await world.whole()
    primary, _ = await world.primary()
    states = await world.states()
    replica = next(node for node in states if node is not primary)
    world.say("")
    await world.control("reinit", replica.name, "--force")
    again = await world.wait(
        lambda now: (
            replica in now
            and now[replica].running
            and now[replica].started != states[replica].started
        )
    )
    words = f"{replica.name} was a replica after {again and span(again)}"
    world.check("patronictl reinit", words, right=again is not None)


async def check_all_rows(world: World) -> None:
    """Every row that was acknowledged is on every server."""
    world.say("")
    await world.control("history")
    await world.control("list")
    await world.whole()
    for node in world.nodes:
        missing = await _missing(world, node)
        words = f"{missing} of {world.rows.count} acknowledged rows are missing"
        world.check(f"rows on {node.name}", words, right=missing == 0)


async def _missing(world: World, node: Node) -> int | None:
    """Return how many rows a node has not, after it had time to replay them."""
    missing: int | None = None
    for _ in range(_TRIES):
        missing = await world.rows.missing(node)
        if missing == 0:
            break
        await trio.sleep(_LOOK_SECONDS)
    return missing
