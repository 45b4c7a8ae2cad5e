"""Lines for standard error or standard output that never block the event loop.

**The problem.** A plain write blocks if it goes to a pipe that no process reads, or to a terminal
that is stopped (Ctrl-S). Then the event loop blocks, too, with the elections and the clients of a
member.

**What we do.** A line is written as far as the kernel takes it at once. The rest is queued, up to
:data:`MAX_QUEUED_BYTES`. Further lines are dropped, and a line of its own says how many. While
:meth:`Lines.run` runs, queued lines are written as soon as the kernel takes them. At the end
:meth:`Lines.close` waits for :data:`FLUSH_SECONDS` at most.

**How a write is kept from blocking.** ``O_NONBLOCK`` belongs to the open file description, which
other processes share: the shell, or another writer of the same pipe. So it is never set on a
descriptor that we were given. A pipe or a terminal is opened once more, for a description of our
own. A socket takes ``MSG_DONTWAIT``. If it cannot be opened (a terminal of another user), we poll
before each write, and write no more than a pipe takes whole. Then we block only if another process
writes to the same pipe in that very moment. A regular file is never full, but its disk may hang:
while :meth:`Lines.run` runs, a file is written on another thread.

Caveat: other code that writes to `sys.stderr` (Python's warnings) still writes directly.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import stat
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final, TextIO, cast

import trio

from ..storage.writing.executor import Job
from ..storage.writing.group_commit import ThreadExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Never

    from rich.console import Console

__all__ = [
    "LineHandler",
    "Lines",
    "line_handler",
    "print_bounded",
    "unblocked",
    "unblocked_console",
]

MAX_QUEUED_BYTES: Final = 1 << 20
"""Smaller, and a reader that pauses for a moment misses lines. Larger, and memory is wasted."""

FLUSH_SECONDS: Final = 1.0
"""How long the end of a process waits for a reader. Shorter, and the last lines are lost more
often. Longer, and a stuck terminal delays each stop."""

_LOOK_SECONDS: Final = 0.01

_PIECE_BYTES: Final = select.PIPE_BUF
"""The most that a pipe takes without blocking once it polls as writable."""


class Lines:
    """Writes lines to a descriptor without waiting for it; from any thread.

    Args:
        fileno: the descriptor; it stays open, and its flags are not changed.
        dropped: makes a line from the number of lines that were dropped.
    """

    def __init__(self, fileno: int, dropped: Callable[[int], bytes]) -> None:
        self._file = stat.S_ISREG(os.fstat(fileno).st_mode)
        self._fileno, self._send, self._closes = _open_own(fileno)
        self._dropped_line = dropped
        self._dropped = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        # Reentrant: a finaliser may log in the middle of `put`. It is never held in a write that
        # may block.
        self._lock = RLock()
        self._writing = False
        self._wake: Callable[[], None] | None = None  # set while `run` runs

    def put(self, line: bytes) -> None:
        """Write a line, or queue it, or drop it."""
        with self._lock:
            if self._queued_bytes + len(line) > MAX_QUEUED_BYTES:
                self._dropped += 1
            else:
                self._append(line)
            left = (self._file and self._wake is not None) or self._write()
            if left and self._wake is not None:
                self._wake()

    def close(self) -> None:
        """Write what is queued, for `FLUSH_SECONDS` at most; then drop everything."""
        until = time.monotonic() + FLUSH_SECONDS
        with self._lock:
            while self._write() and (left := until - time.monotonic()) > 0:
                _is_writable(self._fileno, left)
            self._queue.clear()
            self._send = len
            for close in self._closes:
                close()
            self._closes = ()

    async def written(self) -> None:
        """Wait until everything is written while `run` runs, for `FLUSH_SECONDS` at most."""
        with trio.move_on_after(FLUSH_SECONDS):
            while self._queued_bytes:  # noqa: ASYNC110 - another thread may write
                await trio.sleep(_LOOK_SECONDS)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write queued lines as soon as the kernel takes them, until cancelled."""
        token, arrived = trio.lowlevel.current_trio_token(), trio.Event()
        lane = ThreadExecutor[Job](_never)

        def arrive() -> None:
            arrived.set()

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(arrive)

        self._wake = wake
        task_status.started()
        try:
            while True:
                while not self._queue:
                    await arrived.wait()
                    arrived = trio.Event()
                if self._file:
                    await lane.read(self._write_file)
                else:
                    await trio.lowlevel.wait_writable(self._fileno)
                    with self._lock:
                        self._write()
        finally:
            self._wake = None

    def _append(self, line: bytes) -> None:
        self._queue.append(line)
        self._queued_bytes += len(line)

    def _write(self) -> bool:
        """Write what the kernel takes at once; return whether something is left."""
        if self._writing:
            return True
        self._writing = True
        try:
            return self._write_queued()
        finally:
            self._writing = False

    def _write_queued(self) -> bool:
        while self._queue:
            line = self._queue[0]
            try:
                sent = self._send(line[:_PIECE_BYTES])
            except BlockingIOError:
                return True
            except OSError:  # the reader is gone for good
                sent = len(line)
            self._queued_bytes -= sent
            if sent < len(line):
                self._queue[0] = line[sent:]
            else:
                self._queue.popleft()
                self._report_dropped()
        return False

    def _write_file(self) -> None:
        """Write queued lines to a file, on the executor's thread, since the disk may hang."""
        while self._queue:
            line = self._queue.popleft()
            with suppress(OSError):
                _write_all(self._fileno, line)
            with self._lock:
                self._queued_bytes -= len(line)
                self._report_dropped()

    def _report_dropped(self) -> None:
        """Append a line that says how many were dropped, once the queue is empty."""
        if self._dropped and not self._queue:
            count, self._dropped = self._dropped, 0
            self._append(self._dropped_line(count))


