"""The audit log of a member: who came in, who was refused, and what operators did.

What is in it
    One JSON object a line, with ``time`` (UTC), ``member``, ``event`` and the facts of the event.
    docs/users.md lists the events. Writes are not in it: the log of the cluster has each of them,
    with its user. No password, hash, key or value is ever given to :meth:`AuditLog.note`.

When it is on disk
    Events gather while the event loop turns, and a thread writes and syncs all of them at once. So
    no client waits for this disk, and an event is durable some milliseconds after it happened. A
    crash or a power cut in between loses it. Such an event can't be relied on to prevent anything,
    only to tell of it later.

If the disk fails
    The member goes on, and warns: its clients need it more than this file. Events that could not be
    written are counted, and the next line that can be says how many (``events_lost``).

Bounds
    A file of `FILE_BYTES` is renamed to ``.1``, that to ``.2``, and so on up to `FILES` in all.
    Anybody can fail to log in as often as they like, and any user can log in as often, and so push
    out older events. So of such events `MOST_A_SECOND` of each source are written; the next one
    after a second says how many were left out (``left_out``).
"""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Never, Protocol, TypeVar

import attrs
import trio

from ...storage.writing.lane import Lane
from ...transport import Audit, NoAudit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from ..config.config import NodeConfig

log = logging.getLogger("quorate.node")

T = TypeVar("T")

FILE_BYTES: Final = 16 << 20
"""Size of a file. Smaller: more files have to be looked through. Larger: more is lost when the
oldest file goes."""

FILES: Final = 8
"""Files that are kept. Fewer: a busy week pushes out what is looked for. More: more disk."""

MAX_WAITING_BYTES: Final = 1 << 20
"""Events that wait for the disk. Smaller: a pause of the disk loses events. Larger: a disk that
hangs takes more memory."""

MOST_A_SECOND: Final = 10
"""Events that one source may cause in a second, such as an address that is refused. Smaller: it is
harder to see what an attacker tried. Larger: an attacker pushes out older events sooner."""

_SOURCES: Final = 4096
_MODE: Final = stat.S_IRUSR | stat.S_IWUSR


class Offload(Protocol):
    """Runs blocking calls, as `Lane` does."""

    def read(self, fn: Callable[[], T]) -> Awaitable[T]:
        """Call `fn` without holding up the event loop; return its result."""
        ...


@attrs.define
class _Second:
    """What one source has caused lately."""

    began: float
    events: int = 0
    left_out: int = 0


@attrs.frozen
class _Batch:
    """Lines to write at once, and how many events they tell of, lost ones included."""

    lines: bytes
    events: int


_NOTHING: Final = _Batch(b"", 0)


