"""What the commands work on: the tables, the log's time, and the revision that is being made.

**Work.** A request has a budget (:mod:`.limits`). Every lookup is charged, with the length of the
value, for it may lie on disk; a command that makes a large value charges that. When the budget is
used up, :meth:`KeyStore.get` raises: so commands look up everything before they change anything.

A record is a tuple ``(value, expires_at_ms, revision, tag)``, see `storage.tables_layer`.

**Time** is the log's, never the machine's: the timestamp of the command that is applied, or of the
last one for a query. A key is gone from the moment that log time reaches its expiry, wherever its
record is still lying about. So all members agree, whenever each of them removes it.

**Revisions.** Every change of a key gives it the revision of the log entry that made it: the
position of the entry's batch, plus the entry's index in it, plus one. It is never 0, which stands
for an absent key, and unique, for a batch is longer than it has entries. WATCH compares revisions.

**Tags** say what a value is. There are only strings so far; the tag keeps what Redis would report
as their encoding, which depends on how a string came about.
"""

from typing import Final

from ...storage.tables.memtable import Record
from ...storage.tables.tables import Tables
from ..limits import LOOKUP_WORK, MAX_WORK, SMALL_BYTES, work_of_bytes
from ..protocol import resp
from ..protocol.resp import CommandError
from .sessions import Sessions

STRING: Final = 1
"""A string that was set whole: ``int``, ``embstr`` or ``raw`` by its content."""
RAW_STRING: Final = 2
"""A string that was changed in place (APPEND, SETRANGE): ``raw``."""
TEXT_STRING: Final = 3
"""A string that was printed (INCRBYFLOAT): ``embstr`` or ``raw``, never ``int``."""

TOO_MUCH_WORK: Final = resp.error(
    "ERR too much work in one request, by large values or many keys: this command was not executed"
)


class KeyStore:
    """The keys as the commands see them.

    Attributes:
        tables: where they are.
        sessions: of the clients.
        put: ``tables.put``, for the hot path.
        now: log time in milliseconds.
        revision: what a change gets.
        null: the null reply in the protocol of whoever waits for the reply.
        applying: a command of the log is being applied; otherwise a query is answered.
        left: work that the request may still do.
        walked: keys that its walks have looked at.
    """

    __slots__ = (
        "_get",
        "applying",
        "left",
        "now",
        "null",
        "put",
        "revision",
        "sessions",
        "tables",
        "walked",
    )

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.sessions = Sessions(tables)
        self.put = tables.put
        self._get = tables.get
        self.now = tables.timestamp_ms
        self.revision = tables.position
        self.null = resp.NULL[0]
        self.applying = False
        self.left = MAX_WORK
        self.walked = 0

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key that exists now.

        Raises:
            CommandError: the request has used up its work.
        """
        if self.left <= 0:
            raise CommandError(TOO_MUCH_WORK)
        record = self._get(key)
        # an expired record is not charged: other members may have removed it already
        if record is None or (record[1] and record[1] <= self.now):
            self.left -= LOOKUP_WORK
            return None
        size = len(record[0])
        self.left -= LOOKUP_WORK if size <= SMALL_BYTES else LOOKUP_WORK + work_of_bytes(size)
        return record

    def charge(self, count: int) -> None:
        """Charge the making of so many bytes."""
        self.left -= work_of_bytes(count)

    def set(self, key: bytes, value: bytes, expires_at_ms: int = 0, tag: int = STRING) -> None:
        """Set a key; with an expiry that has passed already, delete it."""
        if expires_at_ms and expires_at_ms <= self.now:
            self.tables.delete(key)
        else:
            self.put(key, (value, expires_at_ms, self.revision, tag))

    def revision_of(self, key: bytes) -> int:
        """Return the revision of a key, 0 if there is none."""
        record = self.get(key)
        return 0 if record is None else record[2]

    def __len__(self) -> int:
        """Count the keys that exist now."""
        return len(self.tables) - self.tables.deadlines.count_due(self.now)
