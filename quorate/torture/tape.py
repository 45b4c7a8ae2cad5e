"""One recording of a torture in which something did not hold.

It has what the members' flight recorders wrote, the faults, the clients' operations near the
violations, and the violations. All of this was written on one machine, so the clocks are one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs

from .._version import __version__
from ..errors import RecordingError
from ..histories.history import Operation, read_history_untrusted
from ..node.live.flight import flight_file
from ..recordings import NOBODY, Event, Source
from ..recordings.head import WALL, Head
from ..recordings.merging import ONE_MACHINE, merge, merged_head
from ..recordings.reading import Recording, open_recording_untrusted
from ..recordings.ring import files_of
from ..recordings.writing import RecordingWriter, open_to_write

__all__ = ["Tape", "Violation"]

BEFORE_SECONDS: Final = 30.0
"""Before the first violation, this is recorded. Less: what has led to it may be missing. More: the
file is larger, and takes longer to look through."""

NEAR_SECONDS: Final = 5.0
"""Clients' operations that are so near to a violation are in it. Less: those that matter may be
missing. More: as above; six clients do thousands of operations in a second."""


@attrs.frozen
class Violation:
    """Something that did not hold.

    Args:
        invariant: a name for what should have held.
        text: what was found.
        at_ns: when, by the monotonic clock; None if nothing says when.
    """

    invariant: str
    text: str
    at_ns: int | None = None


class Tape:
    """Notes what a torture does, and writes a recording if that is wanted.

    Args:
        cluster: the name of the cluster.
        seed: of the torture.
        command: does it again.
        wall_ns: returns nanoseconds since the epoch.
        monotonic_ns: returns those of the clock by which clients measure.
    """

    def __init__(
        self,
        cluster: str,
        seed: int,
        command: str,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._events: list[Event] = []
        self.head = Head(
            Source.TORTURE,
            __version__,
            cluster,
            WALL,
            started_ms=wall_ns() // 1_000_000,
            seed=seed,
            command=command,
        )

    def note(self, text: str) -> None:
        """Note what happens now, in words."""
        self._put("note", text=text)

    def noting(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that notes what it is called with, and calls `tell` with it."""

        def noted(text: str) -> None:
            self.note(text)
            tell(text)

        return noted

    def fault(self, what: str, targets: Sequence[int], seconds: float) -> None:
        """Note a fault that begins now, the members that it hits, and for how long."""
        now = self._at(self._now_ns())
        until = round(now + seconds, 6)
        self._put("fault", what=what, targets=list(targets), until=until)
        # What a process can't say itself.
        for member in targets:
            if what == "kill":
                self._events.append(Event(now, member, "killed"))
            elif what == "pause":
                self._events += [Event(now, member, "pauses"), Event(until, member, "resumes")]

    def _put(self, kind: str, **fields: object) -> None:
        self._events.append(Event(self._at(self._now_ns()), NOBODY, kind, fields))

    def _at(self, ns: int) -> float:
        return (ns - self._began_ns) / 1e9

    def write(
        self,
        path: Path,
        directories: Sequence[Path],
        history: Path,
        violations: Sequence[Violation],
    ) -> None:
        """Write the recording.

        Args:
            path: of the file.
            directories: of all members.
            history: of the clients' operations.
            violations: what did not hold, one or more.

        Raises:
            HistoryError: the history is damaged.
            OSError: a file can't be read or written.
        """
        end = self._at(self._now_ns())
        found = [self._event(each, end) for each in violations]
        moments = [each.at for each in found]
        operations = self._operations(history, moments)
        own = sorted([*self._events, *operations, *found], key=lambda event: event.at)
        with ExitStack() as stack:
            flights = [
                stack.enter_context(open_recording_untrusted(file))
                for directory in directories
                for file in files_of(flight_file(directory))
            ]
            heads = [self.head, *(each.head for each in flights)]
            reporters = sorted({head.reporter for head in heads} - {NOBODY})
            head = merged_head(heads, dict.fromkeys(reporters, ONE_MACHINE))
            # Seconds since the first flight began, which was after our own start, or before it.
            shift = (self.head.started_ms - head.started_ms) / 1000
            since = min(moments) + shift - BEFORE_SECONDS
            with open_to_write(path) as file:
                writer = RecordingWriter(file, head)
                tape = Recording("the faults", self.head, iter(own))
                for event in merge([tape, *map(_whole, flights)], head):
                    if event.at >= since:
                        writer.write(event)

    def _event(self, violation: Violation, end: float) -> Event:
        at = end if violation.at_ns is None else self._at(violation.at_ns)
        fields = {"invariant": violation.invariant, "text": violation.text}
        return Event(at, NOBODY, "violation", fields)

    def _operations(self, history: Path, moments: Sequence[float]) -> Iterator[Event]:
        """Yield the clients' operations that ended near one of some moments."""
        with history.open("rb") as lines:
            for operation in read_history_untrusted(lines):
                at = self._at(operation.end_ns)
                if any(abs(at - moment) <= NEAR_SECONDS for moment in moments):
                    yield _operation(operation, at)


def _whole(recording: Recording) -> Recording:
    """Return a recording up to the first line that is none: a disk may have been full."""

    def events() -> Iterator[Event]:
        try:
            yield from recording.events
        except RecordingError as error:
            yield Event(0.0, recording.head.reporter, "note", {"text": str(error)})

    return attrs.evolve(recording, events=events())


def _operation(operation: Operation, at: float) -> Event:
    return Event(
        at,
        NOBODY,
        "client",
        {
            "client": operation.client,
            "op": operation.op,
            "key": operation.key.decode("latin-1"),
            "status": operation.status,
            "took": (operation.end_ns - operation.start_ns) / 1e9,
        },
    )
