"""Readers of an LMDB environment in other processes: their slots, and reading without one.

Slots
-----
LMDB keeps each reader in a slot of ``lock.mdb``, with the transaction that it sees. The writer
reuses no page that a reader may still see. A killed reader keeps its slot, and with it all space
that is freed later. So the writer frees the slots of dead readers before each transaction, and logs
a living reader that holds back much space.

Reading without a slot
----------------------
Taking a slot needs the right to write ``lock.mdb``. A reader without that right is safe only while
nobody writes. The file ``lock`` says so: a writer holds an exclusive `flock` on it while it has the
environment open. A reader without a slot holds a shared lock during each short transaction, and a
writer that starts waits for it. While a writer is there, such a reader is refused, with the reason:
reading pages that are being written can end the process.

What we do not do
-----------------
A copy that has no file ``lock`` gives no protection. If you open such a copy for writing, let
nobody read it without a slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from typing import TYPE_CHECKING, Final

import lmdb

from ...errors import StoreAccessError, StoreBusyError
from ...log_events import log_event
from .private import FILE_MODE, owner_of, user

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import TypeAlias

    Guard: TypeAlias = Callable[[], AbstractContextManager[None]]
    """Gives what a reader holds during a transaction."""

log = logging.getLogger("quorate.storage")

LOCK_FILE: Final = "lock"
"""Held by the writer, which writes its process id into it."""
LOCK_TABLE: Final = "lock.mdb"
"""LMDB's own file, with a slot for each reader."""
MAX_READERS: Final = 1024
"""Slots, of 64 bytes each. With fewer (LMDB's default is 126) the tasks of a large pipeline find
none."""
HELD_BYTES: Final = 64 << 20
"""A reader is logged once it holds back this much space. With less, any slow reader is logged; with
more, the disk may be full before anybody knows why."""
_PID_BYTES: Final = 20
_WAIT_SECONDS: Final = 0.01
_WAITS: Final = 200
"""A reader needs some milliseconds. With fewer waits a member fails to start next to busy readers;
with more it waits, deaf to signals, for a reader that was stopped inside a transaction."""


def open_for_reading(
    directory: Path, *, map_bytes: int, max_dbs: int
) -> tuple[lmdb.Environment, Guard]:
    """Open an environment for reading, also where this process may write nothing.

    Returns:
        LMDB's handle, and a context manager to hold during each transaction.

    Raises:
        StoreBusyError: a writer has it open, and this process can't have a slot.
        StoreAccessError: this process may not read the file `lock`.
        lmdb.Error: it can't be opened.
    """
    slots = directory / LOCK_TABLE
    with_slot = os.access(slots if slots.exists() else directory, os.W_OK, effective_ids=True)
    guard: Guard = contextlib.nullcontext if with_slot else lambda: _no_writer(directory)
    with guard():
        raw = lmdb.open(
            str(directory),
            map_size=map_bytes,
            create=False,
            max_dbs=max_dbs,
            max_readers=MAX_READERS,
            readonly=True,
            lock=with_slot,
            mode=FILE_MODE,
        )
    return raw, guard


@contextlib.contextmanager
def _no_writer(directory: Path) -> Generator[None]:
    """Keep writers away during the block.

    Raises:
        StoreBusyError: a writer is there.
        StoreAccessError: this process may not read the file `lock`.
    """
    path = directory / LOCK_FILE
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a copy that nobody has opened for writing yet
        yield
        return
    except PermissionError:
        raise StoreAccessError(
            f"{path}: user {user()} may not read it, which reading the store needs; it belongs to "
            f"{owner_of(path)}: run this as that user"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusyError(
                f"{directory}: open in process {holder(lock)}. Next to that a reader has to write "
                f"{LOCK_TABLE}, and {_why_not(directory)}. Run this as its owner, or read a copy "
                "(quorate backup) or the running members (--connect)"
            ) from None
        yield
    finally:
        os.close(lock)


def _why_not(directory: Path) -> str:
    """Return why this process can't have a slot."""
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return "the file system is mounted read-only here"
    owner = owner_of(directory / LOCK_TABLE)
    return f"user {user()} may not: it belongs to {owner}"


def holder(lock: int) -> str:
    """Return the id of the process that wrote the file `lock`, or "unknown"."""
    return os.pread(lock, _PID_BYTES, 0).decode("ascii", "replace").strip() or "unknown"


@contextlib.contextmanager
def only_writer(directory: Path, mode: int) -> Generator[None]:
    """Hold the directory's lock. The kernel releases it whenever and however the process ends.

    Raises:
        StoreBusyError: another writer holds it.
    """
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _wait_for_readers(directory, lock)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(lock)


def _wait_for_readers(directory: Path, lock: int) -> None:
    """Get the lock once readers without a slot have released it; each holds it only for moments.

    Raises:
        StoreBusyError: another writer holds it, or readers do for too long.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        process = f"{directory}: open in process {holder(lock)}"
        raise StoreBusyError(f"{process}; each member needs a directory of its own") from None
    words = "%(directory)s: another process reads it; waiting until it has opened it"
    log_event(log, logging.INFO, "waiting_for_readers", words, directory=str(directory))
    for _ in range(_WAITS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_WAIT_SECONDS)
    raise StoreBusyError(
        f"{directory}: another process reads it, and holds its file {LOCK_FILE}; end that process"
    )


class ReaderWatch:
    """Frees the slots of dead readers, and logs living ones that hold back space.

    Args:
        directory: of the environment.
        raw: LMDB's handle, opened for writing.
    """

    def __init__(self, directory: Path, raw: lmdb.Environment) -> None:
        self._directory = directory
        self._raw = raw
        self._oldest: tuple[int, int] | None = None
        self._report_at = 0

    def free_dead(self) -> None:
        """Free the slots of readers whose process is gone."""
        if freed := self._raw.reader_check():
            log_event(
                log,
                logging.INFO,
                "dead_readers_freed",
                "%(directory)s: freed the space that %(slots)d dead readers held",
                directory=str(self._directory),
                slots=freed,
            )

    def look(self, used_bytes: int) -> None:
        """Look at all readers; called before each write transaction.

        Args:
            used_bytes: how much of the file is in use, or once was.
        """
        self.free_dead()
        oldest = min(self._readers(), default=None)
        if oldest != self._oldest:
            self._oldest, self._report_at = oldest, used_bytes + HELD_BYTES
        elif oldest is not None and used_bytes >= self._report_at:
            self._report_at = used_bytes + HELD_BYTES
            log_event(
                log,
                logging.WARNING,
                "reader_holds_space",
                "%(directory)s: process %(pid)d reads in one long transaction: freed space can't "
                "be reused, and the file grows, until that process ends or reads on",
                directory=str(self._directory),
                pid=oldest[1],
                used_bytes=used_bytes,
            )

    def _readers(self) -> list[tuple[int, int]]:
        """Return transaction and process id of each reader in another process."""
        rows = [line.split() for line in self._raw.readers().splitlines()[1:]]
        pairs = [(row[2], row[0]) for row in rows if len(row) == 3]  # noqa: PLR2004 - as LMDB has it
        own = str(os.getpid())
        return [(int(txn), int(pid)) for txn, pid in pairs if txn.isdigit() and pid != own]
