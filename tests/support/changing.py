"""Changes of the members of a simulated cluster: orders, new machines, and what they lead to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import trio

from quorate.node.protocol.membership import MemberRole

if TYPE_CHECKING:
    from quorate.node.protocol.membership import Membership, Seat
    from quorate.simulation import Ledger, World

CHANGE_SECONDS = 30.0
"""Virtual seconds in which a change is over."""


async def order(world: World[Ledger], words: str, *, at: int | None = None) -> dict[str, Any]:
    """Ask for a change; return the answer.

    Args:
        world: the cluster.
        words: behind ``member``.
        at: through which member; the leader unless given.
    """
    where = await world.leader() if at is None else at
    answer: dict[str, Any] = json.loads(await world.hosts[where].running.control(f"member {words}"))
    return answer


async def add(world: World[Ledger], words: str = "", *, start: bool = True, host: str = "") -> int:
    """Give a member a seat, and start it on a new machine; return its id."""
    member = world.membership.next_id
    name = host or f"h{member}"
    answer = await order(world, f"add host={name} member_port=7000 client_port=6000 {words}")
    assert answer["member"] == member
    await world.until(lambda: world.membership.seat(member) is not None)
    if start:
        world.create(member)
        await world.start(member)
    return member


async def grow(world: World[Ledger], count: int) -> list[int]:
    """Add voters, and wait until they vote."""
    members = [await add(world) for _ in range(count)]
    await world.until(lambda: {*members} <= {*voters(world)}, within=CHANGE_SECONDS)
    await complete(world)
    return members


def voters(world: World[Ledger]) -> list[int]:
    """Return the voters, as the newest applied configuration has them."""
    return [voter.member_id for voter in world.membership.voters]


async def complete(world: World[Ledger]) -> Membership:
    """Wait until no change is under way, and all members with a seat know it."""

    def done() -> bool:
        now = world.membership
        running = [host.member for i, host in world.hosts.items() if host.member and now.seat(i)]
        return not now.joint and all(member.configuration == now for member in running)

    await world.until(done, within=CHANGE_SECONDS)
    return world.membership


async def gone(world: World[Ledger], *members: int) -> None:
    """Wait until members have ended because they were removed."""
    await world.until(lambda: all(world.hosts[i].retired for i in members), within=CHANGE_SECONDS)


async def described(world: World[Ledger], member: int) -> dict[str, Any]:
    """Return what ``member list`` says of a member."""
    listed = await order(world, "list")
    (found,) = [each for each in listed["members"] if each["member_id"] == member]
    return dict(found)


async def waits(world: World[Ledger], member: int, word: str) -> None:
    """Wait until ``member list`` gives a reason why a member does not vote yet."""
    found = ""
    for _ in range(200):
        found = (await described(world, member))["waits"]
        if found == word:
            return
        await trio.sleep(0.05)
    raise AssertionError(f"member {member} waits for {found!r}, expected {word!r}")


def seat(world: World[Ledger], member: int) -> Seat:
    """Return a member's seat, as the newest applied configuration has it."""
    found = world.membership.seat(member)
    assert found is not None, f"member {member} has no seat in {world.membership}"
    return found


def is_standby(world: World[Ledger], member: int) -> bool:
    """Say whether a member has a seat, and no vote."""
    return seat(world, member).role is MemberRole.STANDBY and member not in voters(world)
