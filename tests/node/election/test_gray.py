"""Gray failures: half a link, a slow disk, a slow link. Who leads must be who can.

A leader that a quorum reaches, both ways, is not unseated; one that does not is soon replaced, and
knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import NoLeaderError, RequestError, UnknownOutcomeError
from quorate.node.protocol.heartbeats import Heartbeats
from quorate.node.protocol.states import LEADER_STATES
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import CommitPosition, StaleLeader
from quorate.transport.testing.direction import Pace
from tests.support.script import Script, scripted
from tests.support.settled import settled

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

BEAT = TIMEOUTS.leader_heartbeat_interval
TIMEOUT = TIMEOUTS.leader_heartbeat_timeout
LONG = 6 * TIMEOUT


def term(world: World[Ledger]) -> int:
    """The highest that anybody has promised."""
    return max(host.running.store.node_state.candidate_term for host in world.hosts.values())


def deafen(world: World[Ledger], victim: int) -> None:
    """Let it send, but not receive."""
    for other in world.others(victim):
        world.network.cut(f"h{other}", f"h{victim}", both=False)


def silence(world: World[Ledger], victim: int) -> None:
    """Let it receive, but not send."""
    for other in world.others(victim):
        world.network.cut(f"h{victim}", f"h{other}", both=False)


async def stays(world: World[Ledger], leader: int) -> None:
    """See that a leader keeps its term for long, and serves all the time."""
    before, end = term(world), trio.current_time() + LONG
    while trio.current_time() < end:
        assert await world.attempt(leader, b"x", within=TIMEOUT)
        assert world.leaders() == [leader]
        await trio.sleep(4 * BEAT)
    assert term(world) == before


# --- half a link ----------------------------------------------------------------------------------


@pytest.mark.parametrize("break_it", [deafen, silence])
@settled
async def test_a_follower_with_half_a_link_unseats_nobody(
    world: World[Ledger], break_it: object
) -> None:
    (leader,) = world.leaders()
    before = term(world)
    break_it(world, (leader + 1) % 3)  # type: ignore[operator]
    await stays(world, leader)
    world.mend()
    assert await world.settled() == leader
    await stays(world, leader)
    assert term(world) == before


@pytest.mark.parametrize("break_it", [deafen, silence])
@settled
async def test_a_leader_with_half_a_link_is_replaced_once(
    world: World[Ledger], break_it: object
) -> None:
    """Deaf, it steps down within a heartbeat timeout and says so; mute, its followers miss it."""
    (leader,) = world.leaders()
    before = term(world)
    break_it(world, leader)  # type: ignore[operator]
    await trio.sleep(TIMEOUT + 2 * BEAT)
    if break_it is deafen:
        assert leader not in world.leaders()
    await world.until(
        lambda: world.leaders() not in ([], [leader]), within=3 * TIMEOUTS.election_timeout
    )
    await world.until(lambda: leader not in world.leaders(), within=BEAT)
    (new,) = world.leaders()
    await stays(world, new)
    world.mend()
    assert await world.settled() == new
    assert term(world) == before + 1


# --- slowness -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.1, 2.0])
@settled
async def test_a_slow_link_of_a_follower_unseats_nobody(
    world: World[Ledger], seconds: float
) -> None:
    (leader,) = world.leaders()
    slow = (leader + 1) % 3
    for other in world.others(slow):
        world.network.set_pace(f"h{other}", f"h{slow}", Pace(seconds))
    await stays(world, leader)


@pytest.mark.parametrize("seconds", [0.1, 2.0])
@settled
async def test_a_slow_disk_of_a_follower_unseats_nobody(
    world: World[Ledger], seconds: float
) -> None:
    (leader,) = world.leaders()
    world.hosts[(leader + 1) % 3].running.store.executor.latency = seconds  # type: ignore[attr-defined]
    await stays(world, leader)


@pytest.mark.parametrize("seconds", [0.1, pytest.param(0.4, marks=pytest.mark.slow)])
@settled
async def test_a_slow_disk_of_the_leader_unseats_nobody(
    world: World[Ledger], seconds: float
) -> None:
    (leader,) = world.leaders()
    world.hosts[leader].running.store.executor.latency = seconds  # type: ignore[attr-defined]
    before, end = term(world), trio.current_time() + LONG
    while trio.current_time() < end:
        assert await world.attempt(leader, b"x", within=3.0)
    assert (world.leaders(), term(world)) == ([leader], before)


# --- a disk that stands still ---------------------------------------------------------------------


@settled
async def test_a_leader_whose_disk_stalls_hands_over_to_one_that_has_everything(
    world: World[Ledger],
) -> None:
    (leader,) = world.leaders()
    before = term(world)
    world.hosts[leader].disk.stall(LONG)
    stalled = trio.current_time()
    told: list[BaseException] = []

    async def write() -> None:
        try:
            await world.command(leader, b"in flight")
        except UnknownOutcomeError as error:
            told.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await world.until(lambda: world.leaders() not in ([leader], []), within=LONG)
        took = trio.current_time() - stalled
    assert took < 1.5 * TIMEOUT + 4 * BEAT  # nobody has missed it
    assert len(told) == 1  # its client is told at once
    (new,) = world.leaders()
    assert await world.attempt(new, b"goes on")
    assert term(world) == before + 1
    assert b"in flight" in world.hosts[new].service.payloads  # it was on a quorum
    await trio.sleep(LONG)
    assert await world.settled() == new


@settled
async def test_when_all_disks_stall_the_leader_stays_for_another_timeout_and_then_gives_up(
    world: World[Ledger],
) -> None:
    (leader,) = world.leaders()
    for host in world.hosts.values():
        host.disk.stall(1.8 * TIMEOUT)
    assert await world.attempt(leader, b"x", within=3.0)
    assert world.leaders() == [leader]
    for host in world.hosts.values():
        host.disk.stall(4 * TIMEOUT)
    assert not await world.attempt(leader, b"y", within=2.5 * TIMEOUT)
    assert world.leaders() == []
    await world.settled()


# --- a leader without its quorum ------------------------------------------------------------------


@settled
async def test_it_steps_down_within_the_timeout_and_its_clients_are_told(
    world: World[Ledger],
) -> None:
    (leader,) = world.leaders()
    member = world.hosts[leader].running
    world.isolate(leader)
    cut = trio.current_time()
    told: list[RequestError] = []

    async def write(payload: bytes) -> None:
        try:
            await member.command(payload)
        except RequestError as error:
            told.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, b"in flight")
        await world.until(lambda: not member.topology.is_leader)
        assert trio.current_time() - cut < TIMEOUT + BEAT
        await trio.sleep(BEAT)
        assert [type(each) for each in told] == [UnknownOutcomeError]
        nursery.start_soon(write, b"parked")
    assert [type(each) for each in told] == [UnknownOutcomeError, NoLeaderError]


@pytest.mark.parametrize("seconds", [TIMEOUT * 1.5, LONG])
@settled
async def test_a_leader_that_slept_is_told_at_once_and_follows(
    world: World[Ledger], seconds: float
) -> None:
    (leader,) = world.leaders()
    before = term(world)
    world.pause(leader)
    await trio.sleep(seconds)
    await world.until(lambda: len(world.leaders()) == 2)  # it does not know yet
    world.resume(leader)
    await trio.sleep(2 * BEAT)
    assert not world.hosts[leader].running.topology.is_leader
    await world.settled(within=TIMEOUT)
    assert term(world) == before + 1


@scripted()
async def test_what_a_leader_says_is_answered_by_whoever_lives_in_a_newer_term(s: Script) -> None:
    await s.follow(1, 5)
    s.peers[2].say(CommitPosition(3, 0, 2, 0))
    assert await s.peers[2].hears(StaleLeader, within=0.01) == StaleLeader(5, 0)


# --- what is seen of it ---------------------------------------------------------------------------


async def test_a_pulse_counts_what_comes_and_what_does_not(autojump_clock: MockClock) -> None:
    pulse = Heartbeats(1.0)
    await trio.sleep(5)
    assert (pulse.count, pulse.missed) == (0, 0)
    for pause in (0.0, 1.0, 1.9, 0.1):
        await trio.sleep(pause)
        pulse.heartbeat()
    assert (pulse.count, pulse.missed) == (4, 0)
    await trio.sleep(3.5)
    assert (pulse.count, pulse.missed) == (4, 2)
    pulse.alive()
    assert (pulse.count, pulse.missed) == (4, 2)
    await trio.sleep(2.5)
    pulse.heartbeat()
    assert (pulse.count, pulse.missed) == (5, 3)


@settled
async def test_status_tells_heartbeats_and_misses_of_each_link(world: World[Ledger]) -> None:
    (leader,) = world.leaders()
    silenced, well = world.others(leader)
    await trio.sleep(20 * BEAT)
    seen = {peer.member_id: peer for peer in world.hosts[leader].running.status().peers}
    assert all(peer.heartbeats >= 15 and peer.missed == 0 for peer in seen.values())
    world.network.cut(f"h{silenced}", f"h{leader}", both=False)
    await trio.sleep(10 * BEAT)
    later = {peer.member_id: peer for peer in world.hosts[leader].running.status().peers}
    assert later[silenced].missed >= 7
    assert later[well].missed == 0
    assert later[well].heartbeats >= seen[well].heartbeats + 7
    follower = {peer.member_id: peer for peer in world.hosts[well].running.status().peers}
    assert follower[leader].heartbeats >= 20
    assert (follower[silenced].heartbeats, follower[silenced].missed) == (0, 0)


@scripted()
async def test_a_member_that_never_reported_has_no_heartbeats(s: Script) -> None:
    await s.win()
    s.peers[1].append_position(s.store.node_state.candidate_term, 0)
    await trio.sleep(0.01)
    one, other = s.member.status().peers
    assert (one.heartbeats, other.heartbeats, other.last_heard_s) == (1, 0, None)
    assert s.state in LEADER_STATES


async def test_a_message_that_takes_longer_than_the_timeout_unseats_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Heartbeats wait behind it on its link; its parts are heard, and answered, in their place."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader, size = await world.settled(), 4 << 20
        pace = Pace(bytes_per_second=size / (5 * TIMEOUTS.leader_heartbeat_timeout))
        for other in world.others(leader):
            world.network.set_pace(f"h{leader}", f"h{other}", pace, both=False)
        before = term(world)
        assert await world.attempt(leader, bytes(size), within=20.0)
        assert world.leaders() == [leader]
        assert term(world) == before
