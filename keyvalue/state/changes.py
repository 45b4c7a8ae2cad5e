"""Changes of keys, and the latest ones in memory, in the order of the log.

Positions
    Every member applies the same commands, so every member sees the same changes at the same
    positions. The position of a change is the revision of the log entry that made it
    (:mod:`.store`). Several keys may change in one entry; these changes have one position. A key
    that expires does so at the end of a batch, and the position is that end, which no revision is.
    Which keys expire at which end follows from the log alone: `Deadlines.due` has one order, and
    a snapshot has the keys that are due and still there.

What is kept
    Of an entry only the last change of each key counts: an entry is atomic, so nobody sees the
    others. A thousand APPENDs to one large value would otherwise take a thousand times its memory.
    When there is too much, the oldest entries go, those of the present batch too; the newest one
    stays, since its values are those of the tables. Watches that have missed entries replay the
    log.

What it costs
    Each write appends a pair (key, record), which the tables hold anyway. The record has value,
    expiry and position; where a key is gone, its tag says why. The number of small changes bounds
    their bytes, so only those of large ones are counted.

Slots that move
    When a partition gives up slots, its members note a row that ends the watches of their keys,
    behind all changes that are this partition's. In a partition the positions here are revisions:
    log positions, and what :mod:`.ownership` adds to them.

Who waits
    A watch that has everything registers its prefix (`expect`) and sleeps. A batch looks up the
    beginnings of its keys in the registered prefixes, one look-up for each length of prefix that is
    waited for. So a thousand watches that nothing happens to cost as much as one.

    Ten thousand watches of one key take a quarter of a second to wake and to push. In one go that
    would hold up heartbeats, so a batch wakes some, and each of these wakes another one.
"""

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import trio

from ...node.protocol.signal import Signal
from ...storage.tables.memtable import Record
from ..limits import AT_ONCE_BYTES
from ..slots.ranges import Slots, text_of

__all__ = [
    "KEPT_CHANGES",
    "KEPT_CHANGE_BYTES",
    "PAGE_BYTES",
    "PAGE_CHANGES",
    "Change",
    "ChangeKind",
    "RecentChanges",
    "Row",
    "changes_of",
    "moved_row",
    "position_of",
]

KEPT_CHANGES: Final = 65_536
"""Changes that a member keeps in memory. Fewer, and watchers that were away for seconds must replay
the log; more, and a member takes more memory."""

KEPT_CHANGE_BYTES: Final = 32 << 20
"""Bytes of keys and values together, of the large changes among them."""

_SMALL_BYTES: Final = 256
"""Key and value of a small change. All that are kept take 16 MiB at most. Larger, and they take
more; smaller, and more changes are counted, which costs as much as noting them."""

PAGE_CHANGES: Final = 1000
"""Changes that one read returns, or one entry's: about a millisecond. More would hold up the event
loop; fewer cost more reads."""

PAGE_BYTES: Final = AT_ONCE_BYTES
"""Bytes of keys and values after which a read ends as well. A slow watch holds on to what it has
read, also when nothing else does: a port sends this much at once, and then waits for its client."""

LENT_MS: Final = 60_000
"""Log time for which changes are kept after the last reader that asks from time to time. Less, and
a move begins again because its director was held up; more, and writes cost more for longer."""

_SPARE: Final = 64
"""When there is too much, one part in so many goes as well. Less at a time would move all others
each time; more would hold up the event loop."""

_HEAD_BYTES: Final = 64
"""A watch waits for keys with this much of its prefix. More: many lengths of prefix, of which each
key is looked up in all. Less: watches of long prefixes wake up in vain."""

DELETED: Final = 256  # tags of rows without a record; those of records are smaller
EXPIRED: Final = 257
FLUSHED: Final = 258
MOVED: Final = 259  # and greater ones: rows that concern watches of any prefix

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
    MOVED = "moved"
    """The partition has given up slots. Watches see it and end; no program does."""


