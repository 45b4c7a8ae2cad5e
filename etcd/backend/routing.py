"""Where a message goes: into the log, to the leader to be read, or to this member's own state.

A range is read. So is a transaction that has nothing but ranges: it changes nothing, so the log has
no use for it. As in etcd, one that holds another transaction goes into the log anyway.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, encode_request, is_command
from ..state.checks import only_reads, only_serializable, parse_untrusted

if TYPE_CHECKING:
    from random import Random

__all__ = ["Route", "Where", "only_asks_untrusted", "route_untrusted"]

_LEASE_ID_BITS: Final = 63  # positive in the signed number that an id is on the wire


class Where(enum.Enum):
    """Who answers."""

    LOG = 0
    """All members apply it."""
    LEADER = 1
    """It is read, and sees every write that was acknowledged before."""
    HERE = 2
    """It is read from what this member has applied, which may be old."""


class Route(NamedTuple):
    """Where a message goes, and the payload in which it goes there.

    `joins`: it is a put of one key, and its reply is short.
    """

    where: Where
    payload: bytes
    joins: bool = False


def route_untrusted(op: Op, message: bytes, rng: Random) -> Route:
    """Check a client's message and find its way.

    Args:
        op: what it asks for.
        message: a protobuf message as a client sent it.
        rng: draws the id of a lease for which the client has chosen none. The state machine can't:
            all members must get the same one.

    Raises:
        EtcdError: the message is bad, in etcd's words.
    """
    parsed = parse_untrusted(op, message)
    where = Where.LOG if is_command(op) else Where.LEADER
    match parsed:
        case rpc.PutRequest():
            return Route(where, encode_request(op, message), joins=not parsed.prev_kv)
        case rpc.RangeRequest():
            where = Where.HERE if parsed.serializable else Where.LEADER
        case rpc.TxnRequest():
            where = _of_transaction(parsed)
        case rpc.LeaseGrantRequest() if not parsed.ID:
            drawn = rpc.LeaseGrantRequest(TTL=parsed.TTL, ID=rng.getrandbits(_LEASE_ID_BITS) or 1)
            message = drawn.SerializeToString()
        case _:
            pass
    return Route(where, encode_request(op, message))


def only_asks_untrusted(op: Op, message: bytes) -> bool:
    """Say whether a message changes nothing.

    Raises:
        EtcdError: the message is bad, in etcd's words.
    """
    if op is not Op.TXN:
        return not is_command(op)
    parsed = parse_untrusted(op, message)
    return isinstance(parsed, rpc.TxnRequest) and only_reads(parsed)


def _of_transaction(txn: rpc.TxnRequest) -> Where:
    if not only_reads(txn):
        return Where.LOG
    # One that only compares has no range that could be old, and asks for the truth.
    has_ranges = bool(txn.success or txn.failure)
    return Where.HERE if has_ranges and only_serializable(txn) else Where.LEADER
