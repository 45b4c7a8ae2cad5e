"""The code that Spark's tasks run for :mod:`.versions`: Arrow batches in, Arrow batches out.

The size of a batch and the keys of one shard bound a task's memory. The number of commands in an
entry and the length of values do not matter. Three rules ensure that:

- A payload is never repeated. An entry has one payload and up to thousands of commands, so the row
  of a command copies only the other columns of its entry.
- Rows leave in batches of bounded bytes (:mod:`.bounded`), and are made as the batches leave. A
  short command may make a long row: ``APPEND key x`` ends a version of up to 32 MiB.
- Shards are applied one after the other, and only one is in memory.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ..payloads.bounded import gathered
from ..spark.worker import settle
from .replay import Machine, Sizes, keys_coupled, pieces, shard_of, sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .replay import Piece, Version

    _Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    _Placed: TypeAlias = tuple[int, int, int, Piece]  # row of the entry, shard, number, piece

__all__ = [
    "BEFORE",
    "EXECUTED",
    "PIECE",
    "PLACE",
    "SIZES",
    "VERSION",
    "apply_rows",
    "coupled_rows",
    "ddl_of",
]
__all__ += ["piece_rows", "size_rows"]

BEFORE: Final = -1
"""The position of versions from before this part of the log."""

PIECE: Final = {
    "shard": pa.int32(),
    "key": pa.binary(),
    "term": pa.int64(),
    "position": pa.int64(),
    "entry": pa.int32(),
    "number": pa.int32(),
    "timestamp_ms": pa.int64(),
    "flags": pa.int32(),
    "payload": pa.binary(),
    "expires_ms": pa.int64(),
    "revision": pa.int64(),
    "change": pa.int32(),
    "valid_from": pa.int64(),
    "moved_in": pa.bool_(),
}
PLACE: Final = ("shard", "position", "entry", "number")
"""The order in which pieces are applied."""

EXECUTED: Final = "executed"
"""Column of entries that may have been executed in part: of how many commands; null for all."""

VERSION: Final = {
    "key": pa.binary(),
    "revision": pa.int64(),
    "change": pa.int32(),
    "value": pa.binary(),
    "tag": pa.int32(),
    "expires_ms": pa.int64(),
    "valid_from": pa.int64(),
    "from_ms": pa.int64(),
    "valid_to": pa.int64(),
    "to_ms": pa.int64(),
    "moved_in": pa.bool_(),
    "moved_out": pa.bool_(),
    "hidden": pa.bool_(),
}
SIZES: Final = "longest bigint, appended bigint, stamped boolean"

_OF_ENTRY: Final = ["term", "position", "entry", "timestamp"]
"""Columns that each piece copies from its entry."""

_SQL: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
}


def ddl_of(columns: dict[str, pa.DataType]) -> str:
    """Return a schema as Spark's SQL writes it."""
    return ", ".join(f"`{name}` {_SQL[kind]}" for name, kind in columns.items())


def _commands(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, int]]:
    """Yield row, payload and flags of each entry."""
    payloads, flags = batch["payload"].to_pylist(), batch["flags"].to_pylist()
    for at, (payload, flag) in enumerate(zip(payloads, flags, strict=True)):
        yield at, payload, flag


def size_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return bounds on values, and whether there are commands of sessions: rows of `SIZES`."""
    settle()
    known, stamped = Sizes(), False
    for batch in batches:
        stamped |= bool(batch["session"].to_numpy().any())
        for _at, payload, _flags in _commands(batch):
            known |= sizes(payload)
    yield pa.record_batch(
        {"longest": [known.longest], "appended": [known.appended], "stamped": [stamped]}
    )


def coupled_rows(bound: int) -> _Task:
    """Return a task that finds the keys of coupled entries; its rows are ``key``."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        keys: set[bytes] = set()
        for batch in batches:
            for _at, payload, flags in _commands(batch):
                keys |= keys_coupled(payload, flags, bound)
        for found in gathered(sorted(keys), len):
            yield pa.record_batch({"key": pa.array(found, pa.binary())})

    return rows


