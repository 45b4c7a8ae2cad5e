"""A commit that a client of a follower may wait for there is announced at once, and no other is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node.leader.commit import PAUSE_SECONDS
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import CommitPosition, Message

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

LEASED = attrs.evolve(TIMEOUTS, leader_lease=TIMEOUTS.leader_heartbeat_timeout)
STEP = 0.0001


async def start(world: World[Ledger]) -> tuple[int, int]:
    """Bring a cluster up; return its leader, and a follower that has applied all."""
    for host in world.hosts.values():
        host.config = attrs.evolve(host.config, timeouts=LEASED)
    await world.start()
    leader = await world.settled()
    assert await world.command(leader, b"x") == b"1"
    await trio.sleep(2 * LEASED.leader_heartbeat_interval)
    return leader, world.others(leader)[0]


async def applied_after(world: World[Ledger], member: int, leader: int) -> float:
    """Wait until a member has applied what the leader has; return the seconds until then."""
    began, end = trio.current_time(), world.hosts[leader].running.status().applied_position
    while world.hosts[member].running.status().applied_position < end:  # noqa: ASYNC110 - virtual
        await trio.sleep(STEP)
    return trio.current_time() - began


def announcements(
    world: World[Ledger], leader: int, monkeypatch: pytest.MonkeyPatch
) -> list[CommitPosition]:
    """Return the announcements of a leader that are no heartbeats, as they come."""
    links = world.hosts[leader].running.links
    sent, broadcast = list[CommitPosition](), links.broadcast

    def watched(message: Message) -> None:
        if isinstance(message, CommitPosition) and message.timestamp < 0:
            sent.append(message)
        broadcast(message)

    monkeypatch.setattr(links, "broadcast", watched)
    return sent


async def test_a_follower_has_applied_its_clients_write_when_it_gets_the_reply(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader, follower = await start(world)
        assert await world.command(follower, b"y") == b"2"
        assert await applied_after(world, follower, leader) <= STEP


async def test_nor_does_a_read_there_wait_for_the_last_write_of_the_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader, follower = await start(world)
        assert await world.command(leader, b"y") == b"2"
        assert await world.hosts[follower].running.query(b"") == b"2"
        assert await applied_after(world, follower, leader) <= STEP


async def test_a_write_at_the_leader_costs_no_announcement_if_a_batch_follows(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader, follower = await start(world)
        sent = announcements(world, leader, monkeypatch)
        for _ in range(5):
            await world.command(leader, b"y")
        assert not sent
        assert await applied_after(world, follower, leader) > PAUSE_SECONDS
        assert len(sent) == 1
        await world.command(follower, b"y")
        await trio.sleep(2 * PAUSE_SECONDS)
        assert len(sent) == 2, "one, which is not repeated"
        await world.command(leader, b"y")
        assert len(sent) == 2, "only that one was awaited"
