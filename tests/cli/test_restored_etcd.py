"""A cluster made of a backup serves the keys of etcd's clients, with revisions nobody has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.cli.app import run
from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.etcd.state.replayed import Replayed
from quorate.keyvalue.protocol.payload import ETCD
from quorate.local.cluster import local_configs
from quorate.node.config.config import load_config
from quorate.storage import SnapshotReader, decode_header_untrusted, open_readonly
from quorate.storage.snapshots.folder import SnapshotFolder
from quorate.storage.tables.stream import notes_untrusted, rows_untrusted
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, shorten_log, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

RAISED = 1_000_000_000


def payload(op: Op, message: Message) -> bytes:
    return encode_request(op, message.SerializeToString())


def put(value: str) -> bytes:
    return payload(Op.PUT, rpc.PutRequest(key=b"a", value=value.encode(), lease=7))


BATCHES = [
    Batch(
        (payload(Op.LEASE_GRANT, rpc.LeaseGrantRequest(ID=7, TTL=60)), put("0")),
        BEGAN_MS,
        flags=ETCD,
    ),
    *(Batch((put(str(i)),), BEGAN_MS + 1000 * i, flags=ETCD) for i in range(1, 6)),
]
ENDS = [decode_header_untrusted(data).end for data in encoded(BATCHES)]


def keyspace(directory: Path) -> Replayed:
    """What a member has once it has started: the snapshot that it loads, and the log behind it."""
    found = Replayed()
    with open_readonly(directory / "log") as store:
        for row in store.snapshots:
            file = SnapshotFolder(directory / "snapshots").path_of(row)
            with SnapshotReader(file) as first, SnapshotReader(file) as second:
                rows, notes = rows_untrusted(first.pieces()), notes_untrusted(second.pieces())
                found = Replayed(dict(rows), dict(notes), row.timestamp_ms)
        for batch in store.scan(store.start_position):
            found.take_untrusted(batch)
    return found


@pytest.mark.parametrize("pruned", [0, 3, 5])
def test_a_point_is_restored_with_a_raised_revision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pruned: int
) -> None:
    write_log(tmp_path / "old", BATCHES)
    if pruned:
        shorten_log(tmp_path / "old", BATCHES, pruned, etcd=True)
    place = tmp_path / "member-0"
    config, *_ = local_configs(3, tmp_path, cluster="new")
    (place / "node.toml").write_text(config.to_toml())
    words = ["--from", tmp_path / "old", "--to", place, "--at", ENDS[4]]
    assert run(["restore", *map(str, words)]) == 0
    state = keyspace(place).state
    assert state.revision == state.compacted == 6 + RAISED
    answer = rpc.RangeResponse.FromString(
        state.query(payload(Op.RANGE, rpc.RangeRequest(key=b"a")), BEGAN_MS)[9:]
    )
    (kv,) = answer.kvs
    assert (kv.value, kv.mod_revision, kv.lease) == (b"4", 6, 7)
    # A lease goes on with what it had left in the backup, however old that is.
    day_ms = BEGAN_MS + 24 * 3_600_000
    state.begin_term(day_ms)
    state.advance(day_ms)
    asked = payload(Op.LEASE_TIME_TO_LIVE, rpc.LeaseTimeToLiveRequest(ID=7))
    lease = rpc.LeaseTimeToLiveResponse.FromString(state.query(asked, day_ms)[9:])
    assert (lease.TTL, lease.grantedTTL) == (56, 60)
    with pytest.raises(EtcdError, match="has been compacted"):
        state.changes_of(6)
    capsys.readouterr()
    assert run(["log", "verify", str(place)]) == 0
    assert run(["log", "dump", str(place)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1].endswith("etcd RESTORED revisions go on 1,000,000,000 higher")
    if not pruned:
        lines = {line.split(maxsplit=1)[1] for line in told if "COMMAND" in line}
        assert lines >= {"etcd LEASE_GRANT lease=7 ttl=60 s", 'etcd PUT key="a" value=1 B lease=7'}


def test_a_member_of_the_cluster_that_runs_on_gets_the_log_as_it_is(tmp_path: Path) -> None:
    write_log(tmp_path / "old", BATCHES, cluster="same")
    place = tmp_path / "member-0"
    config, *_ = local_configs(3, tmp_path, cluster="same")
    (place / "node.toml").write_text(config.to_toml())
    assert run(["restore", "--from", str(tmp_path / "old"), "--to", str(place)]) == 0
    assert keyspace(place).state.revision == 6


def test_a_new_cluster_gets_ports_for_clients_of_etcd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "old", BATCHES)
    words = ["restore", "--from", str(tmp_path / "old"), "--to", str(tmp_path / "new")]
    assert run([*words, "--etcd-port", "2379"]) == 64
    assert "without --new-cluster, the table [etcd] is in " in capsys.readouterr().err
    assert run([*words, "--etcd-port", "2379", "--new-cluster", "new"]) == 0
    files = [tmp_path / "new" / f"member-{one}" / "node.toml" for one in range(3)]
    assert [load_config(file).etcd.port for file in files] == [2379, 2380, 2381]
