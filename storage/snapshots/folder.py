"""The folder of a member's snapshots: how a snapshot is written, received, and removed.

A snapshot is written under another name, synced, renamed into place, and the folder is synced. Only
then its row is added to the store, which makes it exist. Removing goes the other way: first the
row, then the file. So a crash leaves only leftovers besides the files that rows name; the next
start removes them. A transfer that broke off is kept, since it can go on.

::

    snapshot-<position, 20 digits>-<term>          a snapshot
    snapshot-<position, 20 digits>-<term>.new      being written by this member
    snapshot-<position, 20 digits>-<term>.part     being received from another member

Other files belong to somebody else and stay: an operator's copy, ``lost+found`` of a volume, a
snapshot of a log that was lost. A leftover is a regular file with the full name of one of ours. A
whole snapshot is removed only if it belongs to this store's own log, and a row names another
snapshot that is there. Otherwise it might be the last one of its kind.

Everything here blocks. Call it by `storage.Executor.read`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import TYPE_CHECKING, Final

from ...errors import StorageError
from ...log_events import log_event
from ..lmdb.environment import make_directory, sync_directory, translating_errors
from ..lmdb.private import make_private, open_private
from ..rows.term_table import row_of
from .file import (
    Encoder,
    SnapshotHead,
    SnapshotReader,
    Summary,
    check_snapshot,
    encode_head,
    whole_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from ..rows.term_table import SnapshotRow, TermRow

log = logging.getLogger("quorate.storage")

_NEW: Final = ".new"
_PART: Final = ".part"
_NAME: Final = re.compile(r"snapshot-[0-9]{20,}-[0-9]+(\.new|\.part)?")
"""The full name of a file that this module writes."""


class SnapshotFolder:
    """The snapshots of one member."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(
        self,
        rows: Iterable[SnapshotRow],
        *,
        cluster: str = "",
        terms: tuple[TermRow, ...] = (),
    ) -> list[SnapshotRow]:
        """Make the folder if absent, and remove leftovers of a crash.

        Args:
            rows: the snapshots that the store names.
            cluster: of the store.
            terms: its term table. A store without terms is new, and removes nothing.

        Returns:
            The rows whose files are missing.

        Raises:
            StorageError: the folder can't be made or read.
        """
        with translating_errors(self.directory):
            make_directory(self.directory)
            for place in (self.directory, *(path for path, _ in self._ours())):
                make_private(place)
            names = {row.name: row for row in rows}
            missing = [row for row in names.values() if not self.path_of(row).exists()]
            for path, suffix in self._ours():
                if path.name in names or suffix == _PART or not terms:
                    continue
                # A whole one only if some row's file is there: it might be the last snapshot.
                if suffix == _NEW or (len(missing) < len(names) and _is_of(path, cluster, terms)):
                    _remove(path, "no row names it")
                else:
                    words = "%(path)s is kept: it may be a snapshot of another log"
                    log_event(log, logging.WARNING, "snapshot_kept", words, path=str(path))
            return missing

    def _ours(self) -> Iterator[tuple[Path, str]]:
        """Yield the regular files with a name of ours, with the suffix of each."""
        for path in sorted(self.directory.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match and path.is_file() and not path.is_symlink():
                yield path, match[1] or ""

    def path_of(self, row: SnapshotRow) -> Path:
        """Return the path of a snapshot."""
        return self.directory / row.name

    def check(self, row: SnapshotRow) -> Summary:
        """Read a whole snapshot, check every byte, and that it is the one that the row names.

        Raises:
            StorageError: it is damaged, missing, or another one.
        """
        summary = check_snapshot(self.path_of(row))
        if summary.head.row != row:
            raise StorageError(f"{self.path_of(row)}: it is {summary.head.name}, not {row.name}")
        return summary

    def head_in(self, row: SnapshotRow) -> SnapshotHead | None:
        """Return the head of a snapshot; None if its file is missing or damaged."""
        return _head_in(self.path_of(row))

    def remove(self, row: SnapshotRow) -> None:
        """Remove the file of a snapshot whose row is gone."""
        with translating_errors(self.directory):
            self.path_of(row).unlink(missing_ok=True)
            sync_directory(self.directory)

    def arriving(self) -> tuple[int, int, int]:
        """Return position, term and bytes received of a transfer; -1, -1, 0 for none."""
        for path, suffix in self._ours():
            if suffix == _PART and (size := whole_bytes(path)):
                with SnapshotReader(path) as reader:
                    return reader.head.position, reader.head.term, size
        return -1, -1, 0

    def transfer(self, head: SnapshotHead, first: bytes, offset: int) -> Transfer:
        """Begin to receive a snapshot from another member, or go on at `offset`.

        The part of any other snapshot that has arrived before is removed.

        Args:
            head: of the snapshot that is offered.
            first: the first part of its file.
            offset: byte of the file at which the next part begins.

        Raises:
            StorageError: fewer bytes have arrived before; or the disk failed.
        """
        path = self.directory / (head.name + _PART)
        with translating_errors(self.directory):
            for old, suffix in self._ours():
                if suffix == _PART and old != path:
                    _remove(old, "nobody offers it any more")
        return Transfer(self.directory, head, first, offset)


class SnapshotWriter:
    """Writes one snapshot, step by step.

    Args:
        directory: of the snapshots.
        head: what the snapshot is of.
        pieces: of the service.

    Attributes:
        raw_bytes: taken from the service so far.
        file_bytes: written so far.
    """

    def __init__(self, directory: Path, head: SnapshotHead, pieces: Iterator[bytes]) -> None:
        self._directory = directory
        self._head = head
        self._pieces = pieces
        self._encoder = Encoder()
        self._path = directory / (head.name + _NEW)
        with translating_errors(directory):
            self._file = open_private(self._path, "wb")
        self.raw_bytes = 0
        self.file_bytes = 0
        self._begun = False

    def _write(self, part: bytes) -> None:
        with translating_errors(self._directory):
            self._file.write(part)
        self.file_bytes += len(part)

    def step(self) -> bool:
        """Write the next piece; False if there is none left.

        Raises:
            StorageError: the disk failed or is full, or the service failed.
        """
        if not self._begun:
            self._begun = True
            self._write(encode_head(self._head))
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._write(self._encoder.piece(piece))
        self.raw_bytes = self._encoder.raw_bytes
        return True

    def finish(self) -> Summary:
        """Make the snapshot durable under its own name, and sum it up.

        Raises:
            StorageError: the disk failed or is full.
        """
        self._write(self._encoder.end())
        with translating_errors(self._directory):
            # Synced before it is renamed: a power cut must not leave a short file under a
            # snapshot's name.
            _sync_and_close(self._file)
            _give_name(self._path, self._head)
        encoder = self._encoder
        return Summary(
            self._head, encoder.pieces, encoder.raw_bytes, self.file_bytes, encoder.digest
        )

    def close(self) -> None:
        """Close the file; an unfinished one is a leftover. Idempotent."""
        with contextlib.suppress(OSError):  # an error of writing was raised before
            self._file.close()

    def abandon(self) -> None:
        """Give up, and remove what was written; also after an error."""
        self.close()
        self._path.unlink(missing_ok=True)


def write_whole(directory: Path, head: SnapshotHead, pieces: Iterator[bytes]) -> Summary:
    """Write a snapshot in one go; for tools.

    Raises:
        StorageError: the disk failed or is full, or the pieces failed; nothing is left.
    """
    writer = SnapshotWriter(directory, head, pieces)
    try:
        while writer.step():
            pass
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise
    finally:
        writer.close()


class Transfer:
    """A snapshot that arrives from another member.

    Attributes:
        offset: bytes received, whole parts only; the transfer goes on from there.
    """

    def __init__(self, directory: Path, head: SnapshotHead, first: bytes, offset: int) -> None:
        self._directory = directory
        self._head = head
        self._path = directory / (head.name + _PART)
        self.offset = offset
        with translating_errors(directory):
            if offset > len(first) and whole_bytes(self._path) >= offset:
                self._file: BinaryIO = self._path.open("r+b")
                # Back to the end of the last whole part: what lies behind may be torn.
                self._file.truncate(offset)
                self._file.seek(offset)
            elif offset == len(first):
                self._file = open_private(self._path, "wb")
                self._file.write(first)
            else:
                raise StorageError(
                    f"{self._path}: byte {offset} does not continue the part that is here"
                )

    def write(self, part: bytes) -> None:
        """Add a part that arrived.

        Raises:
            StorageError: the disk failed or is full.
        """
        with translating_errors(self._directory):
            self._file.write(part)
        self.offset += len(part)

    def close(self) -> None:
        """Keep it for another attempt; idempotent."""
        with contextlib.suppress(OSError):  # what can't be flushed is sent once more
            self._file.close()

    def abandon(self) -> None:
        """Give up, and remove what arrived; also after an error."""
        with contextlib.suppress(OSError):  # an error of writing was raised before
            self._file.close()
        self._path.unlink(missing_ok=True)

    def finish(self) -> Summary:
        """Check every byte, and make the snapshot durable under its own name.

        Raises:
            StorageError: it is damaged or not what was offered, and is removed; or the disk failed.
        """
        with translating_errors(self._directory):
            _sync_and_close(self._file)
        try:
            # As the disk has it, and with the parts of earlier attempts.
            summary = check_snapshot(self._path)
        except StorageError:
            self.abandon()
            raise
        if summary.head != self._head:
            self.abandon()
            raise StorageError(f"{self._path}: it is not the snapshot that was offered")
        with translating_errors(self._directory):
            _give_name(self._path, self._head)
        return summary


def _head_in(path: Path) -> SnapshotHead | None:
    """Return the head of a file; None if it is no snapshot, or damaged."""
    try:
        with SnapshotReader(path) as reader:
            return reader.head
    except StorageError:
        return None


def _is_of(path: Path, cluster: str, terms: tuple[TermRow, ...]) -> bool:
    """Whether a snapshot belongs to the log with this term table.

    Two logs of one name may share term numbers, but not the millisecond in which the term began.
    """
    head = _head_in(path)
    if head is None or (head.cluster, head.name) != (cluster, path.name):
        return False
    row, named = row_of(terms, head.term), row_of(head.terms, head.term)
    if row is None or named is None:
        return False
    began = (row.base, row.timestamp_ms) == (named.base, named.timestamp_ms)
    return began and (row.end is None or head.position <= row.end)


def _remove(path: Path, reason: str) -> None:
    path.unlink()
    words = "%(path)s is removed: %(why)s"
    log_event(log, logging.DEBUG, "snapshot_removed", words, path=str(path), why=reason)


def _give_name(path: Path, head: SnapshotHead) -> None:
    """Durably give a whole snapshot its own name.

    Raises:
        StorageError: a snapshot of another log has that name.
    """
    named = path.with_name(head.name)
    there = _head_in(named)  # a damaged one is replaced
    if there is not None and (there.cluster, there.row) != (head.cluster, head.row):
        raise StorageError(
            f"{named}: there is a snapshot of another log, of cluster {there.cluster!r}; "
            "move that file away"
        )
    path.rename(named)
    sync_directory(named.parent)


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
