"""Rows: too many to keep in memory as notes are, as durable as keys, and no keys themselves."""

# pyright: reportPrivateUsage=false

from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.abc import Clock

from quorate.errors import StorageError
from quorate.storage.tables.layers import LayeredTables
from quorate.storage.tools.verify_tables import verify_tables
from tests.support.storage_world import running
from tests.support.tables_world import Disk, contents, open_tables, record


async def test_rows_are_those_of_exactly_the_flushed_position(tmp_path: Path) -> None:
    disk = Disk()
    tables = open_tables(tmp_path, disk)
    async with running(tables):
        tables.put_row(b"a", b"1")
        tables.put_row(b"b", b"1")
        tables.advance(320, 5000)
        await tables.flush()
        tables.put_row(b"a", b"2")
        tables.delete_row(b"b")
        tables.delete_row(b"none")
        tables.advance(640, 6000)
        assert list(tables.all_rows()) == [(b"a", b"2")]
        assert [tables.get_row(key) for key in (b"a", b"b", b"none")] == [b"2", None, None]
        disk.cut_power()
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, list(again.all_rows())) == (320, [(b"a", b"1"), (b"b", b"1")])
        again.delete_row(b"b")
        again.advance(640, 6000)
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, list(again.all_rows())) == (640, [(b"a", b"1")])


async def test_clearing_all_keys_leaves_them_in_each_layer(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put_row(b"on disk", b"1")
        tables.advance(320, 5000)
        await tables.flush()
        tables.put_row(b"new", b"2")
        tables.put(b"key", record(b"1"))
        tables.clear()
        tables.advance(640, 5000)
        assert list(tables.all_rows()) == [(b"new", b"2"), (b"on disk", b"1")]
        await tables.flush()
        assert (len(tables), contents(tables)) == (0, {})
    async with running(open_tables(tmp_path)) as again:
        assert [key for key, _ in again.all_rows()] == [b"new", b"on disk"]
        again.reset()
        assert list(again.all_rows()) == []


async def test_a_snapshot_has_them(tmp_path: Path, autojump_clock: Clock) -> None:
    async with running(open_tables(tmp_path / "a")) as one:
        one.put_row(b"same", b"row")
        one.put_note(b"same", b"note")
        one.put(b"same", record(b"key"))
        one.put_row(b"large", bytes(300_000))
        one.advance(320, 5000)
        pieces = list(await one.save())
        rows = list(one.all_rows())
    async with running(open_tables(tmp_path / "b")) as other:
        other.put_row(b"of before", b"1")
        other.advance(10, 1)
        await other.load(iter(pieces), 320, 5000)
        assert list(other.all_rows()) == rows
        assert (contents(other), dict(other.notes.rows)) == ({b"same": b"key"}, {b"same": b"note"})
        assert list(await other.save()) == pieces


async def test_a_damaged_row_is_an_error_and_a_finding(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put_row(b"a", b"value-AAAAAAAA")
        tables.advance(320, 0)
    assert verify_tables(tmp_path).findings == ()
    file = tmp_path / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"value-AAAA", b"value-AZAA"))
    assert verify_tables(tmp_path).findings == ("note b'a' is damaged: its checksum differs",)
    tables = open_tables(tmp_path)
    with pytest.raises(StorageError, match="note b'a' is damaged"):
        tables.get_row(b"a")
    tables.close()


async def test_tables_of_a_version_without_rows_get_them(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 0)
    with lmdb.open(str(tmp_path), max_dbs=5) as raw:
        rows = raw.open_db(b"rows")
        with raw.begin(write=True) as txn:
            txn.drop(rows)
    async with running(open_tables(tmp_path)) as tables:
        assert contents(tables) == {b"a": b"1"}
        tables.put_row(b"b", b"2")
        tables.advance(640, 0)
    assert verify_tables(tmp_path).findings == ()


class _Disk:
    """As much of a disk as rows need."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.kept = rows

    def rows(self) -> list[tuple[bytes, bytes]]:
        return sorted(self.kept.items())

    def get_row(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    def deadlines(self) -> dict[bytes, int]:
        return {}

    notes = deadlines


_KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])


@given(st.dictionaries(_KEYS, st.just(b"0")), st.lists(st.tuples(_KEYS, st.booleans())))
def test_layers_read_as_one(below: dict[bytes, bytes], steps: list[tuple[bytes, bool]]) -> None:
    tables = LayeredTables(_Disk(dict(below)))  # type: ignore[arg-type]
    expected = dict(below)
    for number, (key, puts) in enumerate(steps):
        if number == len(steps) // 2:
            tables._frozen, tables._layer = tables._layer, type(tables._layer)()
        if puts:
            tables.put_row(key, b"%d" % number)
            expected[key] = b"%d" % number
        else:
            tables.delete_row(key)
            expected.pop(key, None)
    assert list(tables.all_rows()) == sorted(expected.items())
    assert {key: tables.get_row(key) for key in (b"a", b"b", b"c", b"d")} == {
        key: expected.get(key) for key in (b"a", b"b", b"c", b"d")
    }
