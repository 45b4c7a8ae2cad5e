"""Damaged tables: found, noted for the next start, and then thrown away.

The tables are what the log has made of itself; a member can have them again from a snapshot and the
log behind it. So nothing is tried to save of damaged ones: whoever meets damage stops, and when
they are opened again they begin empty, at position 0. What is noted is a file beside theirs, since
damage deep inside shows only to who reads there.

Only their own files are removed. The folder stays where it is, for it may be the root of a volume,
which can't be renamed, or a link to another disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from ...errors import DamagedTablesError, StorageError
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
    """Note durably, if that can be, that tables are damaged; return the error to raise."""
    with contextlib.suppress(OSError):
        handle = os.open(directory / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_directory(directory)
    return DamagedTablesError(f"{directory}: {error}")


def check_mark(directory: Path) -> None:
    """Refuse tables that were found damaged.

    Raises:
        DamagedTablesError: they were.
    """
    if (directory / MARK).exists():
        raise DamagedTablesError(f"{directory}: the tables were found damaged")


@contextlib.contextmanager
def classifying_damage(directory: Path) -> Generator[None]:
    """Tell damage that is met when tables are opened from what else may be wrong.

    Raises:
        DamagedTablesError: they are damaged.
        StorageError: as in the block: another cluster's, in use, no room, a failing disk.
    """
    check_mark(directory)
    try:
        yield
    except StorageError as error:
        if not _is_damage(error):
            raise
        raise DamagedTablesError(f"the tables are damaged: {error}") from error


def _is_damage(error: BaseException) -> bool:
    while error.__cause__ is not None:
        error = error.__cause__
    if type(error) is StorageError:  # the words of a row, or of a file, that is not as written
        return True
    return isinstance(error, (*DAMAGED_PAGES, DamagedTablesError, lmdb.InvalidError, struct.error))


def open_or_rebuild(directory: Path, opened: Callable[[], T]) -> T:
    """Open tables; damaged ones are thrown away first.

    Args:
        directory: theirs alone.
        opened: opens them, or makes new ones.

    Raises:
        StorageError: as `opened`, unless they are damaged.
    """
    try:
        return opened()
    except DamagedTablesError as damage:
        log.error(  # noqa: TRY400 - the words say it all
            "%s: they are thrown away, and made anew from a snapshot and the log", damage
        )
    remove_environment(directory)
    with translating_errors(directory):
        (directory / MARK).unlink(missing_ok=True)  # last: with it the next start does this again
        sync_directory(directory)
    return opened()
