"""The flight recorder: what a member did lately, always on and bounded, for after a crash.

It watches the member's live events as a browser does, and writes them as a recording into
``flight/`` in the member's directory: steps of elections, links, snapshots, slow batches, and
positions when they have changed. Requests are not in it, and of messages only those of elections
(`messages`), so it costs the same however busy the member is.

When it is on disk
    A thread writes, so no client waits for this disk. Nothing is synced: what was written survives
    the end of the process, also by SIGKILL, but not that of the machine. Steps of elections are
    written at once, positions once a second.

If the disk fails, or is nearly full
    The member goes on without. The next line that can be written says how many events were lost.
    While less than twice the reserve is free, events wait in memory: the files must not take the
    room that the member needs for its state.

Across starts
    A start goes on in the file of the one before, so a member that starts again and again does not
    push out why. Only a start whose clock is behind the end of that file begins a new one. Times
    are seconds since the head of the file, by the wall clock at each start.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from ...errors import QuorateError, RecordingError, leaves
from ...log_events import log_event
from ...recordings import NOBODY, Event
from ...recordings.gathering import Gatherer
from ...recordings.reading import decode_event_untrusted, decode_head_untrusted
from ...recordings.ring import Ring

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from ...recordings import Fields
    from ...recordings.gathering import Offload
    from .messages import MessageRecorder
    from .reporter import Reporter
    from .subscription import Subscription

log = logging.getLogger("quorate.node")

FILE_BYTES: Final = 8 << 20
"""Smaller: more files to look through. Larger: more is lost when the oldest file goes."""

FILES: Final = 8
"""Fewer: what is looked for may be gone. More: more disk. A quiet member fills one in days, and a
busy one in hours."""

MAX_WAITING_BYTES: Final = 1 << 20
"""Events that wait for the disk. Smaller: a pause of the disk loses events. Larger: a disk that
hangs takes more memory."""

KEYFRAME_SECONDS: Final = 10.0
"""Between two pictures of the member. Shorter: the files hold less time. Longer: a viewer knows
less in between."""

MAX_WHY_CHARACTERS: Final = 500

POSITIONS: Final = {
    "append": "append_position",
    "commit": "commit_position",
    "applied": "applied_position",
    "snapshot": "snapshot_position",
}
"""The fields of ``positions``, and where a status has them."""

FLUSH_STATUSES: Final = 2
"""Statuses between two writes of positions. There are two statuses a second, or five while
somebody watches. Fewer: more writes. More: SIGKILL loses more of them."""


UNHURRIED_BYTES: Final = 128 << 10
"""Messages that wait for the next write while all of them are recorded. Fewer: more writes. More:
SIGKILL loses more of them, and those of a busy member wait for a large part of what may wait."""


def flight_file(directory: Path) -> Path:
    """Return the newest file of the flight recorder of a member with this directory."""
    return directory / "flight" / "flight.qtrace"


class FlightRecorder:
    """Writes a member's live events to a ring of files.

    Args:
        reporter: of the member.
        path: of the newest file.
        messages: has messages recorded; it stands still while the recorder does not run.
        lane: where the file is written; a thread unless given.
        held: whether the disk is so full that nothing should be written.
    """

    def __init__(
        self,
        reporter: Reporter,
        path: Path,
        messages: MessageRecorder,
        *,
        lane: Offload | None = None,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reporter = reporter
        self._path = path
        self._messages = messages
        self._events: Subscription | None = None
        self._unhurried = 0
        self._head: dict[str, Any] = reporter.head()
        self._shift = 0.0
        self._positions: dict[str, int] = {}
        self._changed = True
        self._drawn = float("-inf")
        self._statuses = 0
        self._lines = Gatherer(
            Ring(path, file_bytes=FILE_BYTES, files=FILES, sync=False, mend=True),
            most_waiting=MAX_WAITING_BYTES,
            lost=self._lost,
            failed=self._on_failure,
            lane=lane,
            held=held,
            prepare=self._prepare_late,
        )
        self._late = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Record until cancelled; a start and a stop are events, too."""
        try:
            await self._lines.lane.read(self._prepare)
        except OSError as error:
            self._late = True
            self._on_failure(error)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._lines.run)
                self._put(self._reporter.now(), "starts")
                task_status.started()
                with self._reporter.subscribe(recorder=True) as events:
                    self._events = events
                    self._messages.begin(self._take_message)
                    async for event in events:
                        self._take(event)
        finally:
            self._messages.end()
            # Here, not in the block: the task that writes may have ended before that.
            self._put(self._reporter.now(), "stops")
            self._lines.finish()

    def failed(self, error: Exception) -> None:
        """Note why the member ends."""
        why = "; ".join(map(_harmless, leaves(error)))
        self._put(self._reporter.now(), "fails", why=why[:MAX_WHY_CHARACTERS])

    def _prepare_late(self) -> None:
        """Begin a new file if the present one could not be looked at; on the thread that writes.

        Raises:
            OSError: the directory can't be made still.
        """
        if self._late:
            self._path.parent.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            self._lines.ring.turn()
            if not self._lines.ring.begin:
                self._lines.ring.begin = _line(self._head)
            self._late = False

    def _prepare(self) -> None:
        """Find out whether to go on in the present file; on the thread that writes.

        Raises:
            OSError: the directory can't be made, or the file can't be read.
        """
        ring, own = self._lines.ring, self._reporter.started_ms
        self._path.parent.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        if line := ring.first_line(1 << 20):
            try:
                head = decode_head_untrusted(line)
            except RecordingError:
                ring.turn()
            else:
                # Else times would go back, or another version wrote what a reader must know.
                end_ms = head.started_ms + 1000 * _time_of(ring.last_line(1 << 20))
                if end_ms <= own and head.version == self._head["version"]:
                    self._shift = (own - head.started_ms) / 1000
                    own = head.started_ms
                else:
                    ring.turn()
        self._head["started_ms"] = own
        ring.begin = _line(self._head)

    def _take(self, event: Event) -> None:
        if event.kind == "status":
            self._look(event)
        elif event.kind == "keyframe":
            own = dict(event.fields["members"][str(event.member)])
            del own["steps"]  # those that were seen stand in the file
            self._lines.put(self._draw(event.at, {"members": {str(event.member): own}}))
        else:
            self._changed = True
            self._put(event.at, event.kind, **event.fields)

    def _take_message(self, kind: str, fields: Fields) -> int:
        """Take a message that is sent or heard now; return its bytes in the file."""
        if self._events is not None:
            for event in self._events.take():
                self._take(event)  # it was before
        line = self._encoded(self._reporter.now(), self._reporter.member_id, kind, fields)
        self._unhurried += len(line)
        # Each write wakes a thread.
        soon = not self._messages.on or self._unhurried >= UNHURRIED_BYTES
        self._lines.put(line, soon=soon)
        if soon:
            self._unhurried = 0
        self._changed = True
        return len(line)

    def _look(self, event: Event) -> None:
        """Note positions if they have changed, and draw a picture if one is due."""
        self._messages.stop_if_due()
        status = event.fields["status"]
        positions = {name: status[field] for name, field in POSITIONS.items()}
        if positions != self._positions:
            self._positions, self._changed = positions, True
            self._put(event.at, "positions", soon=False, **positions)
        if self._changed and event.at >= self._drawn + KEYFRAME_SECONDS:
            own = {"status": status, "by": event.member, "heard_ms": 0}
            line = self._draw(event.at, {"members": {str(event.member): own}})
            self._lines.put(line, soon=False)
            # Each new file begins with the last picture.
            self._lines.ring.begin = _line(self._head) + line
        self._statuses += 1
        if self._statuses % FLUSH_STATUSES == 0:
            self._lines.hurry()

    def _draw(self, at: float, fields: Any) -> bytes:
        """Return the line of a picture of the member."""
        self._drawn, self._changed = at, False
        return self._encoded(at, NOBODY, "keyframe", fields)

    def _put(self, at: float, kind: str, *, soon: bool = True, **fields: Any) -> None:
        self._lines.put(self._encoded(at, self._reporter.member_id, kind, fields), soon=soon)

    def _encoded(self, at: float, member: int, kind: str, fields: Any) -> bytes:
        return Event(at + self._shift, member, kind, fields).as_json().encode() + b"\n"

    def _lost(self, count: int) -> bytes:
        now, member = self._reporter.now(), self._reporter.member_id
        text = f"{count} events were lost: the disk could not take them"
        return self._encoded(now, member, "note", {"text": text})

    def _on_failure(self, error: OSError) -> None:
        words, path = "%(path)s can't be written: %(why)s", str(self._path)
        why = error.strerror
        log_event(log, logging.WARNING, "flight_recorder_failed", words, path=path, why=why)


@asynccontextmanager
async def recording_flight(
    reporter: Reporter,
    directory: Path,
    messages: MessageRecorder,
    held: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[None]:
    """Record what a member with this directory does, for the length of the block.

    Args:
        reporter: of the member.
        directory: of the member.
        messages: of the member.
        held: whether the disk is so full that nothing should be written.
    """
    recorder = FlightRecorder(reporter, flight_file(directory), messages, held=held)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        try:
            yield
        except Exception as error:
            recorder.failed(error)
            raise
        nursery.cancel_scope.cancel()


def _time_of(line: bytes) -> float:
    """Return when an event happened; 0 for a line that is none, such as the head."""
    try:
        return decode_event_untrusted(line).at
    except RecordingError:
        return 0.0


def _harmless(error: BaseException) -> str:
    """Return what an error is, without data of clients that a state machine's may quote."""
    name = type(error).__name__
    match error:
        case QuorateError():
            return f"{name}: {error}"
        case OSError(errno=int(number)):
            return f"{name}: {os.strerror(number)}"
        case _:
            return name


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
