"""Entries of etcd's keyspace in the log: they are never taken for commands of Redis."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.keyvalue.protocol.payload import ETCD
from quorate.pipeline.source.decode import decode
from quorate.pipeline.source.etcd_rows import etcd_table, replayed_at
from quorate.pipeline.source.logs import open_log
from quorate.pipeline.source.slots import slots_entries
from quorate.pipeline.source.snapshots import as_commands, snapshot_table
from quorate.storage import decode_header_untrusted
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    Batch,
    encoded,
    one_each,
    shorten_log,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

HOSTILE = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$13\r\nQUORATE.SLOTS\r\n"


def payload(op: Op, message: Message) -> bytes:
    return encode_request(op, message.SerializeToString())


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    return payload(Op.PUT, rpc.PutRequest(key=key, value=value, lease=lease))


def etcd_batches(first: int) -> list[Batch]:
    """Revisions 2 to 5: a is put, b with a lease, a again by a transaction, and the lease ends."""
    txn = rpc.TxnRequest(
        success=[rpc.RequestOp(request_put=rpc.PutRequest(key=b"a", value=b"2"))],
        failure=[rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=b"c"))],
    )
    grant = rpc.LeaseGrantRequest(ID=7, TTL=60)
    groups = [
        (put(b"a", HOSTILE), payload(Op.LEASE_GRANT, grant)),
        (put(b"b", b"1", 7), payload(Op.TXN, txn)),
        (payload(Op.LEASE_REVOKE, rpc.LeaseRevokeRequest(ID=7)), b"\xff"),
    ]
    return [
        Batch(each, BEGAN_MS + 1000 * (first + at), flags=ETCD) for at, each in enumerate(groups)
    ]


BATCHES = [
    *one_each(["SET k 1", "SET l 2"]),
    *etcd_batches(1),
    *one_each(["SET k 3"]),
    *one_each(["SET k 4"]),
]
BATCHES = [
    Batch(each.payloads, BEGAN_MS + 1000 * at, flags=each.flags) for at, each in enumerate(BATCHES)
]


def test_commands_say_whose_keyspace_they_are_of() -> None:
    names = ["keyspace", "operation", "key", "value", "number", "slot"]
    rows = decode(encoded(BATCHES), "commands", names=names, partition=1).to_pylist()
    found = [(row["keyspace"], row["operation"], row["key"], row["value"]) for row in rows]
    assert found == [
        (None, None, None, None),
        ("redis", "SET", b"k", b"1"),
        ("redis", "SET", b"l", b"2"),
        ("etcd", "PUT", b"a", HOSTILE),
        ("etcd", "LEASE GRANT", None, None),
        ("etcd", "PUT", b"b", b"1"),
        ("etcd", "TXN PUT", b"a", b"2"),
        ("etcd", "TXN ELSE DELETE RANGE", b"c", None),
        ("etcd", "LEASE REVOKE", None, None),
        ("etcd", None, None, None),
        ("redis", "SET", b"k", b"3"),
        ("redis", "SET", b"k", b"4"),
    ]
    assert [row["slot"] for row in rows if row["keyspace"] == "etcd"] == [None] * 7


def test_the_table_etcd_has_each_change_of_a_key(tmp_path: Path) -> None:
    write_log(tmp_path, BATCHES)
    names = ["revision", "key", "value", "deleted", "create_revision", "version", "lease"]
    with open_log(tmp_path) as log:
        assert not list(slots_entries(log, 0, log.facts.committed))
        (rows,) = etcd_table(log, names, 0, 1 << 62)
        assert [tuple(row.values()) for row in rows.to_pylist()] == [
            (2, b"a", HOSTILE, False, 2, 1, 0),
            (3, b"b", b"1", False, 3, 1, 7),
            (4, b"a", b"2", False, 2, 2, 0),
            (5, b"b", None, True, None, None, None),
        ]
        middle = decode_header_untrusted(encoded(BATCHES)[2]).position
        (behind,) = etcd_table(log, ["position"], middle, 1 << 62)
        assert behind.num_rows == 3
        assert behind.to_pylist()[0] == {"position": middle}


def test_a_snapshot_has_the_keys_of_both(tmp_path: Path) -> None:
    write_log(tmp_path, BATCHES)
    position = shorten_log(tmp_path, BATCHES, 3, etcd=True)
    names = ["keyspace", "key", "value", "revision", "version", "lease"]
    with open_log(tmp_path) as log:
        first, second = snapshot_table(log, names, 1 << 62)
        assert [row["key"] for row in first.to_pylist()] == [b"k", b"l"]
        assert [tuple(row.values()) for row in second.to_pylist()] == [
            ("etcd", b"b", b"1", 3, 1, 7),
            ("etcd", b"a", b"2", 4, 2, 0),
        ]
        names = ["keyspace", "operation", "key", "number", "flags"]
        groups = list(as_commands(log, names, position, b""))
        assert [tuple(row.values()) for each in groups for row in each.to_pylist()] == [
            ("redis", "SET", b"k", 0, 0),
            ("redis", "SET", b"l", 1, 0),
            ("etcd", "PUT", b"b", 2, ETCD),
            ("etcd", "PUT", b"a", 3, ETCD),
        ]
        behind = replayed_at(log, log.facts.committed)
    assert behind.state.revision == 5
    assert len(behind.tables.rows) == 4
