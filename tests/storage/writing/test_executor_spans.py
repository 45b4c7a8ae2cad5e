"""What goes by the writer thread: order, who is at work when, failure, the end."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING
from unittest import mock

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorate.storage import ThreadExecutor
from quorate.storage.writing.executor import MAX_GROUP_JOBS
from quorate.storage.writing.journal_writer import PythonWriter, Span, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@attrs.frozen(eq=False)
class Job:
    """A number to be written to a file, or by `write`."""

    number: int
    alone: bool
    done: Callable[[], None]


class Disk:
    """Writes numbers one after the other to a file, and notes the thread; fails at `fails_at`."""

    def __init__(self, path: Path, fails_at: int = -1) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self.sink = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
        self.fails_at = fails_at
        self.written: list[int] = []
        self.begun: list[int] = []
        self.done: list[int] = []
        self.groups: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.rests = 0
        self.spans = 0
        self.trio = threading.get_ident()
        self.executor = ThreadExecutor[Job](self.write, delivered=self.delivered, idle=self.rest)
        self.executor.by_spans(self.begin, self.end)

    def submit(self, number: int, *, alone: bool = False) -> None:
        self.executor.submit(Job(number, alone, lambda: self.done.append(number)))

    def write(self, group: Sequence[Job]) -> None:
        assert threading.get_ident() != self.trio
        assert not self.begun, "the other thread is at work"
        assert self.go_on.wait(60)
        if self.fails_at in {job.number for job in group}:
            raise OSError(errno.EIO, "the disk is gone")
        for job in group:
            os.write(self.file, b"%6d" % job.number)
            self.written.append(job.number)

    def begin(self, group: Sequence[Job]) -> Span | None:
        assert threading.get_ident() == self.trio
        assert not self.begun
        assert len(group) <= MAX_GROUP_JOBS
        if any(job.alone for job in group):
            return None
        self.begun = [job.number for job in group]
        data = b"".join(b"%6d" % number for number in self.begun)
        offset = os.lseek(self.file, len(data), os.SEEK_CUR) - len(data)
        return Span(self.sink if self.fails_at in self.begun else self.file, offset, data)

    def end(self, error: int) -> None:
        begun, self.begun = self.begun, []
        if error:
            raise OSError(error, "the disk is gone")
        self.spans += 1
        self.written += begun

    def rest(self) -> None:
        assert not self.begun, "the other thread is at work"
        self.rests += 1

    def delivered(self) -> None:
        self.groups.append(len(self.done))

    def close(self) -> list[int]:
        data = os.pread(self.file, 1 << 20, 0)
        os.close(self.file)
        os.close(self.sink)
        return [int(data[at : at + 6]) for at in range(0, len(data), 6)]


STEPS = st.lists(
    st.tuples(
        st.integers(1, MAX_GROUP_JOBS + 6),
        st.sampled_from(["span", "alone", "mixed"]),
        st.booleans(),
    ),
    max_size=20,
)


@pytest.mark.parametrize("writer", [Writer, PythonWriter], ids=["compiled", "python"])
@given(steps=STEPS, early=st.integers(0, 5))
def test_the_order_is_that_of_the_calls_whoever_writes(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, str, bool]],
    early: int,
    *,
    writer: type[PythonWriter],
) -> None:
    disk = Disk(tmp_path_factory.mktemp("disk") / "file")
    for number in range(early):
        disk.submit(number)
    count = early

    async def main() -> None:
        nonlocal count
        async with trio.open_nursery() as nursery:
            await nursery.start(disk.executor.run)
            for size, kind, waits in steps:
                for _ in range(size):
                    alone = kind == "alone" or (kind == "mixed" and count % 7 == 0)
                    disk.submit(count, alone=alone)
                    count += 1
                while waits and len(disk.done) < count:
                    await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    with mock.patch("quorate.storage.writing.group_commit.Writer", writer):
        trio.run(main)
    assert disk.done == disk.written == disk.close() == list(range(count))
    assert disk.groups == sorted(set(disk.groups))
    assert disk.groups[-1:] == ([count] if count else [])
    assert disk.rests >= 1


async def test_spans_go_by_the_thread_once_it_has_nothing_to_do(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.executor.run)
        for number in range(50):
            disk.submit(number, alone=number == 20)
            while len(disk.done) <= number:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert disk.spans == 49
    assert disk.close() == list(range(50))


async def test_what_comes_while_the_thread_is_at_work_is_written_in_c_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    disk.go_on.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.executor.run)
        disk.submit(0, alone=True)
        for number in range(1, 20):
            disk.submit(number)
        disk.go_on.set()
        while len(disk.done) < 20:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert disk.close() == list(range(20))
    assert disk.spans == 1


async def test_without_a_second_thread_the_first_one_does_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_wake: int) -> None:
        raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr("quorate.storage.writing.group_commit.Writer", none)
    disk = Disk(tmp_path / "file")
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.executor.run)
        for number in range(20):
            disk.submit(number)
        nursery.cancel_scope.cancel()
    assert disk.done == disk.close() == list(range(20))
    assert disk.spans == 0


@pytest.mark.parametrize("alone", [False, True])
async def test_what_waits_behind_a_failure_is_dropped(tmp_path: Path, *, alone: bool) -> None:
    disk = Disk(tmp_path / "file", fails_at=0)
    disk.go_on.clear()
    with pytest.RaisesGroup(OSError):
        async with trio.open_nursery() as nursery:
            await nursery.start(disk.executor.run)
            disk.submit(0, alone=alone)
            disk.submit(1)
            disk.submit(2, alone=True)
            disk.go_on.set()
            await trio.sleep_forever()
    assert (disk.done, disk.rests, disk.close()) == ([], 0, [])


async def test_a_failed_span_ends_the_run_and_nothing_more_is_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file", fails_at=1)
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, check=lambda it: it.errno == errno.ENOSPC)):
        async with trio.open_nursery() as nursery:
            await nursery.start(disk.executor.run)
            disk.submit(0)
            while not disk.done:
                await trio.lowlevel.checkpoint()
            disk.submit(1)
            disk.submit(2)
            await trio.sleep_forever()
    disk.submit(3)
    assert disk.done == [0]
    assert disk.rests == 0
    assert disk.close() == [0]


async def test_a_failed_span_is_not_lost_at_the_end(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file", fails_at=0)
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone")):
        async with trio.open_nursery() as nursery:
            await nursery.start(disk.executor.run)
            disk.submit(0)
            nursery.cancel_scope.cancel()
    assert (disk.done, disk.rests, disk.close()) == ([], 0, [])


async def test_it_rests_only_while_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With 0.1 ms a busy machine makes the thread wait for ever: see `IDLE_SECONDS`.
    monkeypatch.setattr("quorate.storage.writing.writer_thread.IDLE_SECONDS", 0.02)
    disk = Disk(tmp_path / "file")
    async with trio.open_nursery() as nursery:
        await nursery.start(disk.executor.run)
        number = 0
        while disk.rests < 20:
            disk.submit(number)
            number += 1
            while len(disk.done) < number or (number % 5 == 0 and disk.rests < number // 5):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert disk.done == disk.close() == list(range(number))
