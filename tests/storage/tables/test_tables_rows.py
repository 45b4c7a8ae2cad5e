"""A row of the tables that is not what was written is never used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import StorageError
from quorate.storage.lmdb.checksum import crc32c
from quorate.storage.lmdb.file_check import DATA_FILE
from quorate.storage.tables import flush, rows, view
from quorate.storage.tables.memtable import stored_key
from quorate.storage.tables.rows import (
    NATIVE,
    decode_deadline_untrusted,
    decode_record_untrusted,
    encode_deadline,
    encode_record,
    encode_rows,
    hashed_key_untrusted,
    unchecked_rows,
)
from quorate.storage.tables.stream import records_untrusted
from quorate.storage.tables.tables import Tables
from quorate.storage.tools.verify_tables import verify_tables
from quorate.storage.writing.group_commit import InlineExecutor
from tests.support.storage_world import flipped, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from quorate.storage.tables.memtable import Record

needs_native = pytest.mark.skipif(not NATIVE, reason="storage/tables/rows.c was not compiled")
U63 = st.integers(0, (1 << 63) - 1)
keys = st.one_of(st.binary(max_size=20), st.binary(min_size=470, max_size=600))
records = st.tuples(st.binary(max_size=50), U63, U63, st.integers(0, 255))


@given(keys, records)
def test_what_was_encoded_comes_back(key: bytes, record: tuple[bytes, int, int, int]) -> None:
    data = encode_record(key, record)
    assert decode_record_untrusted(key, data) == record
    assert decode_deadline_untrusted(stored_key(key), encode_deadline(key, 7)) == (key, 7)
    if stored_key(key) != key:
        assert hashed_key_untrusted(stored_key(key), data) == key


@given(keys, records, st.data())
def test_another_bit_or_length_or_key_is_noticed(
    key: bytes, record: tuple[bytes, int, int, int], draw: st.DataObject
) -> None:
    rows = encode_record(key, record), encode_deadline(key, 1 + record[1])
    for row, decode in zip(rows, (_record, _deadline), strict=True):
        at = draw.draw(st.integers(0, len(row) - 1))
        bit = draw.draw(st.integers(0, 7))
        for broken in (flipped(row, at, bit), row[:at], row + b"x"):
            with pytest.raises(StorageError, match="damaged"):
                decode(key, broken)
        with pytest.raises(StorageError, match="damaged"):
            decode(key + b"x", row)


def _record(key: bytes, row: bytes) -> object:
    return decode_record_untrusted(key, row)


def _deadline(key: bytes, row: bytes) -> object:
    return decode_deadline_untrusted(stored_key(key), row)


async def test_a_damaged_value_is_an_error_and_a_finding(tmp_path: Path) -> None:
    def open_tables() -> Tables:
        return Tables.open(tmp_path, cluster="c", member_id=1, executor=InlineExecutor)

    async with running(open_tables()) as tables:
        for n in range(100):
            tables.put(b"key:%d" % n, (b"value-%d-AAAAAAAA" % n, 0, 1, 1))
        tables.advance(320, 0)
    assert verify_tables(tmp_path).findings == ()
    assert verify_tables(tmp_path).records == 100
    file = tmp_path / DATA_FILE
    file.write_bytes(file.read_bytes().replace(b"value-17-AAAA", b"value-17-AZAA"))
    assert verify_tables(tmp_path).findings == (
        "record of key b'key:17' is damaged: its checksum differs",
    )
    async with running(open_tables()) as tables:
        assert tables.get(b"key:18") == (b"value-18-AAAAAAAA", 0, 1, 1)
        with pytest.raises(StorageError, match="key:17"):
            tables.get(b"key:17")


@needs_native
@given(st.dictionaries(keys, st.none() | records, max_size=200))
def test_what_is_encoded_in_c_is_the_same(changes: dict[bytes, Record | None]) -> None:
    stored = [stored_key(key) for key in changes]
    rows, rest = encode_rows([*stored, b"of nothing"], changes, crc32c)
    usual = {
        key: encode_record(key, record)
        for key, record in changes.items()
        if record is not None and stored_key(key) == key
    }
    assert rows == [*usual.items()]
    assert rest == [one for one in stored if one not in usual] + [b"of nothing"]


@needs_native
@given(st.dictionaries(keys, records, max_size=20), st.data())
def test_what_is_checked_in_c_is_whole(changes: dict[bytes, Record], draw: st.DataObject) -> None:
    rows = [(stored_key(key), encode_record(key, record)) for key, record in changes.items()]
    hashed = [row for key, row in zip(changes, rows, strict=True) if row[0] != key]
    assert unchecked_rows(rows, crc32c) == hashed
    for n, (stored, row) in enumerate(rows):
        at, bit = draw.draw(st.integers(0, len(row) - 1)), draw.draw(st.integers(0, 7))
        for broken in ((stored, flipped(row, at, bit)), (stored, row[:at]), (stored + b"x", row)):
            found = unchecked_rows([*rows[:n], broken, *rows[n + 1 :]], crc32c)
            assert broken in found
            assert set(found) <= {broken, *hashed}


@needs_native
def test_checking_in_c_keeps_nothing() -> None:
    good, bad = (b"key", encode_record(b"key", (b"a value", 0, 1, 0))), (b"key", b"damaged" * 10)
    held: tuple[object, ...] = (good, bad, *good, *bad)
    before = [*map(sys.getrefcount, held)]
    for _ in range(100):
        assert len(unchecked_rows([good, bad], crc32c)) == 1
    assert [*map(sys.getrefcount, held)] == before


@needs_native
def test_encoding_in_c_keeps_nothing() -> None:
    key, value, revision = b"a key", b"a value" * 100, (1 << 62) + 1
    record = (value, 0, revision, 7)
    deleted = b"deleted"
    held: tuple[object, ...] = (key, value, revision, record, deleted)
    before = [*map(sys.getrefcount, held)]
    for _ in range(100):
        rows, rest = encode_rows([key, deleted], {key: record, deleted: None}, crc32c)
        counts = sys.getrefcount(rows[0]), sys.getrefcount(rows[0][1])
        assert counts == (2, 2)
        del rows, rest
    assert [*map(sys.getrefcount, held)] == before


@needs_native
def test_large_values_are_left_for_python_which_can_be_interrupted() -> None:
    changes: dict[bytes, Record | None] = {b"%d" % n: (bytes(n), 0, 1, 0) for n in (4095, 4096)}
    rows, rest = encode_rows([*changes], changes, crc32c)
    assert (len(rows), rest) == (1, [b"4096"])
    rows = [(key, encode_record(key, (bytes(int(key) - 21), 0, 1, 0))) for key in changes]
    assert unchecked_rows(rows, crc32c) == rows[1:]


@needs_native
def test_a_plain_key_is_not_taken_for_the_place_of_a_hashed_one() -> None:
    """Of 480 bytes is what LMDB has a hashed key under, and a key that a client has chosen."""
    for long in (b"", b"k" * 600):
        place = stored_key(long)
        changes: dict[bytes, Record | None] = {long: (b"1", 0, 1, 0), place: (b"2", 0, 2, 0)}
        assert encode_rows([place, b"", stored_key(place)], changes, crc32c) == (
            [],
            [place, b"", stored_key(place)],
        )


@needs_native
@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_a_checksum_has_32_bits(number: int) -> None:
    with pytest.raises(OverflowError, match=f"a checksum is {number}, expected 32 bits"):
        encode_rows([b"key"], {b"key": (b"", 0, 0, 0)}, lambda _data: number)


@needs_native
@pytest.mark.parametrize(
    ("record", "error"),
    [
        ((b"", -1, 0, 0), OverflowError),
        ((b"", 0, 1 << 64, 0), OverflowError),
        ((b"", 0, 0, 256), OverflowError),
        ((b"", 0, "1", 0), TypeError),
    ],
)
def test_encoding_in_c_refuses_what_is_no_record(record: Record, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_rows([b"good", b"key"], {b"good": (b"", 0, 0, 0), b"key": record}, crc32c)


@needs_native
def test_encoding_in_c_refuses_other_arguments() -> None:
    refused: list[tuple[Any, Any]] = [((b"",), {}), ([b""], None)]
    for stored, among in refused:
        with pytest.raises(TypeError):
            encode_rows(stored, among, crc32c)
    rows: Any = ((b"key", b"row"),)
    with pytest.raises(TypeError):
        unchecked_rows(rows, crc32c)
    rows = [(b"key",), b"row", ("key", b"row")]
    assert unchecked_rows(rows, crc32c) == rows

    text: Any = "key"
    assert encode_rows([text], {text: (b"", 0, 0, 0)}, crc32c) == ([], [text])

    def fail(_data: bytes) -> int:
        raise LookupError

    with pytest.raises(LookupError):
        encode_rows([b"key"], {b"key": (b"", 0, 0, 0)}, fail)
    with pytest.raises(LookupError):
        unchecked_rows([(b"key", bytes(40))], fail)


async def test_tables_are_whole_without_what_was_compiled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load_without: Callable[[ModuleType, str], ModuleType],
) -> None:
    module = load_without(rows, "quorate.storage.tables._rows")
    assert not module.NATIVE
    monkeypatch.setattr(flush, "encode_rows", module.encode_rows)
    monkeypatch.setattr(view, "unchecked_rows", module.unchecked_rows)

    async with running(
        Tables.open(tmp_path, cluster="c", member_id=1, executor=InlineExecutor)
    ) as tables:
        for n in range(1000):
            tables.put(b"key:%d" % n, (b"value-%d" % n, 0, 1, 1))
        tables.advance(320, 0)
        await tables.flush()
        tables.delete(b"key:7")
        tables.put(b"k" * 500, (b"of a long key", 0, 1, 1))
        tables.advance(640, 0)
        await tables.flush()
        assert len(tables) == 1000
        assert tables.get(b"key:7") is None
        assert tables.get(b"key:8") == (b"value-8", 0, 1, 1)
        assert tables.get(b"k" * 500) == (b"of a long key", 0, 1, 1)
        found = dict(records_untrusted(await tables.save()))
        assert found == {key: tables.get(key) for key in found}
        assert len(found) == 1000
    assert verify_tables(tmp_path).records == 1000
