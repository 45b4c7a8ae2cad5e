"""Each durable group is counted with the time that its own thread took, on either path."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from quorate.storage.testing import InlineExecutor
from quorate.storage.writing.group_commit import ThreadExecutor
from quorate.storage.writing.journal_writer import PythonWriter, Span, Writer, open_synced

SLOW = 0.03


def journal_in(folder: Path) -> int:
    path = folder / "journal"
    path.touch()
    return open_synced(path, bytes(4096))


class Mark:
    """A job that says when it is durable."""

    def __init__(self) -> None:
        self.durable = trio.Event()

    @property
    def done(self) -> Callable[[], None]:
        return self.durable.set


async def test_the_writer_thread_measures_its_own_writes(nursery: trio.Nursery) -> None:
    executor = ThreadExecutor[Mark](lambda _group: time.sleep(SLOW))
    await nursery.start(executor.run)
    job = Mark()
    executor.submit(job)
    await job.durable.wait()
    assert executor.syncs.count == 1
    assert executor.syncs.total >= SLOW


@pytest.mark.parametrize("writer", [Writer, PythonWriter], ids=["compiled", "python"])
async def test_a_write_is_measured_by_the_journal_writer(
    writer: type[PythonWriter], tmp_path: Path
) -> None:
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    file = journal_in(tmp_path)
    one = writer(wake)
    try:
        assert one.took == 0
        one.write(file, 4096, bytes(1 << 20))
        await trio.lowlevel.wait_readable(wake)
        assert one.outcome() == 0
        assert 0 < one.took < 5
    finally:
        one.close()
        os.close(file)
        os.close(wake)


async def test_groups_of_the_journal_path_are_counted(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    executor = ThreadExecutor[Mark](lambda _group: None)
    file = journal_in(tmp_path)
    executor.by_spans(lambda _group: Span(file, 4096, bytes(4096)), lambda _error: None)
    await nursery.start(executor.run)
    for n in (1, 2, 3):
        job = Mark()
        executor.submit(job)
        await job.durable.wait()
        assert executor.syncs.count == n
    assert executor.syncs.total > 0


async def test_in_virtual_time_it_is_the_simulated_latency(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    del autojump_clock
    executor = InlineExecutor[Mark](lambda _group: None, latency=0.25)
    await nursery.start(executor.run)
    job = Mark()
    executor.submit(job)
    await job.durable.wait()
    assert executor.syncs.count == 1
    assert executor.syncs.total == pytest.approx(0.25)
