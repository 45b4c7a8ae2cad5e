"""Whether a store may vote: the cluster began with it, or it was admitted since.

A store that was made when the cluster already had a history stands in the place of one that was
lost, with its votes and with the entries that it had acknowledged. It has no vote, durably from its
making on, until the others have admitted it. :mod:`quorate.node.membership.admission` has the
rules, and why they are safe.
"""

from __future__ import annotations

import enum
import struct
from hashlib import blake2b
from typing import Final

import attrs

from ...errors import StorageError
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted

STANDING_KEY: Final = b"standing"

_HEAD: Final = struct.Struct("<Bqq")
_FOUNDER: Final = struct.Struct("<iQ")


class StandingKind(enum.IntEnum):
    """How a store stands to its cluster."""

    FRESH = 0
    """Just made; the cluster begins with it, or refuses it."""
    RECOVERING = 1
    """Made in the place of a lost one: it follows, and has no vote until it is admitted."""
    MEMBER = 2
    """It has a vote."""


@attrs.frozen
class Standing:
    """How a store stands to its cluster.

    Args:
        kind: whether it has a vote.
        founders: member and instance id of each store with which the cluster began, ascending;
            empty unless `kind` is MEMBER.
        floor: term and position at which the longest of their logs ended then: what the cluster
            began with, none unless it was restored or forced. A log that ends below it is a part
            of that at most.
    """

    kind: StandingKind = StandingKind.FRESH
    founders: tuple[tuple[int, int], ...] = ()
    floor: tuple[int, int] = (-1, 0)

    @property
    def history(self) -> int:
        """What tells the history of this cluster from others, 64 bits; 0 if it is not known yet."""
        if self.kind is not StandingKind.MEMBER:
            return 0
        return int.from_bytes(blake2b(_body(self), digest_size=8).digest()) or 1


def _body(standing: Standing) -> bytes:
    founders = b"".join(_FOUNDER.pack(*each) for each in standing.founders)
    return _HEAD.pack(standing.kind, *standing.floor) + founders


def encode_standing(standing: Standing) -> bytes:
    """Return the row for `STANDING_KEY`."""
    return seal(STANDING_KEY, _body(standing))


def decode_standing_untrusted(value: bytes | None) -> Standing:
    """Decode the row of `STANDING_KEY`.

    Raises:
        StorageError: it is missing or damaged.
    """
    body = unseal_untrusted(STANDING_KEY, value)
    kind, term, position = unpack_untrusted(_HEAD, STANDING_KEY, body[: _HEAD.size])
    rest = body[_HEAD.size :]
    if kind not in {*StandingKind} or len(rest) % _FOUNDER.size:
        raise StorageError(f"row {STANDING_KEY!r} is damaged: kind {kind}, {len(body)} bytes")
    founders = tuple((member, instance) for member, instance in _FOUNDER.iter_unpack(rest))
    return Standing(StandingKind(kind), founders, (term, position))
