"""The columns of slots: which partition, which slot, and whether it was owned at that place."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quorate.keyvalue.slots.hashing import key_slot
from quorate.pipeline.source.logs import open_log
from quorate.pipeline.source.options import parse_options
from quorate.pipeline.source.owned import OwnedSlots
from quorate.pipeline.source.readers import Reader, StreamReader
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    Batch,
    one_each,
    pipeline,
    shorten_log,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["key", "partition", "slot", "owner_epoch"]
A, B = key_slot(b"a"), key_slot(b"b")


def write_partition(directory: Path) -> list[Batch]:
    """Write the log of a partition that founds the slot of "a", gives it away, and gets it back."""
    lines = [
        "SET a refused",
        f"QUORATE.SLOTS FOUND {A}",
        *["SET a 1", "SET b refused"] * 100,
        f"QUORATE.SLOTS FREEZE 3 {A} 1",
        "SET a frozen",
        "QUORATE.SLOTS RELEASE 3 1 1",
        "SET a refused",
        "SET {a}x refused",
        f"QUORATE.SLOTS IMPORT 4 {A}",
        "QUORATE.SLOTS CHUNK 4 1 a 2 0 55 1",
        f"QUORATE.SLOTS OWN 4 99 {BEGAN_MS} 2",
        "SET a 3",
    ]
    # One batch has several entries, and a slot changes its owner in the middle of it.
    batches = [
        Batch(tuple(map(pipeline, lines[at : at + 5])), BEGAN_MS + at)
        for at in range(0, len(lines), 5)
    ]
    write_log(directory, [*batches, Batch((b"",), BEGAN_MS + 999)], cluster="orders.p1")
    return batches


def rows_of(directory: Path, **options: str) -> list[dict[str, Any]]:
    reader = Reader(parse_options({"path": str(directory), **options}), NAMES)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist() if row["key"] is not None]


def test_a_row_says_whether_the_partition_owned_the_slot_of_its_key(tmp_path: Path) -> None:
    write_partition(tmp_path)
    for partitions in "1", "3":
        rows = rows_of(tmp_path, partitions=partitions)
        assert {row["partition"] for row in rows} == {1}
        assert [(row["slot"], row["owner_epoch"]) for row in rows] == [
            (A, None),
            *[(A, 1), (B, None)] * 100,
            (A, 1),  # frozen, which is owned
            (A, None),
            (A, None),
            (A, None),  # the copy
            (A, 3),
        ]


def test_a_log_of_no_partition_has_nothing_about_slots(tmp_path: Path) -> None:
    write_log(tmp_path, one_each(["SET a 1", "SET b 2"], per_batch=1))
    assert rows_of(tmp_path) == [dict.fromkeys(NAMES) | {"key": b"a"}]


def test_a_stream_knows_the_slots_where_it_goes_on(tmp_path: Path) -> None:
    write_partition(tmp_path)
    with open_log(tmp_path) as log:
        ends = [0, *(end for _, end in log.cut(0, log.facts.committed, 3))]
        offsets = [{"term": log.term_before(end), "position": end} for end in ends]
        at_once = OwnedSlots(log, 0).between(log, ends[1], ends[-1])
    reader = StreamReader(parse_options({"path": str(tmp_path)}), NAMES)
    parts = [part for two in pairwise(offsets) for part in reader.partitions(*two)]
    batches = (batch for part in parts for batch in reader.read(part))
    rows = [row for batch in batches for row in batch.to_pylist() if row["key"] is not None]
    assert rows == rows_of(tmp_path)
    again = StreamReader(parse_options({"path": str(tmp_path)}), NAMES)
    (part,) = again.partitions(offsets[1], offsets[-1])
    assert part.owned == at_once


def test_behind_a_snapshot_the_slots_are_known_from_it(tmp_path: Path) -> None:
    batches = write_partition(tmp_path)
    shorten_log(tmp_path, batches, 10, cluster="orders.p1")
    rows = rows_of(tmp_path)
    assert (rows[0]["slot"], rows[-1]["slot"], rows[-1]["owner_epoch"]) == (A, A, 3)
    assert {row["owner_epoch"] for row in rows if row["slot"] == A} == {1, None, 3}
    for options in {"table": "snapshot"}, {"snapshot": "first"}:
        first = rows_of(tmp_path, **options)[0]
        assert first == {"key": b"a", "partition": 1, "slot": A, "owner_epoch": 1}
