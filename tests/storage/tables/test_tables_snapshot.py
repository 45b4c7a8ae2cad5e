"""Tables as a stream: cut while they change, equal for equal states, taken whole or not."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import StorageError
from quorate.storage.tables import loader
from quorate.storage.tables.disk import tables_position
from quorate.storage.tables.stream import PIECE_BYTES
from quorate.storage.tables.tables import REST
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import running
from tests.support.tables_world import Disk, contents, open_tables, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.storage.tables.tables import Tables

LARGE = bytes(3 * PIECE_BYTES + 17)


def fill(tables: Tables, count: int = 3000) -> None:
    for i in range(count):
        tables.put(b"key-%05d" % i, record(b"%d" % i, 0 if i % 10 else 10_000 + i))
    tables.put(b"x" * 700, record(b"hashed", 99_999))
    tables.put(b"", record(b"empty"))
    tables.put(b"large", record(LARGE))
    tables.advance(count, 5)


async def saved(tables: Tables) -> Iterator[bytes]:
    return await tables.save()


async def test_what_was_saved_is_loaded_elsewhere(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        fill(one)
        pieces = list(await saved(one))
        assert max(map(len, pieces)) == PIECE_BYTES
        async with running(open_tables(tmp_path / "b")) as other:
            other.put(b"of before", record(b"1", 77))
            other.advance(10, 1)
            await other.flush()
            other.put(b"not flushed", record(b"1", 77))
            await other.load(iter(pieces), 4000, 6)
            assert contents(other) == contents(one)
            assert len(other) == len(one)
            assert other.deadlines.by_key == one.deadlines.by_key
            assert (other.position, other.timestamp_ms) == (4000, 6)
            other.put(b"more", record(b"1"))
            other.advance(4100, 7)
            assert list(await saved(other)) != pieces
    async with running(open_tables(tmp_path / "b")) as other:
        assert other.position == 4100
        assert other.get(b"large") == record(LARGE)
        assert other.get(b"x" * 700) == record(b"hashed", 99_999)


async def test_equal_tables_give_equal_streams_however_they_came_about(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        fill(one)
        async with running(open_tables(tmp_path / "b")) as other:
            for i in reversed(range(5000)):
                other.put(b"key-%05d" % i, record(b"old"))
            other.advance(1, 1)
            await other.flush()
            for i in range(3000, 5000):
                other.delete(b"key-%05d" % i)
            fill(other)
            assert list(await saved(one)) == list(await saved(other))


async def test_a_key_that_is_due_and_not_deleted_yet_is_due_after_a_load(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        one.put(b"due", record(b"1", 5))
        one.advance(320, 9)
        pieces = list(await saved(one))
    async with running(open_tables(tmp_path / "b")) as other:
        await other.load(iter(pieces), 320, 9)
        assert other.deadlines.due(9, 10) == [b"due"]
        assert other.get(b"due") == record(b"1", 5)


async def test_the_stream_is_that_of_the_cut_whatever_is_written_meanwhile(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path, Disk(latency=0.1))) as tables:
        fill(tables)
        expected = list(await saved(tables))
        pieces: list[Iterator[bytes]] = []

        async def save(*, task_status: trio.TaskStatus[None]) -> None:
            pieces.append(await tables.save(task_status=task_status))

        async with trio.open_nursery() as nursery:
            await nursery.start(save)
            assert not pieces  # cut, and not flushed yet
            tables.clear()
            tables.put(b"key-00001", record(b"changed"))
            tables.advance(4000, 6)
        found = list(islice(pieces[0], 1))
        await tables.flush()
        assert found + list(pieces[0]) == expected


async def test_a_cut_waits_for_the_flush_that_is_under_way(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path, Disk(latency=1.0))) as tables:
        fill(tables)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.flush)
            await trio.sleep(0.5)
            began = trio.current_time()
            await nursery.start(tables.save)
            assert trio.current_time() - began == pytest.approx(0.5)


async def test_a_file_that_must_grow_ends_the_view_and_not_the_tables(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        fill(tables)
        pieces = await saved(tables)
        next(pieces)
        for i in range(12):  # far more than the room that was made for the time of a snapshot
            tables.put(b"large-%d" % i, record(bytes(32 << 20)))
            tables.advance(5000 + i, 6)
            await tables.flush()
        with pytest.raises(StorageError, match="had to grow"):
            for _ in pieces:
                pass
        assert tables.get(b"key-00001") == record(b"1")


@pytest.mark.parametrize("patient", [False, True])
async def test_patient_tables_rest_between_the_steps_of_a_load(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, patient: bool
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        fill(one)
        pieces = list(await saved(one))

    async def slow(_: object, step: Callable[[], object]) -> object:
        await trio.sleep(1)
        return step()

    monkeypatch.setattr(InlineExecutor, "read", slow)
    monkeypatch.setattr(loader, "_STEP_BYTES", 10_000)
    async with running(open_tables(tmp_path / "b")) as other:
        other.patient = patient
        began = trio.current_time()
        await other.load(iter(pieces), 4000, 6)
        took = trio.current_time() - began
        assert other.get(b"large") == record(LARGE)
    steps = (took + REST) / (1 + REST) if patient else took
    assert steps == pytest.approx(round(steps))
    assert steps >= 2


async def test_a_load_grows_the_file_as_far_as_it_needs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        for i in range(40):
            one.put(b"%d" % i, record(bytes(1 << 20)))
        one.advance(1, 1)
        pieces = list(await saved(one))
        async with running(open_tables(tmp_path / "b", map_bytes=1 << 20)) as other:
            await other.load(iter(pieces), 1, 1)
            assert contents(other) == contents(one)


async def test_tables_that_were_not_loaded_to_the_end_are_empty_when_they_are_opened(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        for i in range(40):
            one.put(b"%d" % i, record(bytes(1 << 20)))
        one.advance(1, 1)
        pieces = list(await saved(one))
    async with running(open_tables(tmp_path / "a")) as one:
        with pytest.raises(StorageError, match="ends early"):
            await one.load(iter(pieces[:-3]), 9, 9)
    assert tables_position(tmp_path / "a") == 0
    async with running(open_tables(tmp_path / "a")) as one:
        assert contents(one) == {}
        assert one.position == 0
        await one.load(iter(pieces), 9, 9)
        assert len(one) == 40
    assert tables_position(tmp_path / "a") == 9


@pytest.mark.parametrize("at", [0, 1, 4, 5, 12, 13, 20])
async def test_a_stream_that_makes_no_sense_is_refused(
    tmp_path: Path, autojump_clock: MockClock, at: int
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        fill(one, 10)
        stream = bytearray(b"".join(await saved(one)))
    stream[at] ^= 0xFF
    async with running(open_tables(tmp_path / "b")) as other:
        with pytest.raises(StorageError):
            await other.load(iter([bytes(stream)]), 9, 9)
