"""The source reads what was committed, each command once, whatever way it is asked."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from quorate.pipeline.source.logs import open_log
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    ELECTION_MS,
    Batch,
    one_each,
    pipeline,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

COMMANDS = 400
BATCHES = one_each([f"SET k{i % 50:02} v{i}" for i in range(COMMANDS)], per_batch=20, terms=3)
LAST = COMMANDS - 20  # the last batch is not known to be committed


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A member's directory, in which nothing but the log is."""
    found = tmp_path_factory.mktemp("member-0")
    write_log(found, BATCHES)
    return found


def read(spark: SparkSession, directory: Path, **options: str | int) -> DataFrame:
    return spark.read.format("quorate").options(**options).load(str(directory))


def values(frame: DataFrame) -> list[bytes]:
    rows = frame.where("operation is not null").orderBy("position", "entry", "number").collect()
    return [bytes(row["value"]) for row in rows]


@pytest.mark.parametrize("partitions", [1, 5])
def test_every_committed_command_is_read_once(
    spark: SparkSession, directory: Path, partitions: int
) -> None:
    frame = read(spark, directory, partitions=partitions, pushdown="true")
    assert frame.rdd.getNumPartitions() == partitions
    assert values(frame) == [b"v%d" % i for i in range(LAST)]


def test_pushed_filters_find_what_spark_alone_finds(spark: SparkSession, directory: Path) -> None:
    with open_log(directory) as log:
        middle = log.cut(0, log.facts.committed, 2)[1][0]
    time = F.timestamp_millis(F.lit(BEGAN_MS + 7000))
    column = F.col
    filters: list[Column] = [
        column("term") == 1,
        column("term") > 1,
        column("position") >= middle,
        (column("position") < middle) & (column("term") >= 1),
        column("position") == middle,
        column("timestamp") >= time,
        column("timestamp") < time,
        column("timestamp") == time,
        column("key") == F.lit(b"k07"),
        column("key").startswith(F.lit(b"k0")),
    ]
    alone, pushed = (read(spark, directory, pushdown=pushed) for pushed in ("false", "true"))
    counts = [F.count_if(one).alias(f"c{at}") for at, one in enumerate(filters)]
    expected = list(alone.agg(*counts).first() or ())
    found = [pushed.where(one).agg(F.count("*")).first() for one in filters]
    assert [row[0] for row in found if row is not None] == expected
    assert min(expected) > 0


def test_only_the_part_that_is_asked_for_is_read(spark: SparkSession, directory: Path) -> None:
    with open_log(directory) as log:
        ranges = log.cut(0, log.facts.committed, 4)
    frame = read(
        spark, directory, startPosition=ranges[1][0], endPosition=ranges[2][1], keyPrefix="k1"
    )
    row = frame.agg(F.min("position"), F.max("position"), F.min("key"), F.max("key")).first()
    assert row is not None
    assert ranges[1][0] <= row[0] <= row[1] < ranges[2][1]
    assert (bytes(row[2]), bytes(row[3])) == (b"k10", b"k19")


