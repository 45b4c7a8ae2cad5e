"""What a store may rely on, whatever writes it: a thread, inline, or the simulated disk.

The same checks against all three, so that what the simulation says of a store holds of
the real one.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from quorate.errors import StorageError, leaves
from quorate.simulation.machines.disk import Disk
from quorate.storage import Entry, EntryKind, NodeState, Store, ThreadExecutor, encode_batch
from quorate.storage.log.journal import Journal
from quorate.storage.testing import InlineExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from quorate.storage import ExecutorFactory
    from quorate.storage.log.log_table import Record
    from quorate.storage.log.recorder import Write
    from quorate.storage.writing.journal_writer import Span

    Make = Callable[[Path], ExecutorFactory[Write]]


def on_a_thread(_directory: Path) -> ExecutorFactory[Write]:
    return ThreadExecutor


def inline(_directory: Path) -> ExecutorFactory[Write]:
    return InlineExecutor


def simulated(directory: Path) -> ExecutorFactory[Write]:
    return Disk(Random(0), latency=0.0001).lane(directory)


NO_FILE: Final = -1

every_executor = pytest.mark.parametrize("make", [on_a_thread, inline, simulated])


def open_store(directory: Path, make: Make) -> Store:
    return Store.open(
        directory,
        cluster="c",
        member_id=0,
        rng=Random(0),
        executor=make(directory),
        map_bytes=1 << 24,
    )


def batch(position: int, size: int = 100) -> bytes:
    entries = [Entry(EntryKind.COMMAND, bytes(size))]
    return encode_batch(entries, term=0, position=position, timestamp_ms=1, commit_position=0)


def append(store: Store, done: Callable[[], None] | None = None) -> bytes:
    at = store.submitted_position
    made = batch(at)
    store.append(made, done=done)
    return made


@every_executor
async def test_writes_are_reported_in_order_and_once_they_are_there(
    tmp_path: Path, make: Make
) -> None:
    store, ends, told = open_store(tmp_path, make), list[int](), list[int]()
    store.on_durable = told.append
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for _ in range(100):
            append(store, lambda: ends.append(store.append_position))
        assert ends == []
        await store.settled()
        assert ends == sorted(ends)
        assert len(ends) == 100
        assert told[-1] == ends[-1] == store.append_position
        assert len(await store.read(0)) == 100
        nursery.cancel_scope.cancel()
    store.close()


@every_executor
async def test_what_was_reported_is_there_after_a_restart(tmp_path: Path, make: Make) -> None:
    store = open_store(tmp_path, make)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        batches = [append(store) for _ in range(10)]
        await store.save_node_state(NodeState(3, 1))
        nursery.cancel_scope.cancel()
    recorded = store.recorded
    store.close()
    again = open_store(tmp_path, make)
    assert again.recorded == recorded
    assert list(again.scan(0)) == batches
    again.close()


@every_executor
async def test_a_store_that_is_stopped_in_order_writes_what_was_submitted(
    tmp_path: Path, make: Make
) -> None:
    store = open_store(tmp_path, make)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        batches = [append(store) for _ in range(10)]
        nursery.cancel_scope.cancel()
    store.close()
    again = open_store(tmp_path, make)
    assert list(again.scan(0)) == batches
    again.close()


@every_executor
async def test_a_failed_write_ends_the_store_and_nothing_behind_it_is_written(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, failing = Journal.group, False

    def group_or_fail(journal: Journal, records: Sequence[Record]) -> Span:
        span = group(journal, records)
        return attrs.evolve(span, file=NO_FILE) if failing else span

    monkeypatch.setattr(Journal, "group", group_or_fail)
    store = open_store(tmp_path, make)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            append(store)
            await store.settled()
            await store.append_durably(batch(store.submitted_position))
            # what comes from here on goes to the journal
            failing = True
            append(store, lambda: pytest.fail("reported"))
            await trio.sleep_forever()
    assert isinstance(next(leaves(caught.value)), StorageError)
    assert os.strerror(errno.EBADF) in repr(caught.value)
    failing = False
    append(store, lambda: pytest.fail("reported"))
    store.close()
    again = open_store(tmp_path, make)
    assert len(list(again.scan(0))) == 2
    again.close()
