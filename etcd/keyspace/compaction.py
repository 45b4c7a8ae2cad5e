"""Compaction: the history before a revision goes.

A request sets the revision at once: what is before it cannot be read from then on. The rows go
later, a slice at a time, so that no batch takes long; the time between slices is log time, so that
all members are equally far. The next place is in a note.

Going through the changes in order finds all rows that go: each change drops the versions of its
key before it, and a deletion drops itself. So compaction costs what was written, however many keys
there are. Changes of the compacted revision itself stay, with what they have replaced: a watch may
start there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ..codes import COMPACTED, FUTURE_REVISION, EtcdError
from .notes import COMPACTION_NOTE

if TYPE_CHECKING:
    from .keys import Keys
    from .rows import StateTables

__all__ = ["PACE_MS", "SLICE_ROWS", "Compaction"]

SLICE_ROWS: Final = 500
"""Changes or versions of one slice: some milliseconds. Fewer, and a writer may be faster than
compaction; more, and a batch takes longer."""

PACE_MS: Final = 20
"""Log time from one slice to the next, so that batches in quick succession do not all pay."""

_NOTE: Final = struct.Struct(">qqIq")
_FIRST_REVISION: Final = 2


class Compaction:
    """Up to where the history is compacted, and how far its rows are gone.

    Args:
        tables: a note says how far it is.
        keys: their rows go.

    Attributes:
        revision: the first one that can be read; -1 in the beginning, as in etcd.
    """

    def __init__(self, tables: StateTables, keys: Keys) -> None:
        self._tables = tables
        self._keys = keys
        self.revision = -1
        # The next change to look at, and when a slice was last taken.
        self._next = (_FIRST_REVISION, 0)
        self._paced_ms = 0

    def load(self) -> None:
        """Read the note. The index of the keys is loaded behind that."""
        note = self._tables.notes.rows.get(COMPACTION_NOTE)
        found = _NOTE.unpack(note) if note is not None else (-1, _FIRST_REVISION, 0, 0)
        self.revision, *place, self._paced_ms = found
        self._next = (place[0], place[1])

    @property
    def pending(self) -> bool:
        """Whether rows are to go."""
        return self._next[0] < self.revision

    def start(self, revision: int) -> None:
        """Compact up to a revision.

        Raises:
            EtcdError: it is compacted already, or in the future.
        """
        if revision <= self.revision:
            raise EtcdError(*COMPACTED)
        if revision > self._keys.revision:
            raise EtcdError(*FUTURE_REVISION)
        self.revision = revision
        self._note()

    def begin_at(self, revision: int) -> None:
        """Have all history end before a revision that the keys have just been raised to.

        The rows stay until their keys change: to look for them revision by revision would take as
        long as there are revisions.
        """
        self.revision = revision
        self._next = (revision, 0)
        self._note()

    def advance(self, now_ms: int) -> None:
        """Take a slice, if one is due."""
        if not self.pending or now_ms < self._paced_ms + PACE_MS:
            return
        revision, sub = self._next
        left = SLICE_ROWS
        while left > 0 and revision < self.revision:
            changes = self._keys.changes_at(revision, sub, 1)
            if not changes:
                revision, sub = revision + 1, 0
                left -= 1
                continue
            dropped = self._keys.drop_superseded(changes[0], left)
            # The rest of very many versions of one key goes in the next slice.
            sub += dropped <= left
            left -= max(dropped, 1)
        self._next, self._paced_ms = (revision, sub), now_ms
        self._note()

    def next_deadline_ms(self) -> int | None:
        """Return when the next slice is due; None if all is done."""
        return self._paced_ms + PACE_MS if self.pending else None

    def _note(self) -> None:
        note = _NOTE.pack(self.revision, *self._next, self._paced_ms)
        self._tables.put_note(COMPACTION_NOTE, note)
