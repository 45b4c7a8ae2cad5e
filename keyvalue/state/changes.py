"""Changes of keys, and the latest ones in memory, in the order of the log.

Positions
    Every member applies the same commands, so every member sees the same changes at the same
    positions. The position of a change is the revision of the log entry that made it
    (:mod:`.store`). Several keys may change in one entry; these changes have one position. A key
    that expires does so at the end of a batch, and the position is that end, which no revision is.
    Which keys expire at which end follows from the log alone: `Deadlines.due` has one order, and
    a snapshot has the keys that are due and still there.

What it costs
    Each write appends a pair (key, record), which the tables hold anyway. The record has value,
    expiry and position; where a key is gone, its tag says why. Sizes are added up once per batch,
    and the oldest rows go a thousand at a time.

Who waits
    A watch that has everything registers its prefix (`expect`) and sleeps. A batch looks up the
    beginnings of its keys in the registered prefixes, one look-up for each length of prefix that is
    waited for. So a thousand watches that nothing happens to cost as much as one.

    Ten thousand watches of one key take a quarter of a second to wake and to push. In one go that
    would hold up heartbeats, so a batch wakes some, and each of these wakes another one.
"""

import enum
from bisect import bisect_right
from typing import Final, NamedTuple, TypeAlias

import trio

from ...node.protocol.signal import Signal
from ...storage.tables.memtable import Record

__all__ = ["KEPT_CHANGES", "KEPT_CHANGE_BYTES", "Change", "ChangeKind", "RecentChanges"]

KEPT_CHANGES: Final = 65_536
"""Changes that a member keeps in memory. Fewer, and watchers that were away for seconds must replay
the log; more, and a member takes more memory."""

KEPT_CHANGE_BYTES: Final = 32 << 20
"""Bytes of their keys and values together."""

PAGE_CHANGES: Final = 1000
"""Changes that one read returns, or one entry's: about a millisecond. More would hold up the event
loop; fewer cost more reads."""

_DROPPED: Final = 1024
"""Rows that go at once. One at a time would move all others each time; more at a time would hold
up the event loop."""

DELETED: Final = 256  # tags of rows without a record; those of records are smaller
EXPIRED: Final = 257
FLUSHED: Final = 258

WOKEN_AT_ONCE: Final = 100
"""Watches that a batch wakes; each of these wakes another one. Fewer, and watches of one busy key
take more turns of the event loop; more, and other tasks wait longer for theirs."""

Row: TypeAlias = tuple[bytes, Record]
"""A key, and its record; without one ``(b"", 0, position, DELETED)``, or another of these tags."""


class ChangeKind(enum.Enum):
    """What happened to a key."""

    SET = "set"
    """It has this value and this expiry now; one of them may be as before."""
    DELETED = "deleted"
    """A command has deleted it."""
    EXPIRED = "expired"
    """Its time was over."""
    FLUSHED = "flushed"
    """FLUSHALL has deleted all keys. The key is empty."""


_KINDS: Final = {
    DELETED: ChangeKind.DELETED,
    EXPIRED: ChangeKind.EXPIRED,
    FLUSHED: ChangeKind.FLUSHED,
}


class Change(NamedTuple):
    """One committed change of one key.

    Args:
        position: of its log entry; rises from entry to entry.
        kind: what happened.
        key: the key.
        value: with `SET`; None otherwise.
        expires_at_ms: with `SET`: when the key expires, in log time; 0 for never.
        more: another change of the same entry follows. Store your place where this is false: a
            watch that resumes after this position does not return the other changes of the entry.
    """

    position: int
    kind: ChangeKind
    key: bytes
    value: bytes | None = None
    expires_at_ms: int = 0
    more: bool = False


class Waiting:
    """The watches of one prefix that wait; made by `RecentChanges.expect`.

    Attributes:
        lot: where their tasks are parked.
        woken_at: None while nothing has come; then the position before that batch.
    """

    __slots__ = ("lot", "woken_at")

    def __init__(self) -> None:
        self.lot = trio.lowlevel.ParkingLot()
        self.woken_at: int | None = None


