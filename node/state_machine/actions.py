"""Cluster actions: entries of the log that make all members do something at one position.

The payload is JSON with one key, ``action``. An unknown action, of a newer version, is ignored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ...storage import EntryKind
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...storage import BatchHeader, Entry, Store
    from .snapshots import Snapshots


def _action(name: str) -> bytes:
    return json.dumps({"action": name}).encode()


SNAPSHOT: Final = _action("snapshot")
SUSPEND: Final = _action("suspend")
RESUME: Final = _action("resume")


class Actions:
    """Executes cluster actions as they are applied.

    A suspended cluster takes no commands. Every member records that durably, so it holds across
    restarts and changes of leader, until the log ends it.

    Args:
        store: records that the cluster is suspended.
        snapshots: takes those that the log asks for.
        changed_members: called once a configuration is applied.

    Attributes:
        changed: notified when the cluster was suspended or resumed.
    """

    def __init__(
        self, store: Store, snapshots: Snapshots, changed_members: Callable[[], Awaitable[None]]
    ) -> None:
        self.changed = Signal()
        self._changed_members = changed_members
        self._store = store
        self._snapshots = snapshots

    async def act(self, entry: Entry, header: BatchHeader) -> None:
        """Start what an entry asks for; when this returns, the next batches are applied."""
        if entry.kind is EntryKind.MEMBERSHIP:
            await self._changed_members()
        elif entry.payload == SNAPSHOT:
            await self._snapshots.cut(header)
        elif entry.payload in {SUSPEND, RESUME}:
            await self._store.save_suspended(suspended=entry.payload == SUSPEND)
            self.changed.notify()