def _never(_group: Sequence[Job]) -> None:
    """Write nothing: this executor only runs reads."""


def _write_all(fileno: int, data: bytes) -> None:
    while data:
        data = data[os.write(fileno, data) :]


def _is_writable(fileno: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fileno, select.POLLOUT)
    return bool(poll.poll(1000 * seconds))


def _open_own(
    fileno: int,
) -> tuple[int, Callable[[bytes], int], Sequence[Callable[[], None]]]:
    """Find a way to write without blocking.

    Returns:
        The descriptor to wait for, a function that writes or raises BlockingIOError, and functions
        that close all of it.
    """
    mode = os.fstat(fileno).st_mode
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(fileno))
        send = partial(_send_at_once, own)
        return own.fileno(), send, (own.close,)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError):
            again = os.open(f"/proc/self/fd/{fileno}", flags)
            return again, partial(os.write, again), (partial(os.close, again),)
    return fileno, partial(_write_if_writable, fileno), ()


def _send_at_once(own: socket.socket, data: bytes) -> int:
    return own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _write_if_writable(fileno: int, data: bytes) -> int:
    if not _is_writable(fileno, 0):
        raise BlockingIOError
    return os.write(fileno, data)


class LineHandler(logging.Handler):
    """Logs to a descriptor without waiting for it.

    Args:
        stream: has the descriptor and the encoding.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._encoding = stream.encoding
        self.lines = Lines(stream.fileno(), self._dropped)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or queue it, or drop it."""
        try:
            self.lines.put(self._encoded(record))
        except Exception:  # noqa: BLE001 - logging's own way
            self.handleError(record)

    def close(self) -> None:
        """Write what is queued, for `FLUSH_SECONDS` at most."""
        self.lines.close()
        super().close()

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _dropped(self, count: int) -> bytes:
        words = "%(count)d lines were dropped: standard error was not read"
        fields = {"count": count}
        record = logging.LogRecord("quorate.run", logging.WARNING, "", 0, words, (fields,), None)
        record.event, record.fields = "log_lines_dropped", fields
        return self._encoded(record)


def line_handler(stream: TextIO) -> logging.Handler:
    """Return a handler that logs to a stream, without waiting for it if it has a descriptor."""
    try:
        return LineHandler(stream)
    except (AttributeError, OSError, ValueError):  # it is closed, or not a real one
        return logging.StreamHandler(stream)


class _LinesFile(io.TextIOBase):
    """A text file for `rich` and `print` that never blocks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lines = Lines(stream.fileno(), self._dropped)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        self.lines.put(text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def _dropped(self, count: int) -> bytes:
        return f"({count} pieces of output were dropped: they were not read in time)\n".encode(
            self.encoding
        )


@contextmanager
def unblocked(stream: TextIO) -> Generator[TextIO]:
    """Return a file that writes to a stream without blocking; the end waits `FLUSH_SECONDS`."""
    try:
        stream.flush()
        file = _LinesFile(stream)
    except (OSError, ValueError):  # it has no descriptor
        yield stream
        return
    try:
        yield file  # type: ignore[misc]
    finally:
        file.lines.close()


@contextmanager
def unblocked_console(console: Console) -> Generator[None]:
    """Make a console write without blocking, for the length of the block."""
    before = console.file
    with unblocked(cast("TextIO", before)) as file:
        console.file = file
        try:
            yield
        finally:
            console.file = before


def print_bounded(stream: TextIO | None, text: str) -> None:
    """Print the last words of a process, without waiting for a reader for ever."""
    if stream is None:
        return
    with unblocked(stream) as file:
        file.write(text)
