"""A disk that hangs on the way to leadership, or under a leader: another member takes over soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import State
from quorate.node.state_machine.applier import CUT_SECONDS
from quorate.simulation import Ledger, Observer, Setting, open_world
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import TermSpan
from tests.node.election.test_adopt_voter_log import win_behind
from tests.support.peers import log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trio.testing import MockClock


TIMEOUT = TIMEOUTS.leader_heartbeat_timeout
HANG = 60.0
SOON = 4.0
"""Two timeouts until the winner gives up, and an election."""

WINNERS_STATES = [
    State.CANDIDATE_BALLOT,
    State.LEADER_LOG_REPLICATION,
    State.LEADER_REPLAY,
    State.LEADER_INIT,
    State.LEADER_READY,
]


@pytest.mark.parametrize("state", WINNERS_STATES, ids=[state.name for state in WINNERS_STATES])
async def test_a_winner_whose_disk_hangs_gives_its_term_up(
    tmp_path: Path, autojump_clock: MockClock, state: State
) -> None:
    async with open_ledgers(tmp_path, observer=Observer([0, 1, 2])) as world:
        await world.start()
        old = await world.settled()
        await world.command(old, b"x")
        hanging: list[int] = []

        def look(i: int) -> None:
            host = world.hosts[i]
            if not hanging and i != old and host.member is not None and host.state is state:
                hanging.append(i)
                host.disk.stall(HANG)

        world.after_every_event(look)
        await world.kill(old)
        await world.start(old)
        began = trio.current_time()
        await world.until(lambda: bool(hanging) and world.leaders() not in ([], hanging))
        (new,) = world.leaders()
        assert await world.attempt(new, b"y", within=SOON)
        assert trio.current_time() - began < SOON
        # What was under way becomes durable late: a term of which nothing came.
        world.hosts[hanging[0]].disk.mend()
        assert await world.settled() == new
        await equal(world, [b"x", b"y"])
        await world.kill(new)
        assert await world.attempt(await world.settled(), b"z")
        await equal(world, [b"x", b"y", b"z"])


@scripted(batches=log((0, 96)))
async def test_who_fetches_a_voters_log_gives_up_when_its_disk_hangs(s: Script) -> None:
    await win_behind(s, TermSpan(0, 0, 192), TermSpan(1, 192, 192), TermSpan(2, 192, 384))
    replay = await s.peers[1].replay()
    s.disk.latency = HANG
    began = trio.current_time()
    batches = log((0, 96), (0, 192), (2, 288), (2, 384))
    await replay.send(0, *batches[1:])
    await s.enters(State.INIT)
    assert trio.current_time() - began < 2 * TIMEOUT + 0.1


class Cut(Ledger):
    """A ledger of which one member's can't be cut, as if its tables' disk hung."""

    hanging: trio.Event | None = None

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        if self.hanging is not None:
            await self.hanging.wait()
        return await super().save(task_status=task_status)


async def test_a_leader_whose_tables_hang_at_a_snapshots_cut_steps_down_and_does_not_stand(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Cut, Setting(), observer=Observer([0, 1, 2])) as world:
        await world.start()
        old = await world.settled()
        mended = world.hosts[old].service.hanging = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.hosts[old].running.control, "snapshot")
            await trio.sleep(TIMEOUT)
            assert not await world.attempt(old, b"x", within=TIMEOUT)
            assert world.leaders() == [old]  # it may only be slow
            nursery.cancel_scope.cancel()
        await world.until(lambda: world.leaders() not in ([], [old]), within=CUT_SECONDS + SOON)
        (new,) = world.leaders()
        assert await world.attempt(new, b"y")
        assert not world.hosts[old].running.election.may_stand
        mended.set()
        await equal(world)
        assert world.hosts[old].running.election.may_stand
        assert await world.settled() == new
