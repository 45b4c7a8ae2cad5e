"""Orderly termination: all members stop at one position, with and without a snapshot."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import NoLeaderError, RefusedError, RequestError
from quorate.node.leader.operator import positions_of
from quorate.node.state import MemberState
from quorate.simulation.ledger import equal, open_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World


async def write_until_refused(world: World[Ledger], at: int, name: bytes) -> int:
    """Write one command after the other; say how many were acknowledged before one was refused."""
    count = 0
    while True:
        try:
            await world.command(at, b"%b-%d" % (name, count))
        except NoLeaderError:
            return count
        count += 1


def terminated(world: World[Ledger]) -> list[int]:
    return [i for i, host in world.hosts.items() if host.running.state.terminated.is_set()]


@pytest.mark.parametrize("verb", ["shutdown", "abort"])
@pytest.mark.parametrize("by", ["leader", "follower"])
async def test_all_members_stop_at_one_position_under_load(
    tmp_path: Path, autojump_clock: MockClock, verb: str, by: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        seen = len(world.transitions)
        acknowledged: list[int] = []

        async def write(name: bytes) -> None:
            acknowledged.append(await write_until_refused(world, leader, name))

        async with trio.open_nursery() as nursery:
            for name in (b"a", b"b", b"c"):
                nursery.start_soon(write, name)
            await trio.sleep(0.2)
            via = leader if by == "leader" else world.others(leader)[0]
            words = await world.hosts[via].running.control(verb)
            assert "members 0, 1, 2 stop at position" in words
            assert words.startswith("snapshot at") is (verb == "shutdown")
            await world.until(lambda: terminated(world) == [0, 1, 2])
            for host in world.hosts.values():
                await host.running.close()
        position = int(words.rpartition(" ")[2])
        assert positions_of(words) == [*positions_of(words)[:-1], position]
        assert len(positions_of(words)) == 1 + (verb == "shutdown")
        for host in world.hosts.values():
            assert host.running.applier.applied_position == position
            assert host.running.store.append_position == position
            assert len(host.running.store.snapshots) == (verb == "shutdown")
        assert len(world.hosts[0].service.payloads) == sum(acknowledged)
        await trio.sleep(10.0)
        assert {each.after.name for each in world.transitions[seen:]} <= {"INIT"}
        await world.kill(*world.hosts)
        await world.start()
        await world.settled()
        await equal(world)


async def test_nobody_stops_before_it_has_done_what_its_last_batch_asks_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one here asks for a snapshot, and the position to stop at comes right behind it."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        had: dict[int, list[int]] = {}

        def look(state: MemberState) -> None:
            snapshots = world.hosts[state.member_id].running.store.snapshots
            had[state.member_id] = [row.position for row in snapshots]

        monkeypatch.setattr(MemberState, "terminate", look)
        words = await world.hosts[leader].running.control("shutdown")
        await world.until(lambda: len(had) == 3)
        position = int(words.split()[-1])
        assert had == {0: [position], 1: [position], 2: [position]}


async def test_who_is_down_is_named_and_the_others_stop(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        down = world.others(leader)[0]
        await world.kill(down)
        words = await world.hosts[leader].running.control("abort")
        assert words.endswith(f"; not reached: {down}")
        stopped = world.others(down)
        for i in stopped:
            assert world.hosts[i].running.state.terminated.is_set()


@pytest.mark.parametrize("after", [0.0, 0.001, 0.002, 0.005, 0.01])
async def test_who_has_just_lost_its_link_stops_with_the_others(
    tmp_path: Path, autojump_clock: MockClock, after: float
) -> None:
    """As in a rotation of certificates, in which links are made anew."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for other in world.others(leader):
            world.network.break_links(f"h{leader}", f"h{other}")
            world.network.break_links(f"h{other}", f"h{leader}")
        await trio.sleep(after)
        words = await world.hosts[leader].running.control("abort")
        assert "members 0, 1, 2 stop at position" in words
        assert terminated(world) == [0, 1, 2]


async def test_followers_that_know_the_position_stop_without_their_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        seen = len(world.transitions)
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with contextlib.suppress(RequestError):
                    await world.hosts[world.others(leader)[0]].running.control("abort")

            nursery.start_soon(ask)
            followers = [world.hosts[i].running.state for i in world.others(leader)]
            await world.until(lambda: any(state.terminated.is_set() for state in followers))
            await world.kill(leader)
            await world.until(lambda: all(state.terminated.is_set() for state in followers))
            nursery.cancel_scope.cancel()
        await trio.sleep(5.0)
        assert "CANDIDATE_BALLOT" not in [
            state for i in world.others(leader) for state in world.path(i, since=seen)
        ]


async def test_without_a_quorum_nothing_stops(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for peer in world.others(leader):
            world.network.cut(f"h{leader}", f"h{peer}")

        async def doomed() -> None:
            with pytest.raises(Exception, match="leader"):
                await world.command(leader, b"doomed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(doomed)
            await trio.sleep(0.01)
            with pytest.raises(Exception, match=r"leader|quorum"):
                await world.hosts[leader].running.control("abort")
        world.mend()
        await world.settled()
        assert terminated(world) == []
        await world.command(world.leaders()[0], b"alive")


@pytest.mark.parametrize("words", ["shutdown now", "abort 1", "snapshot here"])
async def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, autojump_clock: MockClock, words: str
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        with pytest.raises(RefusedError, match="takes no arguments"):
            await world.hosts[0].running.control(words)
