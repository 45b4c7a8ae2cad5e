"""Writes to a file, durably, in C (``writer.c``).

A thread of Python's has to get the interpreter's lock when it is woken and after the write, and
each time the event loop's thread is at work: the write begins late, and is heard of late. So what
goes past the page cache is given to the kernel, which writes it and then makes the eventfd readable
by itself (see io_submit(2)): none of our threads is woken, for the write or after it. Everything
else is done by a thread in C that never asks for the lock.

To give it to the kernel takes 20 to 60 us of the caller's time. It can take longer, while
the file system writes its own journal, or on one that writes at once. After 2 ms the thread has the
next 64 writes. A disk that stands still altogether may hold up one call, and with it the whole
process: the others then miss this member's heartbeats.

Where there was no compiler there is no `Writer`, and the executor's other thread does what it
would.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NATIVE", "Span", "Writer", "open_synced", "write_span"]


@attrs.frozen
class Span:
    """What is to be written to a file of `open_synced`: its descriptor, where, and the bytes.

    Of a file that is written past the page cache, place and length must be whole blocks of the file
    system: any multiple of what the file began with will do.
    """

    file: int
    offset: int
    data: bytes


def open_synced(path: Path, begin: bytes) -> int:
    """Open a file so that each write is durable when it is done, and write its first bytes.

    It is written past the page cache where the file system allows that: the kernel then has data
    and flush done in one go, and wakes nobody in between. Three processes that wrote to one disk at
    once had 8 KiB there in 425 us, with a write and an fdatasync in 540.

    Raises:
        OSError: the file can't be opened or written.
    """
    try:
        return _open_synced(path, os.O_DIRECT, begin)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    return _open_synced(path, 0, begin)


def _open_synced(path: Path, how: int, begin: bytes) -> int:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | how)
    if error := write_span(Span(file, 0, begin)):
        os.close(file)
        raise OSError(error, os.strerror(error))
    return file


def write_span(span: Span) -> int:
    """Write a span; return an errno, 0 if it is durable."""
    length, at = len(span.data), 0
    try:
        with mmap.mmap(-1, max(length, 1)) as aligned:
            aligned[:length] = span.data
            while at < length:  # a part only, when the disk is full
                with memoryview(aligned) as view, view[at:length] as rest:
                    at += os.pwrite(span.file, rest, span.offset + at)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


if TYPE_CHECKING:

    class Writer:
        """Writes one thing at a time. To be used by one thread.

        Args:
            wake: an eventfd that is written to when a write is over.

        Raises:
            OSError: no thread can be started.
        """

        def __init__(self, wake: int) -> None: ...

        def write(self, file: int, offset: int, data: bytes) -> None:
            """Begin to write data to a file of `open_synced`; the one before must be over."""
            ...

        def outcome(self) -> int | None:
            """Return what became of a write, once: an errno, 0 if it is durable.

            None if it is not over, or if there is none.
            """
            ...

        def close(self) -> None:
            """End the thread, after a write that is under way; idempotent."""
            ...

else:
    try:
        # By this name an older one, which was compiled to sync by itself, is not taken for it.
        from ._kernel_writer import SyncedWriter as Writer
    except ImportError:
        Writer = None

NATIVE: Final = bool(Writer)
"""Whether it was compiled."""
