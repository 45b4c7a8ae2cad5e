"""Writes a recording in the form of Perfetto, which draws time lines: https://ui.perfetto.dev.

It is the JSON that Chrome writes: each member is a process with a lane of the states of its
elections, whose slices last until the next, and a lane of its messages, whose arrows are flows.
Positions are counters, and all other events are instants.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .events import NOBODY
from .merging import arrow_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .events import Event
    from .head import Head
    from .merging import Arrow

STATES: Final = 1
MESSAGES: Final = 2
EVENTS: Final = 3
_LANES: Final = {STATES: "states", MESSAGES: "messages", EVENTS: "events"}
_SKIPPED: Final = frozenset({"keyframe", "status"})
_ENDS: Final = frozenset({"ends", "killed", "powerless", "stops", "wiped"})


def perfetto_lines(head: Head, events: Iterable[Event]) -> Iterator[str]:
    """Yield the lines of a trace for Perfetto, without their ends: one object of JSON in all."""
    yield f'{{"otherData":{json.dumps(head.as_fields())},"traceEvents":['
    first = True
    for entry in _Perfetto(head).entries(events):
        yield ("" if first else ",") + json.dumps(entry, separators=(",", ":"))
        first = False
    yield "]}"


class _Perfetto:
    """Makes entries of a trace of events."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._open: dict[int, tuple[float, Event]] = {}  # the state of each member, since when
        self._named: set[int] = set()
        self._flows: dict[Arrow, int] = {}
        self._count = 0

    def entries(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        last = 0.0
        for event in events:
            last = _micros(event.at)
            if event.member not in self._named:
                self._named.add(event.member)
                yield from _names(event.member)
            if event.kind not in _SKIPPED:
                yield from self._of(event)
        for member in list(self._open):
            yield from self._close(member, last)

    def _of(self, event: Event) -> Iterator[dict[str, Any]]:
        at, pid = _micros(event.at), _pid(event.member)
        if event.kind == "enters":
            yield from self._close(event.member, at)
            self._open[event.member] = at, event
            return
        if event.kind in _ENDS:
            yield from self._close(event.member, at)
        if event.kind in {"sends", "hears"}:
            yield from self._message(event, at, pid)
        elif event.kind == "positions":
            yield {"ph": "C", "name": "positions", "pid": pid, "ts": at, "args": event.fields}
        else:
            scope = "g" if event.kind in {"fault", "violation"} else "p"
            name = f"{event.kind} {event.fields.get('what', '')}".strip()
            entry = {"ph": "i", "s": scope, "name": name, "pid": pid, "tid": EVENTS, "ts": at}
            yield entry | {"args": event.fields}

    def _close(self, member: int, until: float) -> Iterator[dict[str, Any]]:
        """End the slice of a member's state."""
        if member in self._open:
            since, event = self._open.pop(member)
            yield {
                "ph": "X",
                "name": str(event.fields.get("after", "?")),
                "pid": _pid(member),
                "tid": STATES,
                "ts": since,
                "dur": until - since,
                "args": event.fields,
            }

    def _message(self, event: Event, at: float, pid: int) -> Iterator[dict[str, Any]]:
        name = str(event.fields.get("type", "?"))
        place = {"name": name, "pid": pid, "tid": MESSAGES, "ts": at}
        yield {"ph": "X", "dur": 1, **place, "args": event.fields}
        if (arrow := arrow_of(event)) is None:
            return
        if event.kind == "sends":
            self._count += 1
            self._flows[arrow] = self._count
            yield {"ph": "s", "cat": "message", "id": self._count, **place}
        elif (number := self._flows.pop(arrow, None)) is not None:
            yield {"ph": "f", "bp": "e", "cat": "message", "id": number, **place}


def _names(member: int) -> Iterator[dict[str, Any]]:
    pid = _pid(member)
    name = "outside" if member == NOBODY else f"member {member}"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    for lane, words in _LANES.items():
        named = {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane}
        yield named | {"args": {"name": words}}


def _pid(member: int) -> int:
    return member + 2  # Perfetto takes 0 for its own


def _micros(at: float) -> float:
    return round(1e6 * at, 3)
