"""What operators do to the members of a simulated cluster, for tests and schedules."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from quorate.simulation import Observer
from quorate.simulation.ledger import open_ledgers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from quorate.node.protocol.membership import Membership
    from quorate.simulation import Ledger, World

WITHIN = 30.0
"""Virtual seconds in which a change without faults is over, many times over."""


@asynccontextmanager
async def cluster(
    directory: Path, members: int = 3, *, standbys: int = 0
) -> AsyncGenerator[World[Ledger]]:
    """Open a cluster that has started, under observation."""
    ids = [*range(members + standbys)]
    observer = Observer(ids, standbys=ids[members:])
    async with open_ledgers(directory, len(ids), standbys=standbys, observer=observer) as world:
        await world.start()
        await world.settled()
        yield world


async def order(world: World[Ledger], words: str, *, at: int | None = None) -> dict[str, Any]:
    """Give an order about members to a member, by default the leader; return its answer."""
    to = await world.leader() if at is None else at
    answer = await world.hosts[to].running.control(f"member {words}")
    found: dict[str, Any] = json.loads(answer)
    return found


async def add(world: World[Ledger], words: str = "", *, start: bool = True) -> int:
    """Add a member, which gets the next id, and start it on its own machine; return the id."""
    i = world.membership.next_id
    answer = await order(world, f"add host=h{i} member_port=7000 client_port=6000 {words}")
    assert answer["member"] == i
    await world.until(lambda: world.membership.seat(i) is not None, within=WITHIN)
    world.create(i)
    if start:
        await world.start(i)
    return i


def votes(membership: Membership) -> list[int]:
    """Give the members with a vote, before and after the change that is under way."""
    return sorted({voter.member_id for voter in (*membership.voters, *membership.outgoing)})


async def decided_by(world: World[Ledger], *members: int, within: float = WITHIN) -> None:
    """Wait until a configuration is applied in which just these members have a vote."""

    def reached() -> bool:
        now = world.membership
        return not now.joint and votes(now) == sorted(members)

    await world.until(reached, within=within)


async def removed(world: World[Ledger], *members: int, within: float = WITHIN) -> None:
    """Wait until members have found out that they were removed."""
    await world.until(lambda: all(world.hosts[i].retired for i in members), within=within)


async def joint(world: World[Ledger], member: int, *, within: float = WITHIN) -> None:
    """Wait until a joint configuration is in force at a member."""
    host = world.hosts[member]
    with trio.fail_after(within):
        while not host.running.state.membership.joint:  # noqa: ASYNC110 - each step is looked at
            await trio.sleep(0.0005)
