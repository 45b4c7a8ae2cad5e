"""The latest changes, for watches that are a little behind.

To read a revision from the rows and to parse it takes ten times as long as to look at it. Where a
thousand slow clients are behind, each of them reads the same revisions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..keyspace.change import Change
    from ..state.machine import EtcdState

__all__ = ["RECENT_BYTES", "RECENT_REVISIONS", "RecentChanges"]

RECENT_REVISIONS: Final = 4096
"""Revisions that are kept. If smaller, slow watches read the rows more often; if larger, a member
takes more memory."""

RECENT_BYTES: Final = 4 << 20
"""Bytes of their rows; the same trade-off."""


class RecentChanges:
    """The changes of revisions: the latest ones from memory, others from the rows.

    Args:
        state: of the keyspace.
    """

    def __init__(self, state: EtcdState) -> None:
        self._state = state
        # Ascending, with bytes of rows.
        self._kept: OrderedDict[int, tuple[int, Sequence[Change]]] = OrderedDict()
        self._bytes = 0

    def add(self, revision: int, changes: Sequence[Change]) -> None:
        """Keep the changes of a new revision."""
        size = sum(len(change.row) for change in changes)
        self._kept[revision] = size, changes
        self._bytes += size
        while self._bytes > RECENT_BYTES or len(self._kept) > RECENT_REVISIONS:
            _, (gone, _) = self._kept.popitem(last=False)
            self._bytes -= gone

    def of(self, revision: int) -> Sequence[Change]:
        """Return the changes of a revision that is neither compacted nor in the future."""
        kept = self._kept.get(revision)
        return self._state.changes_of(revision) if kept is None else kept[1]
