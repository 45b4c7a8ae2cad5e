"""Writes the journal durably, without the event loop and without waiting for the interpreter.

A thread of Python's needs the interpreter's lock when it wakes and again after the write. While the
event loop is busy it waits for that lock twice per write. The compiled :class:`Writer`
(``journal_writer.c``) is a thread that never asks for the lock. Where it could not be built its
twin in Python, :class:`PythonWriter`, takes its place: the same calls, slower. One differential
test compares them over a corpus.

A disk that stands still holds up the writer's thread, never the event loop: so a member whose disk
is slow still answers heartbeats, and can hand over.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

__all__ = ["NATIVE", "PythonWriter", "Span", "Writer", "open_synced", "write_span"]

_ABI: Final = 2
"""Version of the compiled class; one of another version is not used."""


@attrs.frozen
class Span:
    """One write to a file of `open_synced`: its descriptor, the offset, and the bytes.

    In a file that is written past the page cache, offset and length must be whole blocks of the
    file system: any multiple of the length of the file's first bytes will do.
    """

    file: int
    offset: int
    data: bytes


def open_synced(path: Path, begin: bytes) -> int:
    """Open a file so that each write is durable when it is done, and write its first bytes.

    It is written past the page cache where the file system allows that: the kernel then sends data
    and flush to the disk in one request. (Measured with three processes on one disk, 8 KiB each:
    425 us, against 540 us for a write and an fdatasync.)

    Raises:
        OSError: the file can't be opened or written.
    """
    try:
        return _open_synced(path, os.O_DIRECT, begin)
    except OSError as error:
        # A file system refuses O_DIRECT when the file is opened, or at the first write if its
        # blocks are longer than ours.
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    return _open_synced(path, 0, begin)


def _open_synced(path: Path, how: int, begin: bytes) -> int:
    # O_DSYNC: a write returns once its bytes are on the disk, so no second call has to sync them.
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | how)
    if error := write_span(Span(file, 0, begin)):
        os.close(file)
        raise OSError(error, os.strerror(error))
    return file


def write_span(span: Span) -> int:
    """Write a span; return an errno, 0 if it is durable."""
    length, at = len(span.data), 0
    try:
        # O_DIRECT wants memory at a page boundary. Python's bytes are not; a mapping is.
        with mmap.mmap(-1, max(length, 1)) as aligned:
            aligned[:length] = span.data
            while at < length:  # a part only, when the disk is full
                with memoryview(aligned) as view, view[at:length] as rest:
                    at += os.pwrite(span.file, rest, span.offset + at)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class PythonWriter:
    """Writes one span at a time on a thread of its own. To be used by one thread.

    Args:
        wake: an eventfd that is written to when a write is over.

    Attributes:
        took: how many seconds the write lasted whose outcome came last, by the thread's own clock.

    Raises:
        OSError: no thread can be started.
    """

    def __init__(self, wake: int) -> None:
        self._wake = wake
        # A forked child gets this object without its thread: a write of the child would never end.
        self._owner = os.getpid()
        self._asked: queue.SimpleQueue[Span | None] = queue.SimpleQueue()
        self._running, self._at_work = True, False
        self._error: int | None = None
        self.took = 0.0
        self._thread = threading.Thread(target=self._work, name="quorate journal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # how Python reports that there are no more threads
            raise OSError(errno.EAGAIN, str(error)) from error

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Begin to write data to a file of `open_synced`.

        Raises:
            RuntimeError: the outcome of the write before was not asked for, or the writer is
                closed, or belongs to another process.
        """
        # As the compiled class, which reads the bytes without the interpreter's lock: nobody may
        # change them.
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"data: expected bytes, found {type(data).__name__}")
        if self._owner != os.getpid():
            raise RuntimeError(f"the writer belongs to process {self._owner}")
        # One at a time: groups are durable in order only if each one waits for the one before.
        if self._at_work or not self._running:
            raise RuntimeError(f"the writer is {'at work' if self._running else 'closed'}")
        self._at_work = True
        self._asked.put(Span(file, offset, data))

    def outcome(self) -> int | None:
        """Return the result of a write, once: an errno, 0 if it is durable.

        None while it is under way, or if there is none.
        """
        # Read once: the thread may set it at any moment, and must not lose what it has set.
        if (error := self._error) is None:
            return None
        self._error, self._at_work = None, False
        return error

    def close(self) -> None:
        """End the thread, after a write that is under way; idempotent."""
        if self._running:
            self._running = False
            if self._owner == os.getpid():  # a forked child has no such thread
                self._asked.put(None)
                self._thread.join()

    def _work(self) -> None:
        while (span := self._asked.get()) is not None:
            # Here, not where the outcome is taken: a busy event loop may take it much later.
            began = time.perf_counter()
            error = write_span(span)
            self.took = time.perf_counter() - began
            # Before the wake-up: the event loop looks for the outcome as soon as it is woken.
            self._error = error
            with contextlib.suppress(OSError):  # closed by the owner: then nobody waits
                os.eventfd_write(self._wake, 1)


if TYPE_CHECKING:
    Writer: TypeAlias = PythonWriter
    """The compiled class where it could be built, else `PythonWriter`."""

    NATIVE: bool
    """Whether it is compiled."""
else:
    try:
        from . import _journal_writer as _compiled

        # A compiled file of another version may have stayed next to newer sources.
        NATIVE = _compiled.ABI == _ABI
    except ImportError:
        NATIVE = False
    Writer = _compiled.Writer if NATIVE else PythonWriter
