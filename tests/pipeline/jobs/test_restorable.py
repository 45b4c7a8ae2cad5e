"""A state that was worked out is written as the snapshot that a member would have taken."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
import redis

from quorate.cli.app import run
from quorate.errors import PrunedError, StorageError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.keyvalue.protocol.payload import ETCD
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.state.sessions import LAST_ID
from quorate.local.cluster import free_client_port
from quorate.node.state_machine.actions import RESUME, SUSPEND
from quorate.node.state_machine.service import KEY_VALUE
from quorate.pipeline.jobs.once import notes_at
from quorate.pipeline.jobs.restorable import write_snapshot
from quorate.pipeline.jobs.versions import Moment, moment_at
from quorate.pipeline.source.logs import open_log
from quorate.storage import EntryKind, SnapshotReader, decode_header_untrusted
from quorate.storage.snapshots.file import check_snapshot
from quorate.storage.tables.stream import encode_tables, records_untrusted
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    Batch,
    encoded,
    mixed,
    pipeline,
    shorten_log,
    write_log,
)
from tests.support.real import RealCluster

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quorate.storage import Summary
    from quorate.storage.tables.memtable import Record

FAR = b"99999999999"
ODD = [
    *([b"SET", key, b"v", b"PX", FAR] for key in (b"\xff\x00", b"", b"\x80" * 600, b"\x7f" * 479)),
    [b"SET", b"\x80" * 600 + b"x", b"v" * 300_000],
]
PUTS = tuple(
    encode_request(Op.PUT, rpc.PutRequest(key=b"e%d" % i, value=b"*").SerializeToString())
    for i in range(3)
)
ETCD_LEASE = (
    encode_request(Op.LEASE_GRANT, rpc.LeaseGrantRequest(ID=7, TTL=600).SerializeToString()),
    encode_request(Op.PUT, rpc.PutRequest(key=b"leased", lease=7).SerializeToString()),
    encode_request(Op.COMPACT, rpc.CompactionRequest(revision=3).SerializeToString()),
)


def of_all_kinds() -> list[Batch]:
    """Sixty batches: keys of all kinds, a session that ends, users, and two suspensions."""
    batches = [attrs.evolve(batch, term=0) for batch in mixed(60, seed=5)]
    others = {
        0: ((pipeline("QUORATE.SESSION OPEN 60000"),), EntryKind.COMMAND),
        3: (tuple(map(encode_command, ODD)), EntryKind.COMMAND),
        12: ((pipeline("ACL SETUSER bob on nopass ~a +get"),), EntryKind.COMMAND),
        14: ((pipeline("acl setuser eve on", "ACL SETUSER eve +nosuch"),), EntryKind.COMMAND),
        20: ((pipeline("QUORATE.SESSION CLOSE 2", "ACL DELUSER eve"),), EntryKind.COMMAND),
        25: ((SUSPEND,), EntryKind.CLUSTER_ACTION),
        30: ((RESUME,), EntryKind.CLUSTER_ACTION),
        50: ((SUSPEND,), EntryKind.CLUSTER_ACTION),
    }
    for at, (payloads, kind) in others.items():
        batches[at] = Batch(payloads, BEGAN_MS + 500 * at, kind=kind)
    for at, etcd in ((5, PUTS), (10, ETCD_LEASE), (40, PUTS)):
        batches[at] = Batch(etcd, BEGAN_MS + 500 * at, flags=ETCD)
    return batches


BATCHES = of_all_kinds()
ENDS = [decode_header_untrusted(data).end for data in encoded(BATCHES)]


def written(directory: Path) -> tuple[Summary, dict[bytes, Record]]:
    """The only snapshot of a directory, of which every byte is checked, and what it holds."""
    (file,) = (directory / "snapshots").iterdir()
    with SnapshotReader(file) as reader:
        return check_snapshot(file), dict(records_untrusted(reader.pieces()))


@pytest.mark.spark
def test_a_state_is_written_as_a_member_would_and_restored_as_a_new_cluster(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.session.open_session", lambda **_: nullcontext(spark))
    monkeypatch.setattr("quorate.pipeline.jobs.restorable.PARTITION_BYTES", 1000)
    for name in ("whole", "member"):
        write_log(tmp_path / name, BATCHES)
    shorten_log(tmp_path / "member", BATCHES, 45, etcd=True)
    member, records = written(tmp_path / "member")
    words = [tmp_path / "whole", "--at", ENDS[44], "--snapshot", tmp_path / "state"]
    assert run(["pipeline", "state", *map(str, words)]) == 0
    summary, found = written(tmp_path / "state")
    assert (summary.digest, found) == (member.digest, records)
    assert len(found) > 10
    assert f"the snapshot at {ENDS[44]:,}" in capsys.readouterr().out
    assert summary.head == attrs.evolve(
        member.head, cluster=f"testing@{ENDS[44]}", service=KEY_VALUE
    )
    assert run(["pipeline", "state", *map(str, words)]) == 78  # it is there already

    port = free_client_port(3)
    words = ["--from", tmp_path / "state", "--to", tmp_path / "new", "--client-port", port]
    assert run(["restore", *map(str, words), "--new-cluster", "new"]) == 0
    expected = {
        key: value
        for key, (value, expires_at_ms, _, _) in records.items()
        if not expires_at_ms or value == b"v"
    }
    running = RealCluster.run(tmp_path / "new", port)
    with running as cluster, redis.Redis(port=cluster.follower_port) as client:
        assert {key: client.get(key) for key in client.keys("*")} == expected
        assert client.set("after", "the restore")


@pytest.mark.spark
def test_what_a_member_has_restored_may_be_the_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, count in (("early", 45), ("late", 59)):
        write_log(tmp_path / name, BATCHES)
        shorten_log(tmp_path / name, BATCHES, count, etcd=True)
    origin, rng = tmp_path / "early", Random(1)
    for name, at, suspended in (
        ("early", Moment(ENDS[44], 0), False),
        ("late", moment_at(origin), True),
    ):
        done = write_snapshot(spark, origin, at, tmp_path / f"as {name}", rng=rng)
        assert (done.sessions, done.summary.head.suspended) == (0, suspended)
        member = written(tmp_path / name)[0]
        assert done.summary.digest == member.digest
        assert done.summary.head.timestamp_ms == member.head.timestamp_ms
    write_log(tmp_path / "empty", BATCHES[:1])
    with pytest.raises(PrunedError, match="the log has no entry before position 0"):
        write_snapshot(spark, tmp_path / "empty", Moment(0, 0), tmp_path / "none", rng=rng)


def test_sessions_are_counted_where_they_were(tmp_path: Path) -> None:
    write_log(tmp_path, BATCHES)
    with open_log(tmp_path) as log:
        last = (2).to_bytes(8, "big")
        assert notes_at(log, ENDS[10]) == (1, {LAST_ID: last})
        sessions, notes = notes_at(log, ENDS[20])
    assert (sessions, notes[LAST_ID]) == (0, last)
    bob = b"on nopass ~a resetchannels -@all +get"
    assert notes[b"\xffubob"] == bob
    # Also the version, and the numbers of bob and of a user that was removed.
    assert len(notes) == 5


def test_rows_that_are_out_of_order_are_refused() -> None:
    with pytest.raises(StorageError, match="is not behind"):
        list(encode_tables([[(b"a", b"1"), (b"b", b"2"), (b"b", b"3")], [], [], []]))
