"""All partitions together: the state of each key is its owner's, over a move of slots."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from quorate.cli.app import run
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import ALL_SLOTS
from quorate.pipeline.jobs.export import exported_tables, follow_each
from quorate.pipeline.jobs.page import render_whole
from quorate.pipeline.jobs.report import report_whole
from quorate.pipeline.jobs.versions import from_snapshot
from quorate.pipeline.jobs.whole import cut_at
from quorate.storage import decode_header_untrusted
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, pipeline, shorten_log, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate.pipeline.source.logs import Origin

A, B, C = (key_slot(tag) for tag in (b"a", b"b", b"c"))
FROZEN = 5.0
OWNED = 7.0
RELEASED = 8.0


def batches(*lines: tuple[float, str]) -> list[Batch]:
    """One batch for each command, at so many seconds."""
    return [Batch((pipeline(line),), BEGAN_MS + int(1000 * at)) for at, line in lines]


def source() -> list[Batch]:
    """The log of partition 0, which gives the slot of "a" away."""
    return batches(
        (0, f"QUORATE.SLOTS FOUND {min(A, B)},{max(A, B)}"),
        (1, "SET {a} old"),
        (1, "SET {b} b"),
        (FROZEN, f"QUORATE.SLOTS FREEZE 7 {A} 1"),
        (RELEASED, "QUORATE.SLOTS RELEASE 7 1 1"),
        (9, "SET {b} later"),
        (10, "SET x 1"),  # so that what comes before is known to be committed
    )


def target(owned: float = OWNED) -> list[Batch]:
    """The log of partition 1, which takes the slot over at so many seconds."""
    written, frozen = (decode_header_untrusted(encoded(source())[at]).position + 1 for at in (1, 3))
    return batches(
        (0, f"QUORATE.SLOTS FOUND {C}"),
        (1, "SET {c} c"),
        (3, f"QUORATE.SLOTS IMPORT 7 {A}"),
        (4, f"QUORATE.SLOTS CHUNK 7 1 {{a}} old 0 {written} 1"),
        (4, "SET {a} refused"),
        (owned, f"QUORATE.SLOTS OWN 7 {frozen} {BEGAN_MS} 1"),
        (9, "SET {a} new"),
        (10, "SET x 1"),
    )


def write_both(directory: Path, *, owned: float = OWNED, known: int | None = None) -> None:
    """Write both logs; of the target's only so many batches."""
    write_log(directory / "partition-0", source(), cluster="orders.p0")
    write_log(directory / "partition-1", target(owned)[:known], cluster="orders.p1")


def origins(directory: Path) -> dict[int, Origin]:
    return {number: directory / f"partition-{number}" for number in range(2)}


def moment(seconds: float) -> int:
    return BEGAN_MS + int(1000 * seconds)


@pytest.mark.parametrize(
    ("seconds", "owner"), [(2, 0), (FROZEN, 0), (OWNED, 1), (RELEASED, 1), (None, 1)]
)
def test_a_slot_is_that_of_its_latest_owner(
    tmp_path: Path, seconds: float | None, owner: int
) -> None:
    write_both(tmp_path)
    cut = cut_at(origins(tmp_path), None if seconds is None else moment(seconds))
    assert [part.slots >> A & 1 for part in cut.parts.values()] == [1 - owner, owner]
    assert cut.missing == ALL_SLOTS & ~(1 << A | 1 << B | 1 << C)


def test_slots_that_were_given_up_are_looked_for_behind_the_cut(tmp_path: Path) -> None:
    write_both(tmp_path, owned=RELEASED + 0.5)  # the clock of the target's leader was ahead
    cut = cut_at(origins(tmp_path), moment(RELEASED))
    assert cut.parts[1].slots >> A & 1
    assert cut.parts[1].at.timestamp_ms == moment(RELEASED + 0.5)


def test_slots_without_an_owner_are_missing(tmp_path: Path) -> None:
    write_both(tmp_path, known=5)
    assert cut_at(origins(tmp_path)).missing >> A & 1


@pytest.mark.spark
def test_the_state_of_all_partitions_is_shown(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.session.open_session", lambda **_: nullcontext(spark))
    write_both(tmp_path / "rec")
    at = datetime.fromtimestamp(moment(OWNED) / 1000, UTC).isoformat()  # both own the slot of "a"
    assert run(["pipeline", "state", str(tmp_path / "rec"), "--at", at]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("{")] == [
        ["{a}", "old", "1"],
        ["{b}", "b", "0"],
        ["{c}", "c", "1"],
    ]
    assert "NOT THERE: slots 0-" in out
    for words in ["--at", "100"], ["--snapshot", str(tmp_path / "s")]:
        assert run(["pipeline", "state", str(tmp_path / "rec"), *words]) == 64
        assert "it is of one log: expected the directory of one member" in capsys.readouterr().err


@pytest.mark.spark
def test_what_moved_counts_where_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    write_both(tmp_path)
    logs = {f"orders.p{number}": origin for number, origin in origins(tmp_path).items()}
    found = report_whole(spark, logs)
    keys = {bytes(row["name"]): row["commands"] for row in found.keys.collect()}
    assert keys == {b"{a}": 3, b"{b}": 2, b"{c}": 1}  # one was refused
    page = render_whole(found)
    assert "Cluster orders: the logs of 2 partitions" in page
    assert '<a href="orders.p1/report.html">' in page


@pytest.mark.spark
def test_tables_show_a_move_as_a_move(spark: SparkSession, tmp_path: Path) -> None:
    logs = {f"orders.p{number}": origin for number, origin in origins(tmp_path).items()}
    write_both(tmp_path, known=5)
    rounds = follow_each(spark, logs, tmp_path / "to")
    (_, first), (_, second) = islice(rounds, 2)
    assert (first.current, second.current) == (1, 1)  # nobody has seen the copy yet
    write_both(tmp_path)
    assert next(rounds)[0] == "orders.p1"
    found = [
        tuple(row)
        for name in logs
        for row in exported_tables(spark, tmp_path / "to" / name)["kv_history"]
        .where("key = '{a}'")
        .selectExpr(
            "string(value)",
            f"double(unix_millis(valid_from_time) - {BEGAN_MS}) / 1000",
            f"double(unix_millis(valid_to_time) - {BEGAN_MS}) / 1000",
            "moved_in",
            "moved_out",
        )
        .orderBy("valid_from")
        .collect()
    ]
    assert found == [
        ("old", 1.0, RELEASED, False, True),
        ("old", OWNED, 9.0, True, False),
        ("new", 9.0, None, False, False),
    ]
    log = exported_tables(spark, tmp_path / "to" / "orders.p1")["log"]
    rows = log.where(f"slot = {A}").selectExpr("partition", "string(value)", "owner_epoch")
    assert [tuple(row) for row in rows.orderBy("position").collect()] == [
        (1, "old", None),
        (1, "refused", None),
        (1, "new", 2),
    ]
    # The snapshot does not say where its rows are from; their revisions do.
    at = shorten_log(tmp_path / "partition-1", target(), 6, cluster="orders.p1")
    those = from_snapshot(spark, tmp_path / "partition-1", at).select("key", "moved_in").collect()
    assert {bytes(row[0]): row[1] for row in those} == {b"{a}": True, b"{c}": False}
