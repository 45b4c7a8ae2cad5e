"""Changes of keys, and the latest ones in memory, in the order of the log.

Every member applies the same commands, so every member sees the same changes at the same positions.
The position of a change is the revision of the log entry that made it (:mod:`.store`). Several keys
may change in one entry; these changes have one position. A key that expires does so at the end of a
batch, and the position is that end, which no revision is.
"""

import enum
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...node.protocol.signal import Signal
from ...storage.tables.memtable import Record

__all__ = ["KEPT_CHANGES", "KEPT_CHANGE_BYTES", "Change", "ChangeKind", "RecentChanges"]

KEPT_CHANGES: Final = 65_536
"""Changes that a member keeps in memory. Fewer, and watchers that were away for seconds must replay
the log; more, and a member takes more memory."""

KEPT_CHANGE_BYTES: Final = 32 << 20
"""Bytes of their keys and values together."""


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


class RecentChanges:
    """The latest changes of a member's keys.

    Args:
        position: up to where the state is complete when it begins.

    Attributes:
        start: every change after this position is here.
        position: up to where all is applied.
        moved: notified when `position` rises.
    """

    def __init__(self, position: int) -> None:
        self.start = self.position = position
        self.moved = Signal()
        self._rows: deque[tuple[int, ChangeKind, bytes, Record | None]] = deque()
        self._bytes = 0
        self._counted = 0
        # Bound, because each write calls it.
        self.note = self._rows.append

    def advance(self, position: int) -> None:
        """All changes up to `position` are noted."""
        rows = self._rows
        for at in range(self._counted, len(rows)):
            self._bytes += _size(rows[at])
        while len(rows) > KEPT_CHANGES or self._bytes > KEPT_CHANGE_BYTES:
            gone = rows.popleft()
            self._bytes -= _size(gone)
            self.start = gone[0]
        self._counted = len(rows)
        self.position = position
        self.moved.notify()

    def restart(self, position: int) -> None:
        """Forget everything: the state was replaced by that of a snapshot."""
        self._rows.clear()
        self._bytes = self._counted = 0
        self.start = self.position = position
        self.moved.notify()

    def after(self, position: int, prefix: bytes) -> list[Change]:
        """Return the changes after a position whose keys begin with a prefix."""
        found: list[tuple[int, ChangeKind, bytes, Record | None]] = []
        for row in reversed(self._rows):
            if row[0] <= position:
                break
            if row[2].startswith(prefix) or row[1] is ChangeKind.FLUSHED:
                found.append(row)
        return list(changes_of(reversed(found)))


def changes_of(
    rows: Iterable[tuple[int, ChangeKind, bytes, Record | None]],
) -> Iterable[Change]:
    """Yield the changes in rows, which are in the order of the log."""
    before: Change | None = None
    for position, kind, key, record in rows:
        if before is not None:
            yield before._replace(more=before.position == position)
        value, expires_at_ms = (None, 0) if record is None else record[:2]
        before = Change(position, kind, key, value, expires_at_ms)
    if before is not None:
        yield before


def _size(row: tuple[int, ChangeKind, bytes, Record | None]) -> int:
    return len(row[2]) + (0 if row[3] is None else len(row[3][0]))
