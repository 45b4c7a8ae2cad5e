"""Reads the committed part of a recording in a directory.

The directory is a member's, running or not, or a copy of one. It is opened for reading only, in
short transactions: while a reader has pages open, the member cannot reuse them.

**What is committed** is known from two sources: the commit position in the header of the last
batch, and how far the member has durably applied the log to its tables. While a cluster is idle
both may be a little behind; neither is ever ahead. Later entries are not shown, because a new
leader could still truncate them.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreMismatchError
from ...storage import decode_header_untrusted, open_readonly
from ...storage.lmdb.environment import translating_errors
from ...storage.lmdb.file_check import DATA_FILE
from ...storage.snapshots.file import SnapshotReader
from ...storage.tables.disk import tables_position
from .origin import Connect, Origin
from .reading import Facts, Log, Moment

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ...storage import BatchHeader, ReadOnlyStore, SnapshotRow, TermRow

__all__ = ["Connect", "Facts", "Log", "Moment", "Origin", "find_recording", "open_log"]


def find_recording(directory: Path) -> Path:
    """Return where the recording lies: in the directory itself, or in a member's directory.

    Raises:
        StoreMismatchError: there is no recording.
        StorageError: this user may not read the directory.
    """
    with translating_errors(directory):
        for place in (directory / "log", directory):
            if place.name != "tables" and (place / DATA_FILE).exists():
                return place
    raise StoreMismatchError(
        f"{directory}: no recording there; expected a member's directory, or a copy of one"
    )


class _Recording(Log):
    """An open recording."""

    def __init__(self, store: ReadOnlyStore, applied: int, snapshots: Path) -> None:
        self._store = store
        self._snapshots = snapshots
        committed = max(store.last_commit_position, min(applied, store.append_position))
        self.facts = Facts(
            cluster=store.identity.cluster,
            member_id=store.identity.member_id,
            start=store.start_position,
            committed=max(committed, store.start_position),
            snapshots=tuple(row for row in store.snapshots if (snapshots / row.name).is_file()),
        )

    def header(self, position: int) -> BatchHeader:
        """Return the header of the batch that covers a position."""
        begin = self._store.boundary(position)
        return decode_header_untrusted(next(iter(self._store.scan(begin, begin + 1))))

    def _edge(self, position: int) -> int:
        return self._store.boundary(position)

    def batches(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the batches of a range, each with its checksum verified.

        Raises:
            PrunedError: the range was pruned during the read.
            DamagedRecordError: a batch is damaged.
        """
        return self._store.scan(begin, end)

    def terms(self) -> tuple[TermRow, ...]:
        """Return the terms of the recording log, including those of the pruned part."""
        return tuple(row for row in self._store.terms if row.base < self.facts.committed)

    def snapshot(self, row: SnapshotRow) -> SnapshotReader:
        """Open a snapshot."""
        return SnapshotReader(self._snapshots / row.name)


@contextmanager
def open_log(origin: Origin) -> Generator[Log]:
    """Open a log for the duration of a block.

    Raises:
        StoreMismatchError: there is no recording in the directory.
        StorageError: its tables are damaged.
        TransportError: no member answers.
    """
    if isinstance(origin, Connect):
        from .remote import RemoteLog  # noqa: PLC0415 - only this case needs an event loop

        yield RemoteLog(origin)
        return
    place = find_recording(Path(origin))
    applied = tables_position(place.parent / "tables")
    with open_readonly(place) as store:
        yield _Recording(store, applied, place.parent / "snapshots")
