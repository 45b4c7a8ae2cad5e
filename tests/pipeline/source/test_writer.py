"""Writes into a running cluster: done once, whatever tasks die and are repeated."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PySparkException

from quorate.errors import ConfigurationError, KeyValueError, StorageError
from quorate.pipeline.source.loading import CHUNK_COMMANDS, Load, chunks_of
from quorate.pipeline.source.members import Members, Reply
from quorate.pipeline.source.writer import commands_of_rows, parse_target

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.real import RealCluster

COUNTING = ("concat('n:', id % 10) as key", "1L as value", "'INCRBY' as operation")
ROWS = 2 * CHUNK_COMMANDS + 7


@pytest.fixture
def members(whole: RealCluster) -> Generator[Members]:
    found = Members([("127.0.0.1", port) for port in whole.ports])
    yield found
    found.close()


@pytest.fixture
def client(whole: RealCluster) -> Generator[redis.Redis]:
    whole.flush()
    with redis.Redis(port=whole.leader_port) as found:
        yield found


def counts(count: int = ROWS) -> list[tuple[bytes, ...]]:
    return [(b"INCRBY", b"n:%d" % (i % 10), b"1") for i in range(count)]


def total(client: redis.Redis) -> int:
    return sum(int(client.get(f"n:{i}") or 0) for i in range(10))


def test_rows_are_commands() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "key": ["a", "b", "c", "d"],
            "value": ["1", None, "3", "4"],
            "operation": [None, "DEL", "INCRBY", "SET"],
            "expires_at": pa.array([None, None, None, moment], pa.timestamp("us", tz="UTC")),
        }
    )
    assert list(commands_of_rows(batch)) == [
        (b"SET", b"a", b"1"),
        (b"DEL", b"b"),
        (b"INCRBY", b"c", b"3"),
        (b"SET", b"d", b"4", b"PXAT", b"1893456000000"),
    ]
    numbers = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([5])})
    assert list(commands_of_rows(numbers)) == [(b"SET", b"k", b"5")]


@pytest.mark.parametrize(
    "row",
    [
        {"key": [None], "value": ["1"]},
        {"key": ["a"], "value": pa.array([None], pa.string())},
        {"key": ["a"], "value": ["1"], "operation": ["DEL"]},
        {"key": ["a"], "value": ["1"], "operation": ["FLUSHALL"]},
        {"key": ["a"], "value": [1.5]},
    ],
)
def test_a_row_that_is_no_command_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        list(commands_of_rows(pa.record_batch(row)))


def test_a_write_that_makes_no_sense_is_refused() -> None:
    good = {"connect": "a:7000"}
    assert parse_target(good, ["value", "key"], overwrite=False).members == "a:7000"
    for options, columns, overwrite in (
        ({}, ["key"], False),
        (good, ["key"], True),
        (good, ["key", "colour"], False),
        (good, ["value"], False),
        ({**good, "path": "x"}, ["key"], False),
        ({**good, "job": "x" * 300}, ["key"], False),
    ):
        with pytest.raises(ConfigurationError, match=r"expected|at most"):
            parse_target(options, columns, overwrite=overwrite)


def test_chunks_are_short() -> None:
    assert [len(chunk) for chunk in chunks_of(counts())] == [CHUNK_COMMANDS, CHUNK_COMMANDS, 7]
    long = [(b"SET", b"k", b"v" * (700 << 10))] * 3
    assert [len(chunk) for chunk in chunks_of(long)] == [1, 1, 1]
    assert list(chunks_of([])) == []


class LostError(Exception):
    """The task is dead."""


class Losing(Members):
    """A connection whose task dies before, or after, some transaction was done."""

    def __init__(self, members: Sequence[tuple[str, int]], *, at: int, sent: bool) -> None:
        super().__init__(members)
        self._left = at
        self._sent = sent

    def _call(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Reply]:
        if commands[0] == ("MULTI",):
            self._left -= 1
            if self._left < 0 and not self._sent:
                raise LostError
        replies = super()._call(commands)
        if self._left < 0:
            raise LostError
        return replies


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_task_that_died_goes_on_where_it_was(
    whole: RealCluster, client: redis.Redis, members: Members, at: int, *, sent: bool
) -> None:
    losing = Losing([("127.0.0.1", port) for port in whole.ports], at=at, sent=sent)
    with pytest.raises(LostError):
        Load(losing, "load").write(0, counts())
    losing.close()
    assert total(client) == min(ROWS, (at + sent) * CHUNK_COMMANDS)
    for _ in range(2):  # the second time there is nothing left to do
        assert Load(members, "load").write(0, counts()).rows == ROWS
        assert total(client) == ROWS


def test_a_session_that_has_ended_is_replaced(client: redis.Redis, members: Members) -> None:
    load = Load(members, "load")
    load.write(0, counts())
    session = client.get("load:session:0")
    client.execute_command("QUORATE.SESSION", "CLOSE", session)
    assert load.write(0, counts()).generation == 0
    assert load.write(1, counts()).generation == 1
    assert total(client) == 2 * ROWS
    with pytest.raises(StorageError, match="batch 0 comes after 1"):
        load.write(0, counts())
    load.forget()
    assert client.keys("load*") == []


def test_other_rows_are_no_second_attempt(client: redis.Redis, members: Members) -> None:
    load = Load(members, "load")
    load.write(0, counts())
    for other in (counts()[::-1], counts()[1:], counts(5), []):
        with pytest.raises(StorageError, match="an earlier attempt had other rows"):
            load.write(0, other)
    assert total(client) == ROWS


def test_a_command_that_fails_fails_in_every_attempt(client: redis.Redis, members: Members) -> None:
    client.set("text", "x")
    rows = [*counts(3), (b"INCRBY", b"text", b"1"), *counts(CHUNK_COMMANDS)]
    for _ in range(2):
        with pytest.raises(KeyValueError, match="not an integer"):
            Load(members, "load").write(0, rows)
    assert total(client) == CHUNK_COMMANDS - 1


def failing(frame: DataFrame, marker: Path) -> DataFrame:
    """The rows, but in the first attempt of each task the last one is none, and the task fails."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a task

        context = TaskContext.get()
        assert context is not None
        *found, last = pa.Table.from_batches(batches).to_pylist()
        file = marker / str(context.partitionId())
        if not file.exists():
            file.touch()
            last["operation"] = "DIE"
        yield pa.RecordBatch.from_pylist([*found, last])

    return frame.mapInArrow(rows, "key string, value bigint, operation string")


