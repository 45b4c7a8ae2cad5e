"""A member's own history: a snapshot of its service, and the committed log behind it.

A reader in this process starts a second service from it, to see once more what the first one has
seen. It gets copies, and holds nothing up: the log may be pruned under it, and then a read fails.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs

from ...errors import PrunedError, StorageError
from ...storage import CheckedEntries, EntryKind, SnapshotReader, decode_header_untrusted
from ..state_machine.service import Command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from ...storage import BatchHeader, Store
    from ..state_machine.applier import Applier, ReadLog
    from ..state_machine.snapshots import Snapshots

T = TypeVar("T")


@attrs.frozen
class Beginning:
    """A state to start from.

    Args:
        position: log position of the state.
        timestamp_ms: log time there.
        pieces: of a snapshot, for `SnapshotService.load`; None for the empty state.
    """

    position: int
    timestamp_ms: int
    pieces: Iterator[bytes] | None


@attrs.frozen
class AppliedBatch:
    """A batch of the log that this member has applied.

    Args:
        header: of the batch.
        data: its bytes, checked.
    """

    header: BatchHeader
    data: bytes

    def commands(self) -> Iterator[Command]:
        """Decode the commands one by one, as the service got them."""
        header = self.header
        for index, entry in enumerate(CheckedEntries(self.data, header)):
            if entry.kind is EntryKind.COMMAND:
                yield Command(
                    entry.payload,
                    entry.flags,
                    entry.session,
                    entry.sequence,
                    header.term,
                    header.position,
                    index,
                    header.timestamp_ms,
                    wants_reply=False,
                    principal=entry.principal,
                )


class History:
    """The history of a member's service.

    Args:
        store: has the log, and lists the snapshots.
        applier: says what is applied.
        snapshots: has their files.
        read_log: reads the log; see `Repair.read`.
    """

    def __init__(
        self, store: Store, applier: Applier, snapshots: Snapshots, read_log: ReadLog
    ) -> None:
        self._store = store
        self._applier = applier
        self._snapshots = snapshots
        self._read_log = read_log

    @property
    def oldest(self) -> int:
        """The oldest position that `beginning` may be asked for."""
        start = self._store.start_position
        if start == 0:
            return 0
        rows = (row.position for row in self._store.snapshots if row.position >= start)
        return min(rows, default=self._applier.applied_position)

    @asynccontextmanager
    async def beginning(self, position: int) -> AsyncGenerator[Beginning, None]:
        """Open the newest state at or below a position, from which the log goes on.

        Raises:
            PrunedError: there is none any more.
            StorageError: its file can't be read.
        """
        store = self._store
        rows = [row for row in store.snapshots if store.start_position <= row.position <= position]
        if rows:
            row = rows[-1]
            path = self._snapshots.folder.path_of(row)
            with await self.read(partial(SnapshotReader, path)) as reader:
                yield Beginning(row.position, row.timestamp_ms, reader.pieces())
        elif store.start_position == 0:
            yield Beginning(0, 0, None)
        else:
            raise PrunedError(
                f"position {position}: the oldest snapshot with log behind it is at {self.oldest}"
            )

    async def batches(self, position: int) -> list[AppliedBatch]:
        """Read some applied batches from a position on; none if there are no more.

        Raises:
            PrunedError: they were dropped.
            StorageError: the log can't be read there.
        """
        # Not up to the commit position: a watch must not show what a read here does not see yet.
        end = self._applier.applied_position
        if position >= end:
            return []
        batches = await self._read_log(position, end=end)
        return [AppliedBatch(decode_header_untrusted(batch), batch) for batch in batches]

    def check_room(self) -> None:
        """Check that a copy of the state may use disk space.

        Raises:
            StoreFullError: too little is free.
        """
        self._snapshots.check_room()

    async def read(self, fn: Callable[[], T]) -> T:
        """Call a function that blocks on files, without blocking the event loop."""
        try:
            return await self._snapshots.read(fn)
        except OSError as error:
            raise StorageError(f"{error.filename}: {error.strerror}") from error
