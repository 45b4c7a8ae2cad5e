"""The state machine of etcd's keyspace over tables in a dict, and a few words to ask it by."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from quorate.etcd.keyspace.compaction import PACE_MS
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, decode_reply, encode_request
from quorate.etcd.state.machine import EtcdState
from quorate.node.state_machine.service import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.message import Message

Reply = TypeVar("Reply", bound="Message")

ETCD = 8  # the flag of such payloads
START_MS = 1_700_000_000_000


class StoredNotes:
    """The notes of tables in a dict."""

    def __init__(self, by_key: dict[bytes, bytes]) -> None:
        self.by_key = by_key

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """All notes."""
        return self.by_key


class StoredRows:
    """Tables in a dict; implements `StateTables`."""

    def __init__(self) -> None:
        self.notes = StoredNotes({})
        self.by_key: dict[bytes, bytes] = {}
        self.timestamp_ms = START_MS

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note."""
        assert 1 <= len(key) <= 64
        self.notes.by_key[key] = row

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        del self.notes.by_key[key]

    def get_row(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        return self.by_key.get(key)

    def put_row(self, key: bytes, row: bytes) -> None:
        """Set a row."""
        assert 1 <= len(key) <= 64
        self.by_key[key] = row

    def delete_row(self, key: bytes) -> None:
        """Delete a row; does nothing if there is none."""
        self.by_key.pop(key, None)

    def all_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys."""
        yield from sorted(self.by_key.items())

    def copy(self) -> StoredRows:
        """Return the same rows and notes, as a snapshot brings them to another member."""
        other = StoredRows()
        other.notes.by_key |= self.notes.by_key
        other.by_key |= self.by_key
        other.timestamp_ms = self.timestamp_ms
        return other


class Machine:
    """A state machine, its tables and its time.

    Attributes:
        tables: what it stores.
        state: the machine.
        now_ms: log time; a test moves it.
        revision: of the last reply.
    """

    def __init__(self, tables: StoredRows | None = None) -> None:
        self.tables = tables or StoredRows()
        self.state = EtcdState(self.tables)
        self.now_ms = self.tables.timestamp_ms
        self.revision = 0

    def apply(self, op: Op, message: Message | bytes) -> bytes:
        """Apply a command and return the body of the reply.

        Raises:
            EtcdError: that is the reply.
        """
        encoded = message if isinstance(message, bytes) else message.SerializeToString()
        payload = encode_request(op, encoded)
        command = Command(payload, ETCD, 0, 0, 1, 0, 0, self.now_ms)
        self.revision, body = decode_reply(self.state.apply(command, self.now_ms))
        return body

    def query(self, op: Op, message: Message) -> bytes:
        """Ask for something; else like `apply`."""
        payload = encode_request(op, message.SerializeToString())
        self.revision, body = decode_reply(self.state.query(payload, self.now_ms))
        return body

    def batch(self, now_ms: int | None = None) -> None:
        """End a batch at some log time."""
        self.now_ms = self.now_ms if now_ms is None else now_ms
        self.state.advance(self.now_ms)
        self.tables.timestamp_ms = self.now_ms

    # --- requests

    def put(self, key: bytes, value: bytes = b"", **more: int) -> rpc.PutResponse:
        """Put a key."""
        request = rpc.PutRequest(key=key, value=value)
        for name, one in more.items():
            setattr(request, name, one)
        return rpc.PutResponse.FromString(self.apply(Op.PUT, request))

    def delete(
        self, key: bytes, range_end: bytes = b"", *, prev_kv: bool = False
    ) -> rpc.DeleteRangeResponse:
        """Delete a key, or a range."""
        request = rpc.DeleteRangeRequest(key=key, range_end=range_end, prev_kv=prev_kv)
        return rpc.DeleteRangeResponse.FromString(self.apply(Op.DELETE_RANGE, request))

    def range(self, key: bytes, range_end: bytes = b"", **more: int) -> rpc.RangeResponse:
        """Read."""
        request = rpc.RangeRequest(key=key, range_end=range_end)
        for name, one in more.items():
            setattr(request, name, one)
        return rpc.RangeResponse.FromString(self.query(Op.RANGE, request))

    def keys(self, **more: int) -> list[bytes]:
        """Return all keys, as a range returns them."""
        return [kv.key for kv in self.range(b"\0", b"\0", **more).kvs]

    def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """Apply a transaction."""
        return rpc.TxnResponse.FromString(self.apply(Op.TXN, request))

    def compact(self, revision: int) -> None:
        """Compact."""
        self.apply(Op.COMPACT, rpc.CompactionRequest(revision=revision))

    def compact_all(self, revision: int) -> None:
        """Compact, and let all rows go."""
        self.compact(revision)
        while self.due_within(PACE_MS):
            self.batch(self.now_ms + PACE_MS)

    def due_within(self, ms: int) -> bool:
        """Say whether log time must advance soon."""
        due = self.state.next_deadline_ms()
        return due is not None and due <= self.now_ms + ms

    def grant(self, lease: int, ttl: int) -> int:
        """Make a lease; return its TTL."""
        body = self.apply(Op.LEASE_GRANT, rpc.LeaseGrantRequest(ID=lease, TTL=ttl))
        return rpc.LeaseGrantResponse.FromString(body).TTL

    def keep_alive(self, *leases: int) -> list[int]:
        """Renew leases; return their TTLs."""
        body = self.apply(Op.LEASE_KEEP_ALIVE, rpc.KeepAliveBatch(ids=leases))
        return list(rpc.KeepAliveBatchReply.FromString(body).ttls)

    def revoke(self, lease: int) -> None:
        """End a lease."""
        self.apply(Op.LEASE_REVOKE, rpc.LeaseRevokeRequest(ID=lease))

    def time_to_live(self, lease: int) -> rpc.LeaseTimeToLiveResponse:
        """Return how long a lease lasts, and its keys."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True)
        return rpc.LeaseTimeToLiveResponse.FromString(self.query(Op.LEASE_TIME_TO_LIVE, request))

    def leases(self) -> list[int]:
        """Return all leases."""
        body = self.query(Op.LEASE_LEASES, rpc.LeaseLeasesRequest())
        return [lease.ID for lease in rpc.LeaseLeasesResponse.FromString(body).leases]

    def hash(self, revision: int = 0) -> int:
        """Return the hash of the rows."""
        return [*self.state.hashes(revision)][-1].hash


def put_op(key: bytes, value: bytes = b"", **more: int) -> rpc.RequestOp:
    """Return a put for a transaction."""
    op = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))
    for name, one in more.items():
        setattr(op.request_put, name, one)
    return op


def delete_op(key: bytes, range_end: bytes = b"") -> rpc.RequestOp:
    """Return a deletion for a transaction."""
    request = rpc.DeleteRangeRequest(key=key, range_end=range_end)
    return rpc.RequestOp(request_delete_range=request)


def range_op(key: bytes, range_end: bytes = b"", **more: int) -> rpc.RequestOp:
    """Return a range for a transaction."""
    op = rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=range_end))
    for name, one in more.items():
        setattr(op.request_range, name, one)
    return op


def txn_op(request: rpc.TxnRequest) -> rpc.RequestOp:
    """Return a nested transaction."""
    return rpc.RequestOp(request_txn=request)
