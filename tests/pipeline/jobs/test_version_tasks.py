"""What a task of Spark's holds in memory has bounds, however many commands an entry has."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from quorate.keyvalue.protocol.payload import IN_PARTS
from quorate.keyvalue.protocol.resp import encode_command
from quorate.pipeline.jobs.version_tasks import PIECE, apply_rows, coupled_rows, piece_rows
from quorate.pipeline.payloads import bounded
from quorate.pipeline.payloads.bounded import BATCH_BYTES, BATCH_ROWS, gathered
from quorate.pipeline.source.decode import decode
from quorate.pipeline.source.logs import open_log
from quorate.pipeline.source.snapshots import snapshot_table
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, one_each, shorten_log, write_log

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import pytest

COMMANDS = 1000
ENTRIES = 10


@contextmanager
def own_pool() -> Generator[pa.MemoryPool]:
    """What Arrow allocates in the block is counted on its own."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)


def long_pipelines() -> pa.RecordBatch:
    """Entries of a thousand commands, as clients' pipelines make them."""
    payloads = [
        b"".join(encode_command([b"SET", b"key:%d" % n, b"%d" % at]) for n in range(COMMANDS))
        for at in range(ENTRIES)
    ]
    batches = [Batch((payload,), BEGAN_MS, 0, IN_PARTS) for payload in payloads]
    found = decode(encoded(batches), "entries")
    return found.filter(pc.field("kind") == "COMMAND")


def test_a_payload_is_not_repeated_for_its_commands() -> None:
    entries = long_pipelines()
    size = sum(len(payload) for payload in entries["payload"].to_pylist())
    with own_pool() as pool:
        rows = 0
        for batch in piece_rows(5120, 32)([entries]):
            assert batch.num_rows <= BATCH_ROWS
            rows += batch.num_rows
            del batch
        assert pool.max_memory() < 8 * size
    assert rows == COMMANDS * ENTRIES


def test_short_commands_that_make_long_values_leave_in_bounded_batches() -> None:
    longest = 4 << 20
    commands = [encode_command([b"SET", b"k", b"x" * longest])]
    commands += [encode_command([b"SETRANGE", b"k", b"%d" % at, b"y"]) for at in range(20)]
    rows = [
        dict.fromkeys(PIECE, 0)
        | {"key": b"k", "position": 32 * at, "payload": payload, "moved_in": False}
        for at, payload in enumerate(commands)
    ]
    pieces = pa.RecordBatch.from_pylist(rows, schema=pa.schema(PIECE))
    found = 0
    with own_pool() as pool:
        for batch in apply_rows(None)([pieces]):
            assert batch.nbytes < BATCH_BYTES + 2 * longest
            found += batch.num_rows
            del batch
        assert pool.max_memory() < 4 * BATCH_BYTES
    assert found == len(commands)


def test_rows_are_gathered_up_to_either_bound() -> None:
    assert [len(one) for one in gathered(range(2 * BATCH_ROWS + 1), lambda _one: 1)] == [
        BATCH_ROWS,
        BATCH_ROWS,
        1,
    ]
    assert [len(one) for one in gathered(range(5), lambda _one: BATCH_BYTES // 2)] == [2, 2, 1]
    assert list(gathered([1], lambda _one: 4 * BATCH_BYTES)) == [[1]]
    assert list(gathered([], len)) == []


def test_coupled_keys_and_snapshots_leave_in_bounded_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "BATCH_BYTES", 20)
    batches = one_each([f"SET k{i:02d} {'v' * 10}" for i in range(20)])
    write_log(tmp_path, batches)
    shorten_log(tmp_path, batches, 1)
    with open_log(tmp_path) as log:
        rows = [one.num_rows for one in snapshot_table(log, ["key", "value"], 1 << 40)]
    assert rows == [2] * 5
    payload = encode_command(
        [b"MSETNX", *(word for i in range(10) for word in (b"key-%d" % i, b""))]
    )
    entry = {"payload": [payload], "flags": [0]}
    rows = [one.num_rows for one in coupled_rows(5120)([pa.record_batch(entry)])]
    assert rows == [4, 4, 2]
