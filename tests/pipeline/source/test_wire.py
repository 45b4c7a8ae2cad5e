"""The log of a running cluster, read over the wire; the members die meanwhile."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import redis
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from quorate.cli.app import run
from quorate.errors import ConfigurationError, TransportError
from quorate.pipeline.jobs.versions import state
from quorate.pipeline.source.logs import Connect, open_log
from quorate.pipeline.source.members import parse_members, standing
from quorate.pipeline.source.options import parse_options
from quorate.storage import decode_header_untrusted
from tests.support.real import set_surely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.real import RealCluster

KEYS = 300


@pytest.fixture(scope="module", autouse=True)
def keys(cluster: RealCluster) -> None:
    """A few hundred batches, and no snapshot."""
    with redis.Redis(port=cluster.leader_port) as client:
        client.flushall()
        for i in range(KEYS):
            client.set(f"key:{i:03}", "v" * 50)


def connect(cluster: RealCluster) -> str:
    """Where the members listen, and somebody who does not."""
    return ",".join(["127.0.0.1:1", *(f"127.0.0.1:{port}" for port in cluster.ports)])


def test_an_address_that_makes_no_sense_is_refused() -> None:
    assert parse_members("a:7000, [::1]:7001") == (("a", 7000), ("::1", 7001))
    for text in ("a", "a:", ":7000", "a:0", "a:70000", "a:7000,"):
        with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
            parse_members(text)
    with pytest.raises(ConfigurationError, match="expected either"):
        parse_options({"path": "/somewhere", "connect": "a:7000"})
    with pytest.raises(ConfigurationError, match="expected either"):
        parse_options({})


def test_nobody_there() -> None:
    with pytest.raises(TransportError, match=r"no answer for 0.1 s: \('127.0.0.1', 1\)"):
        standing("127.0.0.1:1", patience_s=0.1)


def test_a_log_over_the_wire_is_cut_and_read_like_a_directory(whole: RealCluster) -> None:
    directory = whole.directory / f"member-{whole.leader}"
    with open_log(directory) as local, open_log(Connect(connect(whole))) as remote:
        assert remote.facts.committed >= local.facts.committed
        stop = local.facts.committed
        found = list(local.batches(0, stop))
        headers = [decode_header_untrusted(data) for data in found]
        pieces = remote.cut(0, stop, 3)
        assert len(pieces) == 3
        read = [list(remote.batches(*piece)) for piece in pieces]
        assert [data for part in read for data in part] == found
        assert all(read)
        middle = headers[len(headers) // 2]
        for position in (middle.position, middle.position + 1, middle.end - 1):
            assert remote.header(position) == middle
            assert remote.moment_before(position) == local.moment_before(position)
            assert remote.term_before(position) == local.term_before(position)
        assert remote.first_at(middle.timestamp_ms) == local.first_at(middle.timestamp_ms)
        assert remote.of_term(1, 9) == (remote.facts.committed, remote.facts.committed)
        assert [(row.term, row.base, remote.opening(row)) for row in remote.terms()] == [
            (row.term, row.base, local.opening(row)) for row in local.terms()
        ]


@pytest.mark.spark
def test_a_member_that_dies_while_it_is_read_is_replaced(
    spark: SparkSession, whole: RealCluster
) -> None:
    frame = spark.read.format("quorate").option("connect", connect(whole)).option("partitions", 3)
    log = frame.load().where("key like 'key:%'")
    assert counted(log) == (KEYS, KEYS)
    followers = [member for member in range(3) if member != whole.leader]
    with open_log(Connect(connect(whole))) as opened:
        pieces = opened.cut(0, opened.facts.committed, 3)
        assert list(opened.batches(*pieces[0]))
        whole.kill(followers[0])  # the one that was asked, and would be again
        assert all(list(opened.batches(*piece)) for piece in pieces[1:])
        assert counted(log) == (KEYS, KEYS)
        whole.restart_dead()
        whole.wait_until_agreed()
        whole.kill(whole.leader)
        assert counted(log) == (KEYS, KEYS)


def counted(frame: DataFrame) -> tuple[int, int]:
    row = frame.agg(F.count("*"), F.count_distinct("position", "entry", "number")).first()
    assert row is not None
    return row[0], row[1]


@pytest.mark.spark
def test_a_stream_over_the_wire_goes_on_through_the_death_of_a_leader(
    spark: SparkSession, whole: RealCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("stream")
    stream = spark.readStream.format("quorate").option("connect", connect(whole))

    def follow() -> DataFrame:
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "sink"))
        )
        query.awaitTermination(120)
        assert query.exception() is None
        return spark.read.parquet(str(place / "sink")).where("key like 'key:%'")

    assert counted(follow()) == (KEYS, KEYS)
    whole.kill(whole.leader)
    with redis.Redis(port=next(port for port in whole.ports if alive(whole, port))) as client:
        unknown = sum(set_surely(client, f"key:{i:03}", "again") for i in range(20))
    frame = follow()
    rows, distinct = counted(frame)
    assert rows == distinct
    assert unknown <= 1  # it waits for each, so one was on its way when the link broke
    assert KEYS + 20 <= rows <= KEYS + 20 + unknown
    assert frame.where("value = 'again'").select("key").distinct().count() == 20


def alive(cluster: RealCluster, port: int) -> bool:
    return any(
        answer.address.client_port == port and answer.status for answer in cluster.survey().answers
    )


@pytest.mark.spark
def test_the_jobs_ask_members(
    spark: SparkSession,
    whole: RealCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.session.open_session", lambda **_: nullcontext(spark))
    status = run(["pipeline", "audit", "--connect", connect(whole)])
    text = capsys.readouterr().out
    assert (status, "The logs agree" in text) == (0, True)
    assert [f"member {member}: 0 to " in text for member in range(3)] == [True] * 3
    assert run(["pipeline", "state", "--connect", connect(whole)]) == 0
    assert f"{KEYS} keys at position" in capsys.readouterr().out


@pytest.mark.spark
def test_a_snapshot_comes_over_the_wire(spark: SparkSession, whole: RealCluster) -> None:
    with redis.Redis(port=whole.leader_port) as client:
        client.set("before", "the snapshot")
        assert run(["control", "snapshot", "--connect", f"127.0.0.1:{whole.leader_port}"]) == 0
        client.set("after", "the snapshot")
    origin = Connect(connect(whole))
    with open_log(origin) as log:
        (row,) = log.facts.snapshots
        with log.snapshot(row) as reader:
            assert reader.head.position == row.position
        assert b"before" in dict(log.records(row))
    held = {bytes(row["key"]): bytes(row["value"]) for row in state(spark, origin).collect()}
    assert (len(held), held[b"after"]) == (KEYS + 2, b"the snapshot")
