"""Damaged tables: noticed, marked for the next start, and then thrown away.

The tables are derived from the log. A member can rebuild them from a snapshot and the log behind
it. So nothing of damaged tables is rescued: a member that meets damage stops, and the next start
begins with empty tables, at position 0. A file next to them marks the damage, since damage deep
inside shows only when somebody reads there.

Only the tables' own files are removed. Their folder stays: it may be the root of a volume, which
can't be renamed, or a link to another disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from ...errors import DamagedTablesError, StorageError
from ...log_events import log_event
from ..lmdb.environment import remove_environment, sync_directory, translating_errors
from ..lmdb.private import FILE_MODE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

log = logging.getLogger("quorate.storage")

MARK: Final = "damaged"
"""The file that says that damage was found."""

DAMAGED_PAGES: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError)
DAMAGE: Final = (StorageError, *DAMAGED_PAGES)
"""What reading rows of damaged tables raises."""

T = TypeVar("T")


def report_damage(directory: Path, error: Exception) -> DamagedTablesError:
    """Mark tables as damaged, durably if possible; return the error to raise."""
    with contextlib.suppress(OSError):
        handle = os.open(directory / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_directory(directory)
    return DamagedTablesError(f"{directory}: {error}")


def check_mark(directory: Path) -> None:
    """Refuse tables that are marked as damaged.

    Raises:
        DamagedTablesError: they are.
    """
    if (directory / MARK).exists():
        raise DamagedTablesError(f"{directory}: the tables were found damaged")


@contextlib.contextmanager
def classifying_damage(directory: Path) -> Generator[None]:
    """Distinguish damage that shows when tables are opened from other errors.

    Raises:
        DamagedTablesError: they are damaged.
        StorageError: as in the block: of another cluster, in use, disk full, disk failed.
    """
    check_mark(directory)
    try:
        yield
    except StorageError as error:
        if not _is_damage(error):
            raise
        raise DamagedTablesError(f"the tables are damaged: {error}") from error


def _is_damage(error: BaseException) -> bool:
    """Whether the root cause of an error is damage."""
    while error.__cause__ is not None:
        error = error.__cause__
    if type(error) is StorageError:  # a row or a file that is not as it was written
        return True
    return isinstance(error, (*DAMAGED_PAGES, DamagedTablesError, lmdb.InvalidError, struct.error))


def open_or_rebuild(directory: Path, opened: Callable[[], T]) -> T:
    """Open tables; throw away damaged ones first, and open empty ones.

    Args:
        directory: of the tables; nothing else is in it.
        opened: opens them, or makes new ones.

    Raises:
        StorageError: as `opened`, unless they are damaged.
    """
    try:
        return opened()
    except DamagedTablesError as damage:
        log_event(
            log,
            logging.ERROR,
            "tables_damaged",
            "%(damage)s: they are thrown away, and rebuilt from a snapshot and the log",
            damage=str(damage),
        )
    remove_environment(directory)
    with translating_errors(directory):
        # Last: after a crash before this, the next start does it all again.
        (directory / MARK).unlink(missing_ok=True)
        sync_directory(directory)
    return opened()
