"""Executors: order, group commit, cancellation, failure, virtual time."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from quorate.storage import ThreadExecutor
from quorate.storage.testing import InlineExecutor
from quorate.storage.writing.executor import MAX_GROUP_JOBS


@attrs.frozen(eq=False)
class Note:
    """A job with a number."""

    number: int
    done: Callable[[], None]


class Disk:
    """Remembers what was written, and may hold a write up or fail it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.done: list[int] = []
        self.delivered: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails_at: int | None = None
        self.threads: set[int] = set()

    def write(self, group: Sequence[Note]) -> None:
        self.threads.add(threading.get_ident())
        if not self.go_on.wait(5):
            raise TimeoutError
        numbers = [note.number for note in group]
        if self.fails_at in numbers:
            raise OSError("the disk is gone")
        self.groups.append(numbers)

    def note(self, number: int, then: Callable[[], None] = lambda: None) -> Note:
        def done() -> None:
            self.done.append(number)
            then()

        return Note(number, done)

    def jobs(self) -> list[int]:
        return [number for group in self.groups for number in group]

    def on_delivered(self) -> None:
        self.delivered.append(len(self.done))


async def written(executor: ThreadExecutor[Note] | InlineExecutor[Note], note: Note) -> None:
    """Submit a note and wait until it is reported."""
    event = trio.Event()

    def done() -> None:
        note.done()
        event.set()

    executor.submit(Note(note.number, done))
    await event.wait()


async def test_jobs_that_wait_together_are_written_together() -> None:
    disk = Disk()
    executor = ThreadExecutor(disk.write, delivered=disk.on_delivered)
    disk.go_on.clear()
    for number in range(MAX_GROUP_JOBS + 10):
        executor.submit(disk.note(number))
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        disk.go_on.set()
        await written(executor, disk.note(-1))
        nursery.cancel_scope.cancel()
    assert disk.groups[0] == list(range(MAX_GROUP_JOBS))
    assert disk.groups[1][:10] == list(range(MAX_GROUP_JOBS, MAX_GROUP_JOBS + 10))
    assert len(disk.groups) <= 3
    assert disk.jobs() == disk.done == [*range(MAX_GROUP_JOBS + 10), -1]


async def test_completions_come_in_order_on_the_trio_thread_and_then_once_per_group() -> None:
    disk = Disk()
    executor = ThreadExecutor(disk.write, delivered=disk.on_delivered)
    threads: set[int] = set()
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        for number in range(500):
            executor.submit(disk.note(number, lambda: threads.add(threading.get_ident())))
            if number % 50 == 0:
                await trio.lowlevel.checkpoint()
        await written(executor, disk.note(500))
        nursery.cancel_scope.cancel()
    assert disk.done == list(range(501))
    ends = [sum(len(group) for group in disk.groups[: i + 1]) for i in range(len(disk.groups))]
    assert disk.delivered == ends
    assert threads == {threading.get_ident()}
    assert len(disk.threads) == 1
    assert disk.threads != threads


@pytest.mark.parametrize("kind", [ThreadExecutor, partial(InlineExecutor, latency=0.001)])
async def test_cancellation_writes_and_reports_what_was_submitted(
    kind: Callable[..., ThreadExecutor[Note] | InlineExecutor[Note]],
) -> None:
    disk = Disk()
    executor = kind(disk.write)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        for number in range(10):
            executor.submit(disk.note(number))
        nursery.cancel_scope.cancel()
    executor.submit(disk.note(10))
    assert disk.done == disk.jobs() == list(range(10))
    assert threading.active_count() == 1 or not any(
        thread.name == "quorate storage" for thread in threading.enumerate()
    )


async def test_a_writer_that_has_nothing_to_write_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.storage.writing.writer_thread.IDLE_SECONDS", 0.02)
    disk, rested = Disk(), threading.Event()
    executor = ThreadExecutor(disk.write, idle=rested.set)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        assert await trio.to_thread.run_sync(rested.wait, 60)
        await written(executor, disk.note(0))  # and takes up its work again
        nursery.cancel_scope.cancel()
    assert disk.done == [0]


@pytest.mark.parametrize("kind", [ThreadExecutor, InlineExecutor])
async def test_an_orderly_end_comes_after_all_that_was_submitted(
    kind: Callable[..., ThreadExecutor[Note] | InlineExecutor[Note]],
) -> None:
    disk, ended = Disk(), list[list[int]]()
    executor = kind(disk.write, idle=lambda: ended.append(disk.jobs()))
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        executor.submit(disk.note(0))
        nursery.cancel_scope.cancel()
    assert ended == [[0]]


@pytest.mark.parametrize("kind", [ThreadExecutor, InlineExecutor])
async def test_a_failed_write_ends_the_run_and_nothing_more_is_written(
    kind: Callable[..., ThreadExecutor[Note] | InlineExecutor[Note]],
) -> None:
    disk = Disk()
    disk.fails_at = 1
    executor = kind(disk.write)

    async def drive() -> None:
        await written(executor, disk.note(0))
        executor.submit(disk.note(1))
        await trio.lowlevel.checkpoint()
        executor.submit(disk.note(2))
        await trio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone")):
        async with trio.open_nursery() as nursery:
            await nursery.start(executor.run)
            nursery.start_soon(drive)
    executor.submit(disk.note(3))
    assert disk.groups == [[0]]
    assert disk.done == [0]


async def test_a_failure_while_draining_is_not_lost() -> None:
    disk = Disk()
    disk.fails_at = 3
    executor = ThreadExecutor(disk.write)
    with pytest.RaisesGroup(OSError):
        async with trio.open_nursery() as nursery:
            await nursery.start(executor.run)
            executor.submit(disk.note(3))
            nursery.cancel_scope.cancel()


async def test_a_read_does_not_wait_for_the_writer() -> None:
    disk = Disk()
    executor = ThreadExecutor(disk.write)
    disk.go_on.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        executor.submit(disk.note(0))
        assert await executor.read(lambda: 5) == 5
        assert disk.done == []
        disk.go_on.set()
        nursery.cancel_scope.cancel()
    assert disk.done == [0]


async def test_inline_writes_take_their_latency_of_virtual_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = Disk()
    executor = InlineExecutor(disk.write, latency=0.25)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        executor.submit(disk.note(0))
        await trio.sleep(0.1)
        executor.submit(disk.note(1))
        executor.submit(disk.note(2))
        await trio.sleep(0.1)
        assert disk.done == []
        await written(executor, disk.note(3))
        assert trio.current_time() == pytest.approx(start + 0.5)
        executor.latency = 2
        await written(executor, disk.note(4))
        assert trio.current_time() == pytest.approx(start + 2.5)
        nursery.cancel_scope.cancel()
    assert disk.groups == [[0], [1, 2, 3], [4]]


async def test_a_power_cut_loses_what_is_not_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = Disk()
    executor = InlineExecutor(disk.write, latency=0.25)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        await written(executor, disk.note(0))
        executor.submit(disk.note(1))
        await trio.sleep(0.1)
        executor.cut_power()
        executor.submit(disk.note(2))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert disk.groups == [[0]]
    assert disk.done == [0]
