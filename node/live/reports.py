"""The form in which members send each other their events: lines of JSON in frames of a stream.

What comes from another member is checked before it is passed on to browsers. A member speaks for
itself and nobody else, only of kinds that there are, and only in fields that these have.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ...errors import RecordingError, WireError
from ...recordings import KINDS, Event
from ...recordings.reading import decode_event_untrusted
from ...transport import EventsReport
from .reporter import KEPT_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...transport import FrameStream
    from .reporter import Reporter

MOST_BYTES: Final = 256 << 10
"""Longest report. A status has some 2 KiB. Smaller: a burst of events breaks the stream. Larger: a
member that is out of its mind makes the others hold more."""

LINE_BYTES: Final = 64 << 10
"""Longest event. Smaller: the status of a large cluster does not fit. Larger: as above."""

MOST_DEPTH: Final = 8
"""How deep the objects and lists of an event may be nested. A status has half of that. Smaller: a
status of a newer version may not pass. Larger: a picture of all members, which nests deeper, may be
too deep to be written."""

SEND_SECONDS: Final = 5.0
"""How long another member may take to accept a report. Shorter: slow networks break streams.
Longer: a stream to a member that is gone stays open for longer."""


async def send_events(reporter: Reporter, stream: FrameStream) -> None:
    """Send a member's events on a stream until that ends."""
    with reporter.subscribe() as events:
        while True:
            batch = await events.batch()
            with trio.fail_after(SEND_SECONDS):
                for lines in joined([event.as_json().encode() for event in batch]):
                    await stream.send(EventsReport(lines))


def joined(lines: list[bytes]) -> list[bytes]:
    """Join lines to reports that are not too long; a line that is too long is left out."""
    reports: list[list[bytes]] = [[]]
    size = 0
    for line in lines:
        if len(line) > LINE_BYTES:
            continue
        if size + len(line) + 1 > MOST_BYTES:
            reports.append([])
            size = 0
        reports[-1].append(line)
        size += len(line) + 1
    return [b"\n".join(each) for each in reports if each]


def events_untrusted(report: bytes, member: int) -> list[Event]:
    """Return the events that a member has reported, of the kinds and fields that are known.

    Args:
        report: as it came.
        member: that sent it.

    Raises:
        WireError: the report is too long or no JSON, or it speaks for another member.
    """
    if len(report) > MOST_BYTES:
        raise WireError(f"a report of {len(report)} bytes: expected at most {MOST_BYTES}")
    found = [_event_untrusted(line, member) for line in report.split(b"\n")]
    return [event for event in found if event is not None]


def _event_untrusted(line: bytes, member: int) -> Event | None:
    """Return one event; None if its kind is not known."""
    if len(line) > LINE_BYTES:
        raise WireError(f"an event of {len(line)} bytes: expected at most {LINE_BYTES}")
    try:
        event = decode_event_untrusted(line)
    except RecordingError as error:
        raise WireError(f"from member {member}: {error}") from None
    fields, kind = event.fields, event.kind
    if event.member != member or fields.get("by", member) != member:
        raise WireError(f"an event of member {event.member}, sent by {member}: {line!r:.100}")
    if kind not in KINDS:
        return None  # of a newer version
    known = {name: fields[name] for name in KINDS[kind] if name in fields}
    if kind == "keyframe":
        known = _own_picture_untrusted(known.get("members"), member)
    if kind in {"keyframe", "status"} and not isinstance(known.get("status"), dict):
        raise WireError(f"a status of member {member} that is no object: {line!r:.100}")
    if _is_deeper(known, MOST_DEPTH):
        raise WireError(f"an event nested deeper than {MOST_DEPTH}: {line!r:.100}")
    if kind == "keyframe":
        known = {"members": {str(member): {**known, "by": member, "heard_ms": 0}}}
    try:
        # A number such as 1e999 is infinite for Python, and no JSON when it is sent on.
        body = json.dumps(known, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise WireError(f"an event with a number without end: {line!r:.100}") from None
    return Event(event.at, member, kind, known, body)


def _is_deeper(value: object, most: int) -> bool:
    """Whether objects and lists are nested deeper than `most`; never recurses deeper itself."""
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value).values()
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    if most == 0:
        return isinstance(value, dict | list)
    # A status has a hundred figures, and few of them are objects or lists.
    return any(
        _is_deeper(cast("object", each), most - 1)
        for each in inner
        if isinstance(each, dict | list)
    )


def _own_picture_untrusted(members: object, member: int) -> dict[str, Any]:
    """Return what a member's own keyframe says of it: its status, and the steps that it keeps."""
    own = cast("dict[str, Any]", members).get(str(member)) if isinstance(members, dict) else None
    found = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
    steps = found.get("steps")
    listed = cast("list[object]", steps) if isinstance(steps, list) else []
    names = ("ago", *KINDS["enters"])
    return {
        "status": found.get("status"),
        "steps": [
            {name: step[name] for name in names if name in step}
            for each in listed[-KEPT_STEPS:]
            if isinstance(each, dict)
            and (step := cast("dict[str, Any]", each))
            # One of which the time is not known has no place among the events.
            and isinstance(step.get("ago"), int | float)
        ],
    }
