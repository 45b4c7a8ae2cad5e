"""Notes: rows that are not keys, as durable as keys, and untouched by anything done to keys."""

from pathlib import Path

import lmdb
import pytest
import trio
from trio.abc import Clock

from quorate.errors import StorageError
from quorate.storage.tables.tables import Tables
from quorate.storage.tools.verify_tables import verify_tables
from tests.support.storage_world import running
from tests.support.tables_world import Disk, contents, open_tables, record


async def test_notes_are_those_of_exactly_the_flushed_position(tmp_path: Path) -> None:
    disk = Disk()
    tables = open_tables(tmp_path, disk)
    async with running(tables):
        tables.put_note(b"a", b"1")
        tables.put_note(b"b", b"1")
        tables.advance(320, 5000)
        await tables.flush()
        tables.put_note(b"a", b"2")
        tables.delete_note(b"b")
        tables.advance(640, 6000)
        assert dict(tables.notes.rows) == {b"a": b"2"}
        disk.cut_power()
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, dict(again.notes.rows)) == (320, {b"a": b"1", b"b": b"1"})
        again.delete_note(b"b")
        again.advance(640, 6000)
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, dict(again.notes.rows)) == (640, {b"a": b"1"})


async def test_a_flush_amidst_a_batch_waits_for_its_end_if_only_a_note_has_changed(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    disk = Disk()
    async with running(open_tables(tmp_path, disk)) as tables:
        tables.advance(320, 5000)
        tables.put_note(b"a", b"1")
        with trio.move_on_after(60) as waited:
            await tables.flush()
        assert waited.cancelled_caught
        assert tables.position == 0
        tables.advance(640, 5000)
        await tables.flush()
        assert tables.position == 640


async def test_a_note_alone_is_flushed_after_the_interval(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put_note(b"a", b"1")
        tables.advance(320, 5000)
        await trio.sleep(60)
        assert tables.position == 320


async def test_nothing_about_keys_sees_them(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put_note(b"a", b"1")
        tables.put(b"b", record(b"1"))
        tables.advance(320, 5000)
        await tables.flush()
        assert (len(tables), contents(tables)) == (1, {b"b": b"1"})
        tables.clear()
        tables.advance(640, 5000)
        await tables.flush()
        assert (len(tables), dict(tables.notes.rows)) == (0, {b"a": b"1"})
    async with running(open_tables(tmp_path)) as again:
        assert dict(again.notes.rows) == {b"a": b"1"}
        again.reset()
        assert dict(again.notes.rows) == {}


async def saved(tables: Tables) -> list[bytes]:
    return list(await tables.save())


async def test_a_snapshot_has_them_even_under_the_name_of_a_key(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        one.put(b"same", record(b"1"))
        one.put_note(b"same", b"kept")
        one.put_note(b"other", bytes(5000))
        one.advance(320, 5000)
        pieces = await saved(one)
        rows = dict(one.notes.rows)
    async with running(open_tables(tmp_path / "b")) as other:
        other.put_note(b"of before", b"1")
        other.advance(10, 1)
        await other.load(iter(pieces), 320, 5000)
        assert dict(other.notes.rows) == rows == {b"same": b"kept", b"other": bytes(5000)}
        assert contents(other) == {b"same": b"1"}
        assert await saved(other) == pieces


async def test_a_damaged_note_is_an_error_and_a_finding(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put_note(b"a", b"value-AAAAAAAA")
        tables.advance(320, 0)
    assert verify_tables(tmp_path).findings == ()
    file = tmp_path / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"value-AAAA", b"value-AZAA"))
    assert verify_tables(tmp_path).findings == ("note b'a' is damaged: its checksum differs",)
    with pytest.raises(StorageError, match="note b'a' is damaged"):
        open_tables(tmp_path)


async def test_tables_of_a_version_without_notes_get_them(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 0)
    with lmdb.open(str(tmp_path), max_dbs=4) as raw:
        notes = raw.open_db(b"notes")
        with raw.begin(write=True) as txn:
            txn.drop(notes)
    async with running(open_tables(tmp_path)) as tables:
        assert contents(tables) == {b"a": b"1"}
        tables.put_note(b"b", b"2")
        tables.advance(640, 0)
    assert verify_tables(tmp_path).findings == ()
