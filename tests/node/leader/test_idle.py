"""What an idle member does: heartbeats, and hardly anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import Timeouts
from quorate.node.protocol.signal import sleep_to_shared_tick
from quorate.simulation import Setting, open_world
from quorate.simulation.ledger import Ledger
from quorate.transport import AppendPosition, CommitPosition

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

SECONDS = 10
LAN = Timeouts.of("lan")
BEATS = SECONDS / LAN.leader_heartbeat_interval


class Steps(trio.abc.Instrument):
    """Counts how often a task of the members goes on, but for those of the simulated network."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += ".node." in task.name


@pytest.mark.parametrize("members", [1, 3])
async def test_tasks_of_an_idle_member_are_hardly_woken(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    async with open_world(tmp_path, Ledger, Setting(members=members, timeouts=LAN)) as world:
        await world.start()
        await world.settled()
        await trio.sleep(5)
        trio.lowlevel.add_instrument(steps := Steps())
        await trio.sleep(SECONDS)
        trio.lowlevel.remove_instrument(steps)
        # the leader's heartbeats, and for each member what is looked at some times a second
        assert steps.count < BEATS + members * SECONDS * 13


async def test_each_heartbeat_is_answered_once_and_nothing_else_is_said(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Ledger, Setting(members=3, timeouts=LAN)) as world:
        await world.start()
        leader = await world.settled()
        await trio.sleep(5)
        said: list[type] = []

        def listen(_sender: int, _receiver: int, message: object) -> bool:
            said.append(type(message))
            return False

        world.messages.drop(listen)
        await trio.sleep(SECONDS)
        assert set(said) == {AppendPosition, CommitPosition}
        assert said.count(CommitPosition) <= 2 * (BEATS + 1)
        assert said.count(AppendPosition) <= 2 * (BEATS + 1 + 4 * SECONDS)
        assert world.leaders() == [leader]


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.125, 0.25, 1.0])
async def test_the_next_look_is_never_now(autojump_clock: MockClock, seconds: float) -> None:
    """Rounded, 1.0 // 0.1 is 9."""
    for turn in range(1, 40):
        await trio.sleep_until(turn * seconds)
        before = trio.current_time()
        await sleep_to_shared_tick(seconds)
        assert before < trio.current_time() <= before + 2 * seconds
