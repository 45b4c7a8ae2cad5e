"""Cluster actions: entries of the log by which all members do something at one position.

What they say is JSON with one key, ``action``. One that is not known here, of a newer version, is
passed over.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ...storage import EntryKind
from ..membership.admission import on_admission
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import BatchHeader, Entry, Store
    from .snapshots import Snapshots


def _action(name: str) -> bytes:
    return json.dumps({"action": name}).encode()


SNAPSHOT: Final = _action("snapshot")
SUSPEND: Final = _action("suspend")
RESUME: Final = _action("resume")


class Actions:
    """Does what the log asks for, as it is applied.

    A cluster that is suspended takes no commands; every member notes it durably, so that it stays
    suspended whoever leads and whoever restarts, until the log says otherwise.

    Args:
        store: notes what has to be durable.
        snapshots: of the service.
        admitted: called with the history of the cluster, once our store has a vote in it.

    Attributes:
        changed: notified when the cluster was suspended or resumed.
    """

    def __init__(self, store: Store, snapshots: Snapshots, admitted: Callable[[int], None]) -> None:
        self.changed = Signal()
        self._admitted = admitted
        self._store = store
        self._snapshots = snapshots

    async def act(self, entry: Entry, header: BatchHeader) -> None:
        """Begin what an entry asks for; on return the batches behind its own are applied."""
        if entry.kind is EntryKind.MEMBERSHIP:
            if await on_admission(self._store, entry):
                self._admitted(self._store.voting_status.history)
        elif entry.payload == SNAPSHOT:
            await self._snapshots.cut(header)
        elif entry.payload in {SUSPEND, RESUME}:
            await self._store.save_suspended(suspended=entry.payload == SUSPEND)
            self.changed.notify()
