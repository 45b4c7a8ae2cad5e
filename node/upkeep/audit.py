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
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...log_events import log_event
from ...recordings.gathering import Gatherer
from ...recordings.ring import Ring
from ...transport import Audit, NoAudit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from ...recordings.gathering import Offload
    from ..config.config import NodeConfig

log = logging.getLogger("quorate.node")

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


@attrs.define
class _Second:
    """What one source has caused lately."""

    began: float
    events: int = 0
    left_out: int = 0


class AuditLog:
    """Writes events to a file.

    Args:
        path: of the file.
        member_id: is in each line.
        clock_ms: milliseconds since the epoch.
        lane: where the file is written; a thread unless given.

    Attributes:
        run: writes events until cancelled, and then those that are left.
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
        self._seconds: dict[str, _Second] = {}
        self._lines = Gatherer(
            Ring(path, file_bytes=FILE_BYTES, files=FILES),
            most_waiting=MAX_WAITING_BYTES,
            lost=lambda count: self._line("events_lost", {"count": count}),
            failed=self._on_failure,
            lane=lane,
        )
        self.run = self._lines.run

    def _on_failure(self, error: OSError) -> None:
        words, path = "%(path)s can't be written: %(why)s", str(self._path)
        log_event(log, logging.WARNING, "audit_log_failed", words, path=path, why=error.strerror)

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        """Note an event; returns at once, and never raises.

        Args:
            event: its name.
            of: what causes such events, if it may as often as it likes: an address without a port,
                or a kind of event, an address and a user.
            facts: strings, integers, and lists of strings; nothing secret.
        """
        if not of or self._admits(of, facts):
            self._lines.put(self._line(event, facts))

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
