"""Leases, on a clock of their own.

The lease clock is log time without the gaps between terms: from the last batch of one term to the
first of the next. While there is no leader, no client can renew a lease; so an election takes
nothing of it. Nor does it give anything: the time that a lease has left is the same before and
after. etcd starts each lease anew after an election, or needs checkpoints that are written apart.

Two rules follow:

- Log time advances each second while any lease exists. Otherwise the last batch of a term may be
  hours older than the leader's death, and the gap would be that long.
- No lease expires within two seconds of a new term. Its client may just be looking for the leader.

A lease that is over exists until a batch removes it; until then it can be renewed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ...storage.tables.deadlines import Deadlines
from ..codes import (
    LEASE_EXISTS,
    LEASE_NOT_FOUND,
    LEASE_TTL_TOO_LARGE,
    Code,
    EtcdError,
)
from .notes import CLOCK_NOTE, LEASE_NOTES

if TYPE_CHECKING:
    from .rows import StateTables

__all__ = ["GRACE_MS", "MIN_TTL", "TICK_MS", "Leases"]

MIN_TTL: Final = 2
"""Seconds; a shorter lease is made as long, as etcd does by default."""

MAX_TTL: Final = 9_000_000_000
"""Seconds; etcd's."""

MAX_LEASES: Final = 200_000
"""Leases are in memory, and each has a note. More are refused; etcd has no bound."""

TICK_MS: Final = 1000
"""How far log time may fall behind while a lease exists. Smaller, and an idle cluster writes more;
larger, and a leader's death gives leases that much more time."""

GRACE_MS: Final = 2000
"""Lease time after the beginning of a term in which no lease expires. Smaller, and a client that
comes late after an election loses its lease; larger, and a dead client's lease lasts longer."""

_ID: Final = struct.Struct(">q")
_LEASE: Final = struct.Struct(">qq")  # ttl in seconds, deadline
_CLOCK: Final = struct.Struct(">qq")


class Leases:
    """All leases. Deadlines are lease time in milliseconds.

    Args:
        tables: their notes hold the leases.
    """

    def __init__(self, tables: StateTables) -> None:
        self._tables = tables
        self._ttls: dict[int, int] = {}
        self._deadlines = Deadlines({}, tracked=False)
        self._skipped_ms = 0  # the gaps between terms, all together
        self._grace_end = 0  # lease time until which none expires
        self._last_ms = 0  # log time of the last batch

    def load(self) -> None:
        """Read the leases from the notes."""
        self._ttls = {}
        deadlines: dict[bytes, int] = {}
        notes = self._tables.notes.rows
        for key, row in notes.items():
            if key.startswith(LEASE_NOTES):
                (lease,) = _ID.unpack_from(key, len(LEASE_NOTES))
                self._ttls[lease], deadlines[_ID.pack(lease)] = _LEASE.unpack(row)
        self._deadlines = Deadlines(deadlines, tracked=False)
        self._skipped_ms, self._grace_end = _CLOCK.unpack(notes.get(CLOCK_NOTE, bytes(_CLOCK.size)))
        self._last_ms = self._tables.timestamp_ms

    def __contains__(self, lease: object) -> bool:
        """Say whether a lease exists."""
        return lease in self._ttls

    def __len__(self) -> int:
        """Return how many leases exist."""
        return len(self._ttls)

    def ids(self) -> list[int]:
        """Return all leases; those that end first come first."""
        by_key = self._deadlines.by_key
        return sorted(self._ttls, key=lambda lease: (by_key[_ID.pack(lease)], lease))

    def ttl(self, lease: int) -> int | None:
        """Return for how many seconds a lease was granted; None if it does not exist."""
        return self._ttls.get(lease)

    def left_ms(self, lease: int, now_ms: int) -> int:
        """Return how long a lease that exists lasts without renewal; not negative."""
        return max(self._deadlines.by_key[_ID.pack(lease)] - (now_ms - self._skipped_ms), 0)

    # --- changes

    def grant(self, lease: int, ttl: int, now_ms: int) -> int:
        """Make a lease; return its TTL, which is at least `MIN_TTL`.

        Raises:
            EtcdError: there is one with this id, it would be too long, or there are too many.
        """
        if ttl > MAX_TTL:
            raise EtcdError(*LEASE_TTL_TOO_LARGE)
        if lease in self._ttls:
            raise EtcdError(*LEASE_EXISTS)
        if not lease:
            raise EtcdError(
                Code.INVALID_ARGUMENT, "etcdserver: a lease cannot have the id 0 in the log"
            )
        if len(self._ttls) >= MAX_LEASES:
            raise EtcdError(
                Code.RESOURCE_EXHAUSTED,
                f"etcdserver: there are {MAX_LEASES} leases already; revoke some",
            )
        self._ttls[lease] = max(ttl, MIN_TTL)
        return self.renew(lease, now_ms)

    def renew(self, lease: int, now_ms: int) -> int:
        """Give a lease its whole TTL again, and return that; 0 if it does not exist."""
        ttl = self._ttls.get(lease)
        if ttl is None:
            return 0
        deadline = now_ms - self._skipped_ms + 1000 * ttl
        key = _ID.pack(lease)
        self._deadlines.set(key, deadline)
        self._tables.put_note(LEASE_NOTES + key, _LEASE.pack(ttl, deadline))
        return ttl

    def remove(self, lease: int) -> None:
        """Remove a lease; its keys are the caller's.

        Raises:
            EtcdError: it does not exist.
        """
        if self._ttls.pop(lease, None) is None:
            raise EtcdError(*LEASE_NOT_FOUND)
        key = _ID.pack(lease)
        self._deadlines.set(key, 0)
        self._tables.delete_note(LEASE_NOTES + key)

    # --- time

    def begin_term(self, now_ms: int) -> None:
        """Note that a term begins."""
        if not self._ttls:  # nobody would see a difference, so nothing is written
            return
        self._skipped_ms += max(now_ms - self._last_ms, 0)
        self._grace_end = now_ms - self._skipped_ms + GRACE_MS
        self._tables.put_note(CLOCK_NOTE, _CLOCK.pack(self._skipped_ms, self._grace_end))

    def advance(self, now_ms: int) -> None:
        """Note that a batch is applied."""
        self._last_ms = max(self._last_ms, now_ms)

    def first_due(self, now_ms: int) -> int | None:
        """Return a lease that is over, the earliest; None without any. The caller removes it."""
        lease_now = now_ms - self._skipped_ms
        if lease_now < self._grace_end:
            return None
        due = self._deadlines.due(lease_now, 1)
        return _ID.unpack(due[0])[0] if due else None

    def next_deadline_ms(self) -> int | None:
        """Return when log time must advance; None without leases."""
        first = self._deadlines.first()
        if first is None:
            return None
        return min(max(first, self._grace_end) + self._skipped_ms, self._last_ms + TICK_MS)