_KINDS: Final = {
    DELETED: ChangeKind.DELETED,
    EXPIRED: ChangeKind.EXPIRED,
    FLUSHED: ChangeKind.FLUSHED,
    MOVED: ChangeKind.MOVED,
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
        position: up to where all is applied.
        moved: notified when `position` rises.
        keeping: whether changes are kept now, see `rest`.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self.keeping = True
        self._lent = False  # asked for by `keep_awhile` since the last batch
        self._lent_until_ms: int | None = None  # None: until somebody calls `rest`
        self.moved = Signal()
        self._rows: list[Row] = []
        self._counted = 0  # rows up to `position`; behind them are those of the present batch
        self._gone = position  # no entry up to here need be here
        self._large = deque[tuple[int, int]]()  # position and bytes of each large row
        self._bytes = 0  # of all these
        self._shrink_at = KEPT_CHANGE_BYTES
        self._waiting: dict[bytes, Waiting] = {}
        self._woken = trio.lowlevel.ParkingLot()  # their keys have changed
        self._lengths: dict[int, int] = {}  # of the prefixes in `_waiting`: how many have it

    @property
    def start(self) -> int:
        """Every change after this position is here."""
        # Nobody misses an entry that is gone before its batch is applied whole.
        return min(self._gone, self.position)

    # --- writing

    def rest(self) -> None:
        """Keep no changes until `keep` is called: nobody watches yet.

        Kept records are not freed, so new ones take memory that is in no cache of the processor.
        """
        self._clear()
        self._gone = self.position
        self.keeping = self._lent = False

    def keep(self) -> None:
        """Keep changes from now on."""
        # In the midst of a batch, too: `_gone` is the last entry that was not noted.
        self.keeping, self._lent, self._lent_until_ms = True, False, None

    def keep_awhile(self) -> None:
        """Keep changes from now on, until a minute of log time has passed without such a call."""
        if not self.keeping:
            self.keeping, self._lent_until_ms = True, 0
        # The minute begins with the next batch: the log's time may be that of an hour ago.
        self._lent = self._lent_until_ms is not None

    def tire(self, now_ms: int) -> None:
        """Log time is `now_ms`: `rest` if changes were only kept for a while, and it is over."""
        if self._lent:
            self._lent, self._lent_until_ms = False, now_ms + LENT_MS
        elif self.keeping and self._lent_until_ms is not None and now_ms >= self._lent_until_ms:
            self.rest()

    def note(self, key: bytes, record: Record) -> None:
        """Note a change of the present batch: a record, or one with a tag like `DELETED`."""
        if not self.keeping:
            self._gone = record[2]
            return
        self._rows.append((key, record))
        size = len(key) + len(record[0])
        if size > _SMALL_BYTES:
            self._weigh(record[2], size)

    def noting(self, put: Callable[[bytes, Record], None]) -> Callable[[bytes, Record], None]:
        """Return a function that puts a record, and notes the change."""
        append = self._rows.append

        # No method, and no call of `note`: each write comes here.
        def put_and_note(key: bytes, record: Record) -> None:
            put(key, record)
            if not self.keeping:
                self._gone = record[2]
                return
            append((key, record))
            size = len(key) + len(record[0])
            if size > _SMALL_BYTES:
                self._weigh(record[2], size)

        return put_and_note

    def advance(self, position: int) -> None:
        """All changes up to `position`, the end of a batch, are noted."""
        # Once per batch, and often for one row: as few steps as possible.
        rows, before, count = self._rows, self.position, len(self._rows)
        self.position = position
        if count > self._counted:
            if self._gone > before:  # entries of this batch, with keys that nobody knows any more
                self._wake_all(before)
            elif self._waiting:
                self._wake(rows[self._counted :], before)
            self._counted = count
            if count > KEPT_CHANGES or self._bytes > KEPT_CHANGE_BYTES:
                self._drop()
        self.moved.notify()
        self.wake_some(WOKEN_AT_ONCE)

    def take(self) -> list[Row]:
        """Return all rows, and forget them: for who reads after each entry, and has no watches."""
        rows = self._rows[:]
        self._clear()
        return rows

    def restart(self, position: int) -> None:
        """Forget everything: the state was replaced by that of a snapshot."""
        before = self.position
        self._clear()
        self._gone = self.position = position
        self._wake_all(before)
        self.moved.notify()
        self.wake_some(WOKEN_AT_ONCE)

    def _weigh(self, position: int, size: int) -> None:
        """Count a large row that was just noted."""
        self._large.append((position, size))
        self._bytes += size
        # Amid a batch, too: the values that a batch of a megabyte makes may take gigabytes.
        if self._bytes > self._shrink_at:
            self._shrink()

    def _shrink(self) -> None:
        """Of the present batch, forget what does not count; then drop the oldest entries."""
        rows, large, counted = self._rows, self._large, self._counted
        fresh = [*_last_ones(rows[counted:])]
        fresh.reverse()
        rows[counted:] = fresh
        while large and large[-1][0] > self.position:
            self._bytes -= large.pop()[1]
        for key, record in fresh:
            size = len(key) + len(record[0])
            if size > _SMALL_BYTES:
                large.append((record[2], size))
                self._bytes += size
        self._drop()

    def _drop(self) -> None:
        """Drop the oldest entries, so that there is room for some; but not the newest one."""
        rows, large, upto = self._rows, self._large, self._gone
        newest = position_of(rows[-1])
        if len(rows) > KEPT_CHANGES:
            upto = position_of(rows[len(rows) - KEPT_CHANGES + KEPT_CHANGES // _SPARE - 1])
        most = KEPT_CHANGE_BYTES - KEPT_CHANGE_BYTES // _SPARE
        while self._bytes > most and large[0][0] < newest:
            upto, size = max(upto, large[0][0]), large.popleft()[1]
            self._bytes -= size
        self._gone = upto = min(upto, newest - 1)
        while large and large[0][0] <= upto:
            self._bytes -= large.popleft()[1]
        gone = bisect_right(rows, upto, key=position_of)
        del rows[:gone]
        self._counted = max(self._counted - gone, 0)
        # Not again for each row of an entry that is too large by itself, or nearly.
        self._shrink_at = max(KEPT_CHANGE_BYTES, self._bytes + KEPT_CHANGE_BYTES // 4)

    def _clear(self) -> None:
        self._rows.clear()
        self._large.clear()
        self._counted = self._bytes = 0
        self._shrink_at = KEPT_CHANGE_BYTES

    # --- reading

    def after(self, position: int, prefix: bytes) -> list[Change]:
        """Return all changes after a position whose keys begin with a prefix."""
        found: list[Change] = []
        while position < self.position:
            page, position = self.page(position, prefix)
            found += page
        return found

    def page(
        self, position: int, prefix: bytes, limit: int = PAGE_CHANGES
    ) -> tuple[list[Change], int]:
        """Return changes after a position whose keys begin with a prefix, and how far they go.

        Args:
            position: not below `start`.
            prefix: of the keys. FLUSHALL changes all keys.
            limit: rows to look at; the entry in which they end is looked at whole.

        Returns:
            Changes of whole entries, of `PAGE_BYTES` or one entry, and the position up to which
            there are no others.
        """
        rows, counted = self._rows, self._counted
        begin = bisect_right(rows, position, hi=counted, key=position_of)
        found: list[Row] = []
        size, upto = 0, position
        for at in range(begin, counted):
            row = rows[at]
            key, record = row
            if record[2] != upto:  # the first of another entry
                if at - begin >= limit or size >= PAGE_BYTES:
                    break
                upto = record[2]
            if key.startswith(prefix) or record[3] >= FLUSHED:
                found.append(row)
                size += len(key) + len(record[0])
        else:
            upto = max(position, self.position)
        return _changes(found), upto

    def newest(
        self, after: int, wants: Callable[[bytes], bool], limit: int, most_bytes: int
    ) -> tuple[list[Row], int] | None:
        """Return the last row of each key that has changed after a position, and how far they go.

        Args:
            after: not below `start`.
            wants: whether a key is wanted.
            limit: rows to look at; the entry in which they end is looked at whole.
            most_bytes: of keys and values, in the same way.

        Returns:
            The rows, and the position up to which nothing else has changed; None if FLUSHALL is
            among the changes.
        """
        rows, counted = self._rows, self._counted
        begin = bisect_right(rows, after, hi=counted, key=position_of)
        found: dict[bytes, Record] = {}
        size, upto = 0, after
        for at in range(begin, counted):
            key, record = rows[at]
            if record[2] != upto:  # the first of another entry
                if at - begin >= limit or size >= most_bytes:
                    break
                upto = record[2]
            if record[3] == FLUSHED:
                return None
            if record[3] != MOVED and wants(key):
                found[key] = record
                size += len(key) + len(record[0])
        else:
            upto = max(after, self.position)
        return list(found.items()), upto

    # --- waiting

    def expect(self, prefix: bytes) -> Waiting:
        """Wait for the next change of a key with a prefix: park in the returned `lot`.

        With a long prefix the change may be that of another key.
        """
        head = prefix[:_HEAD_BYTES]
        waiting = self._waiting.get(head)
        if waiting is None:
            waiting = self._waiting[head] = Waiting()
            self._lengths[len(head)] = self._lengths.get(len(head), 0) + 1
        return waiting

    def dismiss(self, prefix: bytes, waiting: Waiting) -> None:
        """Forget a prefix for which no task waits any more."""
        head = prefix[:_HEAD_BYTES]
        if not len(waiting.lot) and self._waiting.get(head) is waiting:
            self._forget(head)

    def wake_some(self, count: int = 1) -> None:
        """Wake some of the watches whose keys have changed. Each of them wakes another one."""
        if self._woken:
            self._woken.unpark(count=count)

    def _wake(self, fresh: list[Row], before: int) -> None:
        """Wake the watches that wait for what has just been changed."""
        for key, record in fresh:
            if record[3] >= FLUSHED:
                self._wake_all(before)
                return
            begins = [key[:length] for length in self._lengths if length <= len(key)]
            for head in begins:
                if head in self._waiting:
                    self._end(self._waiting[head], before)
                    self._forget(head)

    def _wake_all(self, before: int) -> None:
        for waiting in self._waiting.values():
            self._end(waiting, before)
        self._waiting.clear()
        self._lengths.clear()

    def _forget(self, head: bytes) -> None:
        del self._waiting[head]
        count = self._lengths.pop(len(head)) - 1
        if count:
            self._lengths[len(head)] = count

    def _end(self, waiting: Waiting, before: int) -> None:
        waiting.woken_at = before
        waiting.lot.repark_all(self._woken)


def moved_row(slots: Slots, upto: int, revision: int) -> Row:
    """Return the row that ends watches.

    Args:
        slots: that the partition has given up.
        upto: revision up to which it had their changes.
        revision: of the entry that gave them up.
    """
    return b"", (b"%d %b" % (upto, text_of(slots).encode()), 0, revision, MOVED)


def position_of(row: Row) -> int:
    """Return the position of the entry that has made a change."""
    return row[1][2]


def changes_of(rows: list[Row], after: int, prefix: bytes) -> list[Change]:
    """Return the changes in rows after a position, of keys with a prefix."""
    begin = bisect_right(rows, after, key=position_of)
    return _changes(
        [row for row in rows[begin:] if row[0].startswith(prefix) or row[1][3] >= FLUSHED]
    )


def _changes(rows: list[Row]) -> list[Change]:
    """Return the changes in rows, which are in the order of the log."""
    found: list[Change] = []
    following = -1  # the position of the row behind
    for key, (value, expires_at_ms, position, tag) in _last_ones(rows):
        more = position == following
        kind = _KINDS.get(tag)
        if kind is None or tag == MOVED:
            kind = kind or ChangeKind.SET
            found.append(Change(position, kind, key, value, expires_at_ms, more))
        else:
            found.append(Change(position, kind, key, None, 0, more))
        following = position
    found.reverse()
    return found


def _last_ones(rows: list[Row]) -> Iterator[Row]:
    """Yield the last row of each key of each entry, and none before a FLUSHALL; from the end."""
    following, flushed = -1, False
    seen = set[bytes]()
    for row in reversed(rows):
        key, record = row
        if record[2] != following:
            following, flushed = record[2], False
            seen.clear()
        if record[3] == MOVED:
            yield row
        elif record[3] == FLUSHED and not flushed:
            flushed = True
            yield row
        elif not flushed and key not in seen:
            seen.add(key)
            yield row
