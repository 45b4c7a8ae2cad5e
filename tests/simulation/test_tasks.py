"""Paused machines and crashes at any step. Also the canary for what of trio they rest on."""

from __future__ import annotations

import trio
import trio.lowlevel
from trio._core._run import Runner  # pyright: ignore[reportPrivateUsage]

from quorate.simulation import run
from quorate.simulation.machines.tasks import Pauses, StepTrap


class Machine:
    """Tasks that count, and hear what comes in."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.heard: list[str] = []
        self.send, self._inbox = trio.open_memory_channel[str](100)
        self.scope = trio.CancelScope()

    async def run(
        self, *, task_status: trio.TaskStatus[trio.lowlevel.Task] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                task_status.started(trio.lowlevel.current_task())
                nursery.start_soon(self._tick)
                nursery.start_soon(self._hear)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(1.0)
            self.ticks.append(trio.current_time())

    async def _hear(self) -> None:
        async with trio.open_nursery() as nursery:
            async for word in self._inbox:
                nursery.start_soon(self._remember, word)

    async def _remember(self, word: str) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(word)


async def pause_one() -> None:
    pauses, one, other = Pauses(), Machine(), Machine()
    original = Runner.reschedule
    async with trio.open_nursery() as nursery:
        root = await nursery.start(one.run)
        await nursery.start(other.run)
        await trio.sleep(2.5)
        pauses.pause(root)
        for word in ("a", "b"):
            one.send.send_nowait(word)
            other.send.send_nowait(word)
        await trio.sleep(5.0)
        assert one.ticks == [1.0, 2.0]
        assert one.heard == []
        assert other.ticks == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert sorted(other.heard) == ["a", "b"]
        pauses.resume(root)
        assert Runner.reschedule is original
        await trio.sleep(1.2)
        assert one.ticks == [1.0, 2.0, 7.5, 8.5]  # the timer that had expired fires at once
        assert sorted(one.heard) == ["a", "b"]
        nursery.cancel_scope.cancel()


def test_a_paused_machine_does_nothing_and_then_everything_at_once() -> None:
    run(pause_one, seed=0)


async def kill_a_paused_one() -> None:
    pauses, one = Pauses(), Machine()
    async with trio.open_nursery() as nursery:
        root = await nursery.start(one.run)
        await trio.sleep(1.5)
        pauses.pause(root)
        await trio.sleep(5.0)
        one.scope.cancel()
        pauses.resume(root)
    assert trio.current_time() == 6.5
    assert one.ticks == [1.0]


def test_a_paused_machine_can_be_killed() -> None:
    run(kill_a_paused_one, seed=0)


async def crash_at(steps: int) -> int:
    one, other = Machine(), Machine()
    async with trio.open_nursery() as nursery:
        root = await nursery.start(one.run)
        await nursery.start(other.run)
        trio.lowlevel.add_instrument(StepTrap(root, steps, one.scope.cancel))
        await trio.sleep(6.5)
        nursery.cancel_scope.cancel()
    assert len(other.ticks) == 6
    return len(one.ticks)


def test_a_machine_can_be_stopped_before_any_of_its_steps() -> None:
    ticks = [run(crash_at, steps, seed=0) for steps in range(12)]
    assert ticks == sorted(ticks)
    assert ticks[0] == 0
    assert ticks[-1] == 6  # it has not so many steps
    assert set(ticks) == set(range(7))
