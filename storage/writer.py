"""A thread in C (``writer.c``) that writes to a file and syncs it.

A thread of Python's has to get the interpreter's lock when it is woken, after the write and after
the sync, and each time the event loop's thread is at work: the write begins late, and is heard of
late. This one never asks for the lock. Where there was no compiler there is no `Writer`, and the
executor's other thread does what it would.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

import attrs

__all__ = ["NATIVE", "Span", "Writer", "write_span"]


@attrs.frozen
class Span:
    """What is to be written to a file: its descriptor, where, and the bytes."""

    file: int
    offset: int
    data: bytes


def write_span(span: Span) -> int:
    """Write a span and sync its file; return an errno, 0 if it is durable."""
    view, at = memoryview(span.data), span.offset
    try:
        while view:
            written = os.pwrite(span.file, view, at)
            view, at = view[written:], at + written  # a part only, when the disk is full
        os.fdatasync(span.file)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


if TYPE_CHECKING:

    class Writer:
        """The thread; it runs from the beginning. To be used by one thread.

        Args:
            wake: an eventfd that is written to when a write is over.

        Raises:
            OSError: no thread can be started.
        """

        def __init__(self, wake: int) -> None: ...

        def write(self, file: int, offset: int, data: bytes) -> None:
            """Begin to write data to a file, and to sync it; the one before must be over."""
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
        from ._writer import Writer
    except ImportError:
        Writer = None

NATIVE: Final = bool(Writer)
"""Whether it was compiled."""
