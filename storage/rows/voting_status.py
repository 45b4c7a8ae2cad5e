"""Whether a store may vote.

A store made when its cluster already has a history replaces one that was lost, and with it the
votes and the entries that it had acknowledged. Such a store has no vote, durably, from its first
moment until the other members admit it. :mod:`quorate.node.membership.admission` has the rules and
the reason why they are safe.

::

    row "standing"   kind       u8    0 NEW, 1 RECOVERING, 2 VOTER, 3 REMOVED
                     term       i64   floor: term, and ...
                     position   i64   ... end, of the longest log the cluster began with
                     founders   for each: member i32, instance id u64
                     checksum   u32   CRC-32C of key and body (see `lmdb.sealed_rows`)

The key of the row is older than the name of this file.
"""

from __future__ import annotations

import enum
import struct
from hashlib import blake2b
from typing import Final

import attrs

from ...errors import StorageError
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from .log_end import EMPTY_LOG, LogEnd

VOTING_STATUS_KEY: Final = b"standing"

_HEAD: Final = struct.Struct("<Bqq")
_FOUNDER: Final = struct.Struct("<iQ")


class VotingRight(enum.IntEnum):
    """Whether a store has a vote. The numbers are on disk."""

    NEW = 0
    """Just made. The cluster is founded with it, or refuses it."""
    RECOVERING = 1
    """Made to replace a lost store. It follows, without a vote, until it is admitted."""
    VOTER = 2
    """It has a vote."""
    REMOVED = 3
    """Its member was removed from the cluster."""


@attrs.frozen
class VotingStatus:
    """Whether a store has a vote, and with which stores its cluster was founded.

    Args:
        kind: whether it has a vote.
        founders: member and instance id of each founding store, ascending; empty unless VOTER.
        floor: end of the longest log among the founding stores. `EMPTY_LOG` unless the cluster was
            restored or a quorum was forced. A log that ends below it misses something that the
            cluster began with.
    """

    kind: VotingRight = VotingRight.NEW
    founders: tuple[tuple[int, int], ...] = ()
    floor: LogEnd = EMPTY_LOG

    @property
    def history(self) -> int:
        """A 64-bit fingerprint of the founding; 0 while it is not known.

        Members of a cluster that was founded anew differ in it, and refuse each other.
        """
        if self.kind is not VotingRight.VOTER:
            return 0
        # 0 says "not known".
        return int.from_bytes(blake2b(_body(self), digest_size=8).digest()) or 1


def _body(status: VotingStatus) -> bytes:
    founders = b"".join(_FOUNDER.pack(*each) for each in status.founders)
    return _HEAD.pack(status.kind, *status.floor) + founders


def encode_voting_status(status: VotingStatus) -> bytes:
    """Return the row for `VOTING_STATUS_KEY`."""
    return seal(VOTING_STATUS_KEY, _body(status))


def decode_voting_status_untrusted(value: bytes | None) -> VotingStatus:
    """Decode the row of `VOTING_STATUS_KEY`.

    Raises:
        StorageError: it is missing or damaged.
    """
    body = unseal_untrusted(VOTING_STATUS_KEY, value)
    kind, term, position = unpack_untrusted(_HEAD, VOTING_STATUS_KEY, body[: _HEAD.size])
    rest = body[_HEAD.size :]
    # A number that is no kind must not pass: any guess could give the store a vote.
    if kind not in {*VotingRight} or len(rest) % _FOUNDER.size:
        raise StorageError(f"row {VOTING_STATUS_KEY!r} is damaged: kind {kind}, {len(body)} bytes")
    founders = tuple((member, instance) for member, instance in _FOUNDER.iter_unpack(rest))
    return VotingStatus(VotingRight(kind), founders, LogEnd(term, position))
