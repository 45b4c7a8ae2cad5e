"""A process that was held up (stopped, swapped out) hears what came before it judges silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.node import State
from quorate.simulation.world import TIMEOUTS
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from trio.testing import MockClock

HELD_UP = 4 * TIMEOUTS.leader_heartbeat_timeout


async def hold_up() -> None:
    """Let time pass in which nothing runs."""
    clock: MockClock = trio.lowlevel.current_clock()  # type: ignore[assignment]
    clock.jump(HELD_UP)
    await trio.sleep(0.01)


@scripted()
async def test_a_follower_that_was_held_up_keeps_a_leader_whose_heartbeat_waits(s: Script) -> None:
    leader = await s.follow(1, 0)
    seen = len(s.transitions)
    for _ in range(10):
        leader.commit(0)
        await hold_up()
    assert len(s.transitions) == seen
    assert s.state is State.CLOSED


@scripted()
async def test_a_follower_that_was_held_up_gives_up_a_leader_that_said_nothing(s: Script) -> None:
    await s.follow(1, 0)
    await hold_up()
    assert (await s.enters(State.INIT)).reason == "leader heartbeat timeout"


@scripted()
async def test_a_leader_that_was_held_up_keeps_a_quorum_whose_reports_wait(s: Script) -> None:
    term = await s.lead()
    await trio.sleep(0.01)  # its first entry is written
    seen = len(s.transitions)
    for _ in range(10):
        s.peers[1].append_position(term, 0)
        await hold_up()
    assert len(s.transitions) == seen
    assert s.member.topology.is_leader


@scripted()
async def test_a_leader_that_was_held_up_steps_down_if_no_report_waits(s: Script) -> None:
    await s.lead()
    await hold_up()
    assert (await s.enters(State.INIT)).reason == "inactive follower quorum"


@scripted()
async def test_a_leader_that_was_held_up_does_not_blame_its_disk(s: Script) -> None:
    """The disk had a write to do, was held up with everything else, and takes a little longer."""
    term = await s.lead()
    await trio.sleep(0.05)
    s.disk.latency = HELD_UP + 0.4
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.member.command, b"x")
        await s.until(lambda: s.store.submitted_position > s.store.append_position)
        seen = len(s.transitions)
        for peer in s.peers.values():
            peer.append_position(term, 0)
        await hold_up()
        for _ in range(10):
            for peer in s.peers.values():
                peer.append_position(term, 0)
            await trio.sleep(0.05)
        assert len(s.transitions) == seen
        nursery.cancel_scope.cancel()