class AuditLog:
    """Writes events to a file.

    Args:
        path: of the file.
        member_id: is in each line.
        clock_ms: milliseconds since the epoch.
        lane: where the file is written; a thread unless given.
    """

    def __init__(
        self,
        path: Path,
        member_id: int,
        clock_ms: Callable[[], int],
        *,
        lane: Offload | None = None,
    ) -> None:
        self._path = path
        self._member_id = member_id
        self._clock_ms = clock_ms
        self._lane = Lane() if lane is None else lane
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._lost = 0
        self._arrived = trio.Event()
        self._seconds: dict[str, _Second] = {}
        self._fileno = -1
        self._failing = False
        self._batch = _NOTHING

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        """Note an event; returns at once, and never raises.

        Args:
            event: its name.
            of: what causes such events, if it may as often as it likes: an address without a port,
                or a kind of event, an address and a user.
            facts: strings, integers, and lists of strings; nothing secret.
        """
        if not of or self._admits(of, facts):
            self._put(self._line(event, facts))

    def _admits(self, source: str, facts: dict[str, object]) -> bool:
        """Whether a source may cause one more event now."""
        now, found = trio.current_time(), self._seconds.get(source)
        if found is None or now >= found.began + 1:
            self._seconds.pop(source, None)
            if len(self._seconds) >= _SOURCES:  # the one that began first
                del self._seconds[next(iter(self._seconds))]
            if found is not None and found.left_out:
                facts["left_out"] = found.left_out
            found = self._seconds[source] = _Second(now)
        found.events += 1
        found.left_out += found.events > MOST_A_SECOND
        return found.events <= MOST_A_SECOND

    def _line(self, event: str, facts: dict[str, object]) -> bytes:
        moment = datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
        head = {"time": moment.isoformat(timespec="milliseconds"), "member": self._member_id}
        # ASCII only, so that no name can command a terminal or look like another line.
        return json.dumps(head | {"event": event} | facts).encode() + b"\n"

    def _put(self, line: bytes) -> None:
        if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
            self._lost += 1
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._arrived.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write events until cancelled, and then those that are left."""
        task_status.started()
        try:
            while True:
                await self._arrived.wait()
                self._arrived = trio.Event()
                self._batch = self._taken()
                lost = await self._lane.read(self._write_batch)
                self._lost += lost
        finally:
            # What the lane had not begun when we were cancelled, and what came since.
            self._write_batch()
            self._batch = self._taken()
            self._write_batch()
            self._close()

    def _taken(self) -> _Batch:
        """Take the events that wait."""
        lines, lost = self._waiting, self._lost
        self._waiting, self._waiting_bytes, self._lost = [], 0, 0
        if lost:
            lines.insert(0, self._line("events_lost", {"count": lost}))
        return _Batch(b"".join(lines), len(lines) - bool(lost) + lost)

    # --- on the lane's thread

    def _write_batch(self) -> int:
        """Write the events that were taken; return how many were lost."""
        batch, self._batch = self._batch, _NOTHING
        if not batch.lines:
            return 0
        try:
            self._write(batch.lines)
        except OSError as error:
            self._close()
            if not self._failing:
                log.warning("audit_log_failed path=%s error=%s", self._path, error.strerror)
            self._failing = True
            return batch.events
        self._failing = False
        return 0

    def _write(self, data: bytes) -> None:
        path = self._path
        if self._fileno < 0:
            self._fileno = _open(path)
        size = os.fstat(self._fileno).st_size
        if size and size + len(data) > FILE_BYTES:
            self._close()
            for number in reversed(range(FILES - 1)):
                with suppress(FileNotFoundError):
                    _numbered(path, number).replace(_numbered(path, number + 1))
            self._fileno = _open(path)
        while data:
            data = data[os.write(self._fileno, data) :]
        os.fdatasync(self._fileno)

    def _close(self) -> None:
        if self._fileno >= 0:
            os.close(self._fileno)
        self._fileno = -1


def open_audit(config: NodeConfig, clock_ms: Callable[[], int]) -> Audit:
    """Return what takes note of a member's events: `AuditLog`, if its configuration wants one."""
    path = config.security.audit_path(config.directory)
    return NoAudit() if path is None else AuditLog(path, config.member_id, clock_ms)


@asynccontextmanager
async def writing(audit: Audit) -> AsyncGenerator[None, None]:
    """Write events for the length of the block; its begin and end are events, too."""
    if not isinstance(audit, AuditLog):
        yield
        return
    async with trio.open_nursery() as nursery:
        await nursery.start(audit.run)
        audit.note("started")
        try:
            yield
        finally:
            audit.note("stopped")
            nursery.cancel_scope.cancel()


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _open(path: Path) -> int:
    """Open the file to append to it; begin a new line if a crash has left half of one."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    fileno = os.open(path, flags, _MODE)
    try:
        os.fchmod(fileno, _MODE)
        size = os.fstat(fileno).st_size
        if size and os.pread(fileno, 1, size - 1) != b"\n":
            os.write(fileno, b"\n")
    except BaseException:
        os.close(fileno)
        raise
    return fileno