@pytest.mark.spark
def test_a_frame_whose_tasks_die_is_written_once(
    spark: SparkSession, whole: RealCluster, client: redis.Redis, tmp_path: Path
) -> None:
    connect = f"127.0.0.1:1,127.0.0.1:{whole.follower_port}"
    frame = spark.range(0, 2000, 1, 2).selectExpr(*COUNTING)
    # A session of one machine does not repeat tasks, so the whole write is repeated, by its name.
    write = failing(frame, tmp_path).write.format("quorate").mode("append")
    write = write.option("connect", connect).option("job", "counting")
    with pytest.raises(PySparkException, match="DIE of key"):
        write.save()
    assert 0 < total(client) < 2000
    for _ in range(2):
        with suppress(PySparkException):  # of the other task, if that had not begun
            write.save()
    assert total(client) == 2000
    write.save()
    assert total(client) == 2000
    with pytest.raises(PySparkException, match="expected mode append"):
        frame.write.format("quorate").mode("overwrite").option("connect", connect).save()


@pytest.mark.spark
def test_a_stream_is_written_once_through_a_restart(
    spark: SparkSession, whole: RealCluster, client: redis.Redis, tmp_path: Path
) -> None:
    source, marker, checkpoint = (tmp_path / name for name in ("in", "marker", "checkpoint"))
    marker.mkdir()
    for expected in (600, 1200):
        rows = spark.range(600).selectExpr(COUNTING[0])
        (marker / "0").unlink(missing_ok=True)
        rows.coalesce(1).write.mode("append").parquet(str(source))
        read = spark.readStream.schema("key string").parquet(str(source))
        counted = read.selectExpr("key", *COUNTING[1:])
        for attempt in range(2):
            query = (
                failing(counted, marker)
                .writeStream.format("quorate")
                .option("connect", f"127.0.0.1:{whole.leader_port}")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination(120)
                break
            except PySparkException:
                assert (attempt, total(client)) == (0, expected - 600 + CHUNK_COMMANDS)
        assert total(client) == expected
