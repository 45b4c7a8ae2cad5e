"""What happens to the members of quorate. In all but one of it, PostgreSQL notices nothing."""

import signal
from collections.abc import Sequence
from typing import Final

import trio

from ...local.words import span
from .nodes import SETTINGS
from .world import World

__all__ = [
    "kill_the_leader",
    "lose_the_quorum",
    "lose_the_quorum_in_failsafe_mode",
    "restart_all_members",
    "stop_the_leader_for_a_while",
]

LOOK_ON_SECONDS: Final = 3.0 * SETTINGS["loop_wait"]
"""Some rounds of Patroni, each with a renewal of its lease."""
STOPPED_SECONDS: Final = 12.0
"""Longer than Patroni tries one request again, and than a member waits for its leader."""


async def kill_the_leader(world: World) -> None:
    """The members elect another leader, and the primary stays."""
    held = await world.hold()
    leader = await world.leader()
    world.say(f"\nkill -9 {leader.pid}: member {leader.member_id} of quorate, its leader.")
    await leader.kill()
    await trio.sleep(LOOK_ON_SECONDS)
    world.say(f"Starting member {leader.member_id} again.")
    await leader.start()
    await world.agreement()
    await trio.sleep(LOOK_ON_SECONDS)
    await world.check_held("kill -9 of quorate's leader", held)


async def stop_the_leader_for_a_while(world: World) -> None:
    """A leader that hangs is deposed, and what it does when it wakes up changes nothing."""
    held = await world.hold()
    leader = await world.leader()
    world.say(f"\nSIGSTOP of member {leader.member_id} of quorate, its leader.")
    leader.send_signal(signal.SIGSTOP)
    await trio.sleep(STOPPED_SECONDS)
    world.say(f"SIGCONT of member {leader.member_id}, {STOPPED_SECONDS:g} s later.")
    leader.send_signal(signal.SIGCONT)
    await world.agreement()
    await trio.sleep(LOOK_ON_SECONDS)
    await world.check_held("SIGSTOP of quorate's leader", held)


async def restart_all_members(world: World) -> None:
    """Every member stops in order and starts again, one after the other."""
    held = await world.hold()
    world.say("\nRestarting all members of quorate, one after the other.")
    for member in world.cluster.members:
        await member.stop()
        await member.start()
        await world.agreement()
        await trio.sleep(SETTINGS["loop_wait"])
    await world.check_held("rolling restart of quorate", held)


async def lose_the_quorum(world: World) -> None:
    """Without a quorum the primary must go: nobody knows whether another one has the lease."""
    node, _ = await world.primary()
    lost = await _kill_two(world)
    took = await world.wait(lambda states: not any(each.primary for each in states.values()))
    limit = SETTINGS["ttl"] + SETTINGS["retry_timeout"]
    world.check(
        "loss of quorate's quorum",
        right=took is not None and took <= limit,
        words=f"{node.name} stopped taking writes after {took and span(took)}",
    )
    await _start_again(world, lost)
    began = trio.current_time()
    await world.agreement()
    after, _ = await world.primary()
    words = f"{after.name} was primary after {span(trio.current_time() - began)}"
    world.check("return of the quorum", words, right=await world.whole() is not None)


async def lose_the_quorum_in_failsafe_mode(world: World) -> None:
    """In Patroni's failsafe mode the primary stays while all nodes answer it."""
    world.say("\nThe same in Patroni's failsafe mode: the primary stays while all nodes answer it.")
    await world.control("edit-config", "--force", "--set", "failsafe_mode=true")
    await trio.sleep(LOOK_ON_SECONDS)
    held = await world.hold()
    lost = await _kill_two(world)
    await trio.sleep(SETTINGS["ttl"] + SETTINGS["retry_timeout"])
    await _start_again(world, lost)
    await world.agreement()
    await trio.sleep(LOOK_ON_SECONDS)
    await world.check_held("loss of the quorum in failsafe mode", held)


async def _kill_two(world: World) -> list[int]:
    """Kill the leader and one more member; return the numbers of both."""
    leader = await world.leader()
    other = (leader.member_id + 1) % len(world.cluster.members)
    lost = [leader.member_id, other]
    world.say(f"\nkill -9 of members {lost[0]} and {lost[1]} of quorate: its quorum is lost.")
    for member_id in lost:
        await world.cluster.members[member_id].kill()
    return lost


async def _start_again(world: World, lost: Sequence[int]) -> None:
    world.say(f"Starting members {lost[0]} and {lost[1]} again.")
    for member_id in lost:
        await world.cluster.members[member_id].start()
