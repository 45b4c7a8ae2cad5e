"""Logs that were pruned: what is told, and the snapshot in place of what is gone."""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from quorate.errors import ConfigurationError
from quorate.pipeline.jobs.export import exported_tables, follow
from quorate.pipeline.source.options import parse_options
from tests.pipeline.pipeline_world import one_each, shorten_log, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BATCHES = one_each([f"SET k{i % 10} v{i}" for i in range(80)], per_batch=5)
LAST = {b"k%d" % (i % 10): b"v%d" % i for i in range(75)}  # the last batch is not known committed


def current(frame: DataFrame) -> dict[bytes, bytes]:
    """What the commands leave, applied in their order."""
    rows = frame.where("operation = 'SET'").orderBy("position", "entry", "number").collect()
    return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def test_options_that_contradict_each_other_are_refused() -> None:
    assert parse_options({"path": "x", "snapshot": "first"}).snapshot_first
    for options in (
        {"snapshot": "last"},
        {"snapshot": "first", "table": "batches"},
        {"snapshot": "first", "startPosition": "5"},
    ):
        with pytest.raises(ConfigurationError, match="expected"):
            parse_options({"path": "x", **options})


@pytest.mark.spark
def test_what_is_pruned_is_told_and_the_snapshot_stands_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, sink, checkpoint = (tmp_path / name for name in ("member", "sink", "checkpoint"))

    def stream(**options: str) -> DataFrame:
        query = (
            spark.readStream.format("quorate")
            .options(**options)
            .load(str(place))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(sink))
        )
        query.awaitTermination(120)
        return spark.read.parquet(str(sink))

    write_log(place, BATCHES[:5])
    assert len(current(stream())) == 10  # it stands behind 20 commands
    write_log(place, BATCHES)
    position = shorten_log(place, BATCHES, 10)
    with pytest.raises(StreamingQueryException, match="with the option snapshot = first"):
        stream()
    found = stream(snapshot="first")
    assert current(found) == LAST
    taken = found.where("kind = 'SNAPSHOT'").select("position", "entry").distinct().collect()
    assert [tuple(row) for row in taken] == [(position, -1)]
    assert found.count() == found.select("position", "entry", "number").distinct().count()
    reader = spark.read.format("quorate")
    assert current(reader.option("snapshot", "first").load(str(place))) == LAST
    with pytest.raises(PySparkException, match="the log is pruned below"):
        spark.read.format("quorate").option("startPosition", 1).load(str(place)).collect()


@pytest.mark.spark
def test_tables_follow_a_log(spark: SparkSession, tmp_path: Path) -> None:
    place, tables = tmp_path / "member", tmp_path / "tables"
    write_log(place, BATCHES[:8])
    rounds = follow(spark, place, tables, pause_s=0.01)
    first = next(rounds)
    write_log(place, BATCHES)
    (second,) = islice(rounds, 1)
    assert (first.begin, first.end) == (0, second.begin)
    rows = exported_tables(spark, tables)["kv_current"].collect()
    assert {bytes(row["key"]): bytes(row["value"]) for row in rows} == LAST
