"""What commands work on: the tables, the log's time, and the revision of the present entry.

A record is a tuple ``(value, expires_at_ms, revision, tag)``, see `storage.tables.memtable`.

Work
    A request has a budget (:mod:`..limits`). Every lookup is charged, with the length of the value,
    because it may lie on disk. A command that makes a large value charges that as well. Once the
    budget is used up, :meth:`KeyStore.get` raises. So commands look up everything before they
    change anything.

Time
    It is the log's, never the machine's: the timestamp of the applied command, or of the last one
    for a query. A key is gone from the moment that log time reaches its expiry, even if its record
    is still in the tables. So all members agree, whenever each of them removes it.

Revisions
    Every change of a key gives it the revision of the log entry: the position of the entry's batch,
    plus the entry's index in it, plus one. A revision is never 0, which stands for an absent key.
    It is unique, because a batch has more bytes than entries. WATCH compares revisions. In a
    partition that has taken over slots, revisions are higher by a number (:mod:`.ownership`).

Tags
    A tag is the type of a value. There are only strings so far; the tag keeps what Redis would
    report as their encoding, which depends on how a string was made.
"""

from collections.abc import Callable
from typing import Final

from ...storage.tables.memtable import Record
from ...storage.tables.tables import Tables
from ..limits import LOOKUP_WORK, MAX_EXPIRED_PER_BATCH, MAX_WORK, SMALL_BYTES, work_of_bytes
from ..protocol import resp
from ..protocol.resp import CommandError
from .changes import DELETED, EXPIRED, FLUSHED, RecentChanges
from .ownership import Ownership
from .sessions import Sessions

STRING: Final = 1
"""A string that was set whole: ``int``, ``embstr`` or ``raw``, depending on its content."""
RAW_STRING: Final = 2
"""A string that APPEND or SETRANGE has changed in place: ``raw``."""
TEXT_STRING: Final = 3
"""A string that INCRBYFLOAT has printed: ``embstr`` or ``raw``, never ``int``."""

TOO_MUCH_WORK: Final = resp.error(
    "ERR too much work in one request, by large values or many keys: this command was not executed"
)


class KeyStore:
    """The keys as commands see them.

    Attributes:
        tables: they hold the records.
        sessions: replicated sessions of clients.
        changes: the latest changes, for watchers.
        put: puts a record of the present revision, and notes the change.
        now: log time in milliseconds.
        revision: given to every change.
        ownership: the slots of this partition; None in a cluster without partitions.
        null: the null reply in the protocol (RESP2 or 3) of the present request.
        principal: number of the user that has sent the present entry.
        applying: whether a log entry is being applied; otherwise a query is answered.
        left: work that the request may still do, in nanoseconds.
        walked: keys that the request's walks have looked at.
    """

    __slots__ = (
        "_get",
        "_note",
        "applying",
        "changes",
        "left",
        "now",
        "null",
        "ownership",
        "principal",
        "put",
        "revision",
        "sessions",
        "tables",
        "walked",
    )

    def __init__(self, tables: Tables, ownership: Ownership | None = None) -> None:
        shift = 0 if ownership is None else ownership.shift
        self.tables = tables
        self.ownership = ownership
        self.sessions = Sessions(tables)
        self.changes = RecentChanges(tables.position + shift)
        # Bound, because each command of the hot path looks them up.
        self._note = self.changes.note
        self._get = tables.get
        self.put = self.changes.noting(tables.put)
        self.now = tables.timestamp_ms
        if ownership is not None:
            self.now = max(self.now, ownership.now_ms)
        self.revision = tables.position + shift
        self.null = resp.NULL[0]
        self.principal = 0
        self.applying = False
        self.left = MAX_WORK
        self.walked = 0

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key; None if there is none or it has expired.

        Raises:
            CommandError: the request has used up its work.
        """
        if self.left <= 0:
            raise CommandError(TOO_MUCH_WORK)
        record = self._get(key)
        # The bytes of an expired record are not charged, since nobody sees them.
        if record is None or (record[1] and record[1] <= self.now):
            self.left -= LOOKUP_WORK
            return None
        # Small values cost no more than the lookup: charging them would only cost time here.
        size = len(record[0])
        self.left -= LOOKUP_WORK if size <= SMALL_BYTES else LOOKUP_WORK + work_of_bytes(size)
        return record

    def filter(self) -> Callable[[bytes], bool] | None:
        """Return whether walks may see a key; None if they may see all."""
        ownership = self.ownership
        return ownership.serves if ownership is not None and ownership.hides else None

    def charge(self, count: int) -> None:
        """Charge the work of making a value of `count` bytes."""
        self.left -= work_of_bytes(count)

    def set(self, key: bytes, value: bytes, expires_at_ms: int = 0, tag: int = STRING) -> None:
        """Set a key; if its expiry has passed already, delete it."""
        # As in Redis: an expiry in the past deletes, and nobody ever sees the value.
        if expires_at_ms and expires_at_ms <= self.now:
            self.delete(key)
        else:
            self.put(key, (value, expires_at_ms, self.revision, tag))

    def delete(self, key: bytes) -> None:
        """Delete a key, which may not be there."""
        self.tables.delete(key)
        self._note(key, (b"", 0, self.revision, DELETED))

    def clear(self) -> None:
        """Delete all keys."""
        self.tables.clear()
        self._note(b"", (b"", 0, self.revision, FLUSHED))

    def advance(self, position: int) -> None:
        """Everything up to a position, `shift` included, is applied: remove some expired keys."""
        # Removal needs no log entry: an expired key is invisible already. The bound keeps a batch
        # short when very many keys expire in the same moment. Which keys go follows from the log
        # alone: watchers see it.
        ownership = self.ownership
        if ownership is not None and (ownership.hides or ownership.frozen):
            self._expire_around_moves(ownership, position)
        else:
            for key in self.tables.deadlines.due(self.now, MAX_EXPIRED_PER_BATCH):
                self.tables.delete(key)
                self._note(key, (b"", 0, position, EXPIRED))
        self.changes.advance(position)

    def _expire_around_moves(self, ownership: Ownership, position: int) -> None:
        """Remove some expired keys; those of a move's slots stay, stale ones go unseen."""
        unseen = 0
        deadlines = self.tables.deadlines
        for key in deadlines.due(self.now, MAX_EXPIRED_PER_BATCH, ownership.holds):
            self.tables.delete(key)
            if ownership.serves(key):
                self._note(key, (b"", 0, position, EXPIRED))
            else:
                unseen += 1
        if unseen:
            ownership.expired(unseen)

    def revision_of(self, key: bytes) -> int:
        """Return the revision of a key, 0 if there is none."""
        record = self.get(key)
        return 0 if record is None else record[2]

    def __len__(self) -> int:
        """Return the number of keys that have not expired, of slots that are served.

        While rows are hidden, keys that are due count until they are removed.
        """
        ownership = self.ownership
        if ownership is not None and ownership.hides:
            # Which of the due keys are hidden would have to be looked up for each of them.
            return max(len(self.tables) - ownership.hidden_keys, 0)
        # An expired record may stay for some batches; the reply to DBSIZE must not show that.
        return len(self.tables) - self.tables.deadlines.count_due(self.now)
