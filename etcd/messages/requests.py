"""What an entry of the log, a query and a reply of this keyspace contain.

::

    payload   op        u8     what it is, see `Op`
              message   bytes  the protobuf message, as the client sent it

    reply     code      u8     0, or a code of gRPC
              revision  i64    of the keyspace when it was answered
              body      bytes  the protobuf message without its header; for an error its text

Commands are recorded, not their effects, as Redis's commands are. The flag `keyvalue.protocol
.payload.ETCD` marks these payloads, unlike those of Redis.

The header of a reply names the member that answered and its term. The state machine must not know
either, so the port writes the header in front of the body.
"""

import enum
import struct
from typing import Final

from ...errors import WireError
from ..codes import Code, EtcdError

__all__ = [
    "MAX_DEPTH",
    "RESTORED_RAISE",
    "Op",
    "decode_reply",
    "decode_request_untrusted",
    "encode_error",
    "encode_reply",
    "encode_request",
    "is_command",
]

RESTORED_RAISE: Final = 1_000_000_000
"""How much a restored cluster raises the revision. Less, and clients may have seen a revision of
the cluster before that comes again here, with other changes; more, and 64 bits last for fewer
restores."""

MAX_DEPTH: Final = 16
"""Transactions inside each other. Part of the state machine: without it, the bound would be that of
the protobuf library, which another version may change."""

_REPLY: Final = struct.Struct("<Bq")


class Op(enum.IntEnum):
    """What a payload asks for. The numbers are in the log."""

    RANGE = 1
    PUT = 2
    DELETE_RANGE = 3
    TXN = 4
    COMPACT = 5
    LEASE_GRANT = 6
    LEASE_REVOKE = 7
    LEASE_KEEP_ALIVE = 8
    """A `KeepAliveBatch`: renewals of one moment share an entry."""
    LEASE_TIME_TO_LIVE = 9
    LEASE_LEASES = 10
    HASH_KV = 11
    ANNOUNCE = 12
    """An `Announcement`: where a member listens for clients of etcd."""
    ANNOUNCEMENTS = 13
    """Asks for what all members have announced; answered by `Announcements`."""
    RESTORED = 14
    """A `CompactionRequest`: a cluster was made of a backup, and goes on from a revision that is
    higher by its `revision`. No client can send it."""

    # 15 is the mark of `together.py`.
    LEASE_REVOKE_CHECKED = 16
    """A `KeyValue`: revoke its `lease`, unless that got a key after its `mod_revision`. No client
    can send it, nor the next one."""
    LEASE_TIME_TO_LIVE_CHECKED = 17
    """A `KeyValue`: likewise, return keys and time of a lease."""
    TOKEN = 18
    """A `Token`: a login was done, or its token was shown again. No client can send it, nor the
    next one."""
    TOKEN_KNOWN = 19
    """A `Token` with a digest alone: asks whose it is; answered by `TokenFound`."""


_OPS: Final = {int(op): op for op in Op}

_QUERIES: Final = frozenset({
    Op.RANGE, Op.LEASE_TIME_TO_LIVE, Op.LEASE_TIME_TO_LIVE_CHECKED, Op.LEASE_LEASES, Op.HASH_KV,
    Op.ANNOUNCEMENTS, Op.TOKEN_KNOWN,
})  # fmt: skip


def is_command(op: Op) -> bool:
    """Whether an operation goes into the log. A TXN that only reads is sent as a query, too."""
    return op not in _QUERIES


def encode_request(op: Op, message: bytes) -> bytes:
    """Encode the payload of a command or query."""
    return bytes((op,)) + message


def decode_request_untrusted(payload: bytes) -> tuple[Op, bytes]:
    """Split a payload into operation and message; the message itself is not checked.

    Raises:
        WireError: the payload is empty, or the operation is unknown.
    """
    try:
        return _OPS[payload[0]], payload[1:]
    except (IndexError, KeyError):
        raise WireError(f"etcd payload {payload[:16]!r}: expected an operation first") from None


def encode_reply(revision: int, body: bytes) -> bytes:
    """Encode a reply."""
    return _REPLY.pack(Code.OK, revision) + body


def encode_error(revision: int, error: EtcdError) -> bytes:
    """Encode an error as a reply."""
    return _REPLY.pack(error.code, revision) + error.text.encode()


def decode_reply(reply: bytes) -> tuple[int, bytes]:
    """Return revision and body of a reply of our own state machine.

    Raises:
        EtcdError: the reply is an error, or a member without this keyspace has answered.
    """
    if len(reply) < _REPLY.size:
        raise EtcdError(Code.UNAVAILABLE, "etcdserver: the leader does not know etcd's keys")
    code, revision = _REPLY.unpack_from(reply)
    body = reply[_REPLY.size :]
    if code:
        raise EtcdError(Code(code), body.decode())
    return revision, body