class RecentChanges:
    """The latest changes of a member's keys.

    Args:
        position: up to where the state is complete when it begins.

    Attributes:
        start: every change after this position is here.
        position: up to where all is applied.
        moved: notified when `position` rises.
        note: takes the row of a change of the present batch.
    """

    def __init__(self, position: int) -> None:
        self.start = self.position = position
        self.moved = Signal()
        self._rows: list[Row] = []
        self._bytes = 0
        self._counted = 0  # rows up to `position`; behind them are those of the present batch
        self._waiting: dict[bytes, Waiting] = {}
        self._woken = trio.lowlevel.ParkingLot()  # their keys have changed
        self._lengths: dict[int, int] = {}  # of the prefixes in `_waiting`: how many have it
        # Bound, because each write calls it.
        self.note = self._rows.append

    def advance(self, position: int) -> None:
        """All changes up to `position`, the end of a batch, are noted."""
        # Once per batch, and often for one row: as few steps as possible.
        rows, counted, before = self._rows, self._counted, self.position
        self.position = position
        count = len(rows)
        if count > counted:
            fresh, size = rows[counted:], self._bytes
            for key, record in fresh:
                size += len(key) + len(record[0])
            self._bytes, self._counted = size, count
            if count > KEPT_CHANGES or size > KEPT_CHANGE_BYTES:
                self._drop(counted)
            if self._waiting:
                self._wake(fresh, before)
        self.moved.notify()

    def _drop(self, most: int) -> None:
        """Drop the oldest rows, but none of the present batch, so that a reader sees it whole."""
        rows, gone = self._rows, 0
        while gone < most and (len(rows) - gone > KEPT_CHANGES or self._bytes > KEPT_CHANGE_BYTES):
            step = rows[gone : min(gone + _DROPPED, most)]
            self._bytes -= sum([len(key) + len(record[0]) for key, record in step])
            gone += len(step)
        if gone:
            self.start = rows[gone - 1][1][2]
            del rows[:gone]
            self._counted -= gone

    def restart(self, position: int) -> None:
        """Forget everything: the state was replaced by that of a snapshot."""
        before = self.position
        self._rows.clear()
        self._bytes = self._counted = 0
        self.start = self.position = position
        for waiting in [*self._waiting.values()]:
            self._end(waiting, before)
        self.wake_some(WOKEN_AT_ONCE)
        self._waiting.clear()
        self._lengths.clear()
        self.moved.notify()

    # --- reading

    def after(self, position: int, prefix: bytes) -> list[Change]:
        """Return all changes after a position whose keys begin with a prefix."""
        return self.page(position, prefix, len(self._rows))[0]

    def page(
        self, position: int, prefix: bytes, limit: int = PAGE_CHANGES
    ) -> tuple[list[Change], int]:
        """Return changes after a position whose keys begin with a prefix, and how far they go.

        Args:
            position: not below `start`.
            prefix: of the keys. FLUSHALL changes all keys.
            limit: rows to look at; the entry in which they end is looked at whole.

        Returns:
            Changes of whole entries, and the position up to which there are no others.
        """
        rows, counted = self._rows, self._counted
        begin = bisect_right(rows, position, hi=counted, key=_position_of)
        end = min(begin + limit, counted)
        while begin < end < counted and _position_of(rows[end]) == _position_of(rows[end - 1]):
            end += 1
        found = [
            row for row in rows[begin:end] if row[0].startswith(prefix) or row[1][3] == FLUSHED
        ]
        upto = self.position if end == counted else _position_of(rows[end - 1])
        return _changes_of(found), max(position, upto)

    # --- waiting

    def expect(self, prefix: bytes) -> Waiting:
        """Wait for the next change of a key with a prefix: park in the returned `lot`."""
        waiting = self._waiting.get(prefix)
        if waiting is None:
            waiting = self._waiting[prefix] = Waiting()
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        return waiting

    def dismiss(self, prefix: bytes, waiting: Waiting) -> None:
        """Forget a prefix for which no task waits any more."""
        if not len(waiting.lot) and self._waiting.get(prefix) is waiting:
            self._forget(prefix)

    def wake_some(self, count: int = 1) -> None:
        """Wake some of the watches whose keys have changed. Each of them wakes another one."""
        self._woken.unpark(count=count)

    def _wake(self, fresh: list[Row], before: int) -> None:
        """Wake the watches that wait for what has just been changed."""
        for key, record in fresh:
            if record[3] == FLUSHED:
                hit = [*self._waiting]
            else:
                begins = [key[:length] for length in self._lengths if length <= len(key)]
                hit = [prefix for prefix in begins if prefix in self._waiting]
            for prefix in hit:
                self._end(self._waiting[prefix], before)
                self._forget(prefix)
        self.wake_some(WOKEN_AT_ONCE)

    def _forget(self, prefix: bytes) -> None:
        del self._waiting[prefix]
        count = self._lengths.pop(len(prefix)) - 1
        if count:
            self._lengths[len(prefix)] = count

    def _end(self, waiting: Waiting, before: int) -> None:
        waiting.woken_at = before
        waiting.lot.repark_all(self._woken)


def _position_of(row: Row) -> int:
    return row[1][2]


def _changes_of(rows: list[Row]) -> list[Change]:
    """Return the changes in rows, which are in the order of the log."""
    found: list[Change] = []
    following = -1  # the position of the row behind
    for key, (value, expires_at_ms, position, tag) in reversed(rows):
        more = position == following
        kind = _KINDS.get(tag)
        if kind is None:
            found.append(Change(position, ChangeKind.SET, key, value, expires_at_ms, more))
        else:
            found.append(Change(position, kind, key, None, 0, more))
        following = position
    found.reverse()
    return found