def piece_rows(bound: int, shards: int) -> _Task:
    """Return a task that splits entries into pieces; its rows are `PIECE`."""

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            entries = batch.select(_OF_ENTRY)
            for found in gathered(_placed(batch, bound, shards), _piece_bytes):
                yield _as_pieces(entries, found)

    return rows


def _placed(batch: pa.RecordBatch, bound: int, shards: int) -> Iterator[_Placed]:
    """Yield each piece of each entry, once for each shard that applies it."""
    some = EXECUTED in batch.schema.names
    executed = batch[EXECUTED].to_pylist() if some else [None] * batch.num_rows
    for at, payload, flags in _commands(batch):
        for number, piece in enumerate(pieces(payload, flags, bound, executed[at])):
            if piece.everywhere:
                for shard in range(shards + 1):
                    yield at, shard, number, piece
            else:
                yield at, 0 if piece.key is None else shard_of(piece.key, shards), number, piece


def _piece_bytes(placed: _Placed) -> int:
    piece = placed[3]
    return len(piece.key or b"") + len(piece.payload)


def _as_pieces(entries: pa.RecordBatch, found: list[_Placed]) -> pa.RecordBatch:
    """Return pieces as rows. `entries` has no payloads: its rows are repeated for each piece."""
    places, shard, numbers, those = zip(*found, strict=True)
    rows = entries.take(pa.array(places, pa.int64()))
    nothing = pa.nulls(len(places))
    columns = {
        "shard": shard,
        "key": [piece.key for piece in those],
        "term": rows["term"],
        "position": rows["position"],
        "entry": rows["entry"],
        "number": numbers,
        "timestamp_ms": rows["timestamp"].cast(pa.int64()).to_numpy() // 1000,
        "flags": [piece.flags for piece in those],
        "payload": [piece.payload for piece in those],
    }
    made = [_array(columns.get(name, nothing), kind) for name, kind in PIECE.items()]
    return pa.RecordBatch.from_arrays(made, names=list(PIECE))


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


def apply_rows(note: bytes | None) -> _Task:
    """Return a task that applies the pieces of some shards; its rows are `VERSION`.

    Pieces arrive shard by shard, in order.

    Args:
        note: see `Machine`.
    """

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for found in gathered(_versions(batches, note), _version_bytes):
            columns = zip(*found, strict=True)
            pairs = zip(columns, VERSION.values(), strict=True)
            made = [pa.array(each, kind) for each, kind in pairs]
            yield pa.RecordBatch.from_arrays(made, names=list(VERSION))

    return rows


def _version_bytes(version: Version) -> int:
    return len(version[0]) + len(version[3])


def _versions(batches: Iterable[pa.RecordBatch], note: bytes | None) -> Iterator[Version]:
    """Yield versions as they end, and at the end of each shard those that have not ended."""
    machine, shard = Machine(note), -1
    for batch in batches:
        for row in batch.to_pylist():
            if row["shard"] != shard:
                yield from machine.still_open()
                machine, shard = Machine(note), row["shard"]
            if row["position"] == BEFORE:
                _load(machine, row)
                continue
            machine.apply(
                row["payload"],
                row["flags"],
                term=row["term"],
                position=row["position"],
                index=row["entry"],
                timestamp_ms=row["timestamp_ms"],
            )
            yield from machine.take_ended()
    yield from machine.still_open()


def _load(machine: Machine, row: dict[str, Any]) -> None:
    machine.load(
        row["key"],
        (row["payload"], row["expires_ms"], row["revision"], row["flags"]),
        change=row["change"],
        position=row["valid_from"],
        timestamp_ms=row["timestamp_ms"],
        moved_in=bool(row["moved_in"]),
    )