def test_columns_can_be_chosen_and_others_are_refused(spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("quorate")
    frame = reader.schema("value binary, position bigint").load(str(directory))
    assert frame.columns == ["value", "position"]
    assert frame.where("value is not null").count() == LAST
    with pytest.raises(AnalysisException, match="column colour: the table commands has term"):
        reader.schema("colour int").load(str(directory)).collect()


def test_a_wrong_option_is_told(spark: SparkSession, directory: Path) -> None:
    with pytest.raises(AnalysisException, match='table = "rows": expected one of commands'):
        read(spark, directory, table="rows").collect()
    with pytest.raises(AnalysisException, match="no recording there"):
        read(spark, directory / "log" / "nowhere").collect()


def test_entries_batches_and_terms_are_tables_too(spark: SparkSession, directory: Path) -> None:
    entries = read(spark, directory, table="entries")
    assert entries.groupBy("kind").count().orderBy("kind").collect() == [
        ("COMMAND", LAST),
        ("NEW_LEADERSHIP_TERM", 3),
    ]
    batches = read(spark, directory, table="batches").orderBy("position").collect()
    assert sum(row["entries"] for row in batches) == LAST + 3
    assert [row["position"] + row["length"] for row in batches[:-1]] == [
        row["position"] for row in batches[1:]
    ]
    terms = read(spark, directory, table="terms").orderBy("term").collect()
    assert [row["term"] for row in terms] == [0, 1, 2]
    assert [row["end"] for row in terms] == [*(row["base"] for row in terms[1:]), None]
    assert [(row["leader"], row["reason"], row["election_ms"]) for row in terms] == [
        (leader, "a test", ELECTION_MS) for leader in range(3)
    ]


def test_a_service_of_ones_own_brings_its_decoder(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, [Batch((b"up 1", b"down 2"), BEGAN_MS), Batch((b"up 3",), BEGAN_MS)])
    frame = read(spark, tmp_path, decoder="tests.pipeline.payloads.own_decoder:decode")
    found = frame.where("operation is not null").select("operation", "value").collect()
    assert [(row[0], bytes(row[1])) for row in found] == [("up", b"1"), ("down", b"2")]


def test_a_stream_goes_on_where_it_was_and_writes_each_command_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    member, sink, checkpoint = (tmp_path / name for name in ("member", "sink", "checkpoint"))
    for known in (8, 13, len(BATCHES)):
        write_log(member, BATCHES[:known])
        stream = spark.readStream.format("quorate").option("maxBytesPerTrigger", 4000)
        query = (
            stream.load(str(member))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(sink))
        )
        query.awaitTermination(120)
        assert not query.isActive
        assert query.exception() is None
        written = spark.read.parquet(str(sink))
        assert values(written) == [b"v%d" % i for i in range(20 * (known - 1))]


def follow(spark: SparkSession, directory: Path, checkpoint: Path) -> str:
    """Stream what there is to nowhere, and return the error's text, empty without one."""
    query = (
        spark.readStream.format("quorate")
        .load(str(directory))
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        return str(error)
    return ""


def test_a_stream_refuses_to_go_on_in_another_log(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "member"
    write_log(tmp_path / "one", BATCHES[:4])
    write_log(tmp_path / "other", [attrs.evolve(batch, term=5) for batch in BATCHES])
    place.symlink_to(tmp_path / "one")
    assert follow(spark, place, tmp_path / "checkpoint") == ""
    place.unlink()
    place.symlink_to(tmp_path / "other")
    assert "it is another log" in follow(spark, place, tmp_path / "checkpoint")


@pytest.mark.parametrize("partitions", [1, 3])
def test_sets_of_many_clients_in_one_entry_are_a_row_each(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    sets = [f"SET k{i % 7} v{i}" for i in range(240)]
    joined = [pipeline(*sets[at : at + 20]) for at in range(0, len(sets), 20)]
    alone = pipeline("INCR other")
    batches = [
        Batch((first, alone, second), BEGAN_MS + 1000 * at)
        for at, (first, second) in enumerate(zip(joined[::2], joined[1::2], strict=True))
    ]
    write_log(tmp_path, [*batches, Batch((alone,), BEGAN_MS + 9000)])
    frame = read(spark, tmp_path, partitions=partitions)
    assert values(frame.where("operation = 'SET'")) == [b"v%d" % i for i in range(240)]
    places = frame.where("operation = 'SET'").select("position", "entry", "number").distinct()
    assert places.count() == 240
    assert frame.where("operation = 'INCR'").count() == 6
    told = frame.where("payload is not null and operation = 'SET'").orderBy("position", "entry")
    assert [bytes(row["payload"]) for row in told.collect()] == joined
    only = read(spark, tmp_path, keyPrefix="k3")
    assert values(only) == [b"v%d" % i for i in range(3, 240, 7)]
    entries = read(spark, tmp_path, table="entries").where("kind = 'COMMAND'")
    assert entries.count() == 18


def test_pipeline_payloads_become_a_row_for_each_key(spark: SparkSession, tmp_path: Path) -> None:
    payload = pipeline("MSET a 1 b 2", "DEL a c", "GET a", "FLUSHALL")
    write_log(tmp_path, [Batch((payload,), BEGAN_MS), Batch((payload,), BEGAN_MS)])
    found = read(spark, tmp_path).where("operation is not null").collect()
    assert [(row["number"], row["operation"], row["key"]) for row in found] == [
        (0, "MSET", b"a"),
        (0, "MSET", b"b"),
        (1, "DEL", b"a"),
        (1, "DEL", b"c"),
        (2, "GET", b"a"),
        (3, "FLUSHALL", None),
    ]
    assert [row["payload"] for row in found] == [payload] + [None] * 5
