"""A row of the tables that is not what was written is never used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import StorageError
from quorate.storage.lmdb.file_check import DATA_FILE
from quorate.storage.tables.memtable import stored_key
from quorate.storage.tables.rows import (
    decode_deadline_untrusted,
    decode_record_untrusted,
    encode_deadline,
    encode_record,
    hashed_key_untrusted,
)
from quorate.storage.tables.stream import records_untrusted
from quorate.storage.tables.tables import Tables
from quorate.storage.testing import InlineExecutor
from quorate.storage.tools.verify_tables import verify_tables
from tests.support.storage_world import flipped, running

if TYPE_CHECKING:
    from pathlib import Path


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


async def test_tables_with_long_and_deleted_keys_are_whole(tmp_path: Path) -> None:
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
