"""Readers of an LMDB environment in other processes: their slots, and reading without one.

LMDB notes each reader in a slot of ``lock.mdb``, with the transaction whose state it sees. A writer
uses no page again that one of them may still see. So a reader that was killed keeps its slot, and
with it all space that is freed from then on, until somebody looks for readers that are dead. The
writer does so before each transaction, and says when a living reader holds back much space.

A slot can be had only by who may write ``lock.mdb``. Without one a reader is safe as long as no
writer has the environment, which is what the file ``lock`` tells: a writer holds it (`flock`) for
as long as it is open. Whoever may only read holds it, shared, for each of its short transactions;
a writer that begins waits for the end of that. While a writer is there, to read without a slot
would be to read pages that it may be writing, after which LMDB may end the process: so that is
refused, with what is needed. Only of a copy without a file ``lock`` nothing can be told: whoever
opens such a copy for writing must not have others read it without a slot.
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
"""With fewer slots (LMDB has 126 by itself) many tasks of a pipeline find none; each takes 64 B."""
HELD_BYTES: Final = 64 << 20
"""So much more space a reader has to cost before it is named: less is usual for one that is slow,
with more the disk may be full before anybody knows why."""
_PID_BYTES: Final = 20
_WAIT_SECONDS: Final = 0.01
_WAITS: Final = 200
"""A reader needs some milliseconds. With fewer a member fails to start next to busy ones; with more
it hangs, deaf to signals, for one that was stopped amidst a transaction."""


def open_for_reading(
    directory: Path, *, map_bytes: int, max_dbs: int
) -> tuple[lmdb.Environment, Guard]:
    """Open an environment for reading, also where this process may write nothing.

    Returns:
        LMDB's handle, and what is to be held during each transaction.

    Raises:
        StoreBusyError: a writer has it open, and there may be no slot for us.
        StoreAccessError: the file `lock` may not be read.
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
    """Keep writers away for the length of the block.

    Raises:
        StoreBusyError: one is there.
        StoreAccessError: the file `lock` may not be read.
    """
    path = directory / LOCK_FILE
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a copy that nobody has opened for writing
        yield
        return
    except PermissionError:
        raise StoreAccessError(
            f"{path}: user {user()} may not read it, which reading the store needs; it belongs to "
            f"{owner_of(path)}"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusyError(
                f"{directory}: open in process {holder(lock)}. Next to that a reader has to write "
                f"{LOCK_TABLE}, and {_why_not(directory)}. Read as its owner, or a copy "
                "(quorate backup), or the running members (--connect)"
            ) from None
        yield
    finally:
        os.close(lock)


def _why_not(directory: Path) -> str:
    """Say why this process can't have a slot."""
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return "the file system is mounted read-only here"
    owner = owner_of(directory / LOCK_TABLE)
    return f"user {user()} may not: it belongs to {owner}"


def holder(lock: int) -> str:
    """Return the id of the process that has written the file `lock`, in words."""
    return os.pread(lock, _PID_BYTES, 0).decode("ascii", "replace").strip() or "unknown"


@contextlib.contextmanager
def only_writer(directory: Path, mode: int) -> Generator[None]:
    """Hold the directory's lock, which ends with the process however that ends.

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
    """Get the lock if only readers without a slot hold it, each of them for a moment.

    Raises:
        StoreBusyError: another writer holds it, or readers for too long.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreBusyError(f"{directory}: open in process {holder(lock)}") from None
    log.info("waiting_for_readers directory=%s", directory)
    for _ in range(_WAITS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_WAIT_SECONDS)
    raise StoreBusyError(f"{directory}: another process reads it, and holds its file {LOCK_FILE}")


class ReaderWatch:
    """Frees the slots of dead readers, and names living ones that hold back space.

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
            log.info("dead_readers_freed directory=%s slots=%d", self._directory, freed)

    def look(self, used_bytes: int) -> None:
        """Look at all readers, before a transaction of the one writer.

        Args:
            used_bytes: how much of the file is in use, or was.
        """
        self.free_dead()
        oldest = min(self._readers(), default=None)
        if oldest != self._oldest:
            self._oldest, self._report_at = oldest, used_bytes + HELD_BYTES
        elif oldest is not None and used_bytes >= self._report_at:
            self._report_at = used_bytes + HELD_BYTES
            log.warning(
                "reader_holds_space directory=%s pid=%d used_bytes=%d: what is freed can't be used "
                "again, and the file grows, until this process ends or reads on",
                self._directory,
                oldest[1],
                used_bytes,
            )

    def _readers(self) -> list[tuple[int, int]]:
        """Return transaction and process of the readers in other processes."""
        rows = [line.split() for line in self._raw.readers().splitlines()[1:]]
        found = [(row[2], row[0]) for row in rows if len(row) == 3]  # noqa: PLR2004 - as LMDB has it
        own = str(os.getpid())
        return [(int(txn), int(pid)) for txn, pid in found if txn.isdigit() and pid != own]
