"""Writes a recording in the form of ShiViz, which draws who knew what: https://bestchai.bitbucket.io.

Each event is two lines, by which ShiViz reads logs if it is not given another pattern: what
happened, then the member and its vector clock. Clocks are computed from the numbers of messages.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from .events import NOBODY
from .merging import arrow_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .events import Event
    from .merging import Arrow

SKIPPED: Final = frozenset({"keyframe", "status", "positions"})
"""They say how things are, and not what happened."""


def shiviz_lines(events: Iterable[Event]) -> Iterator[str]:
    """Yield the lines of a log for ShiViz, without their ends."""
    clocks = defaultdict[str, Counter[str]](Counter)
    sent: dict[Arrow, Counter[str]] = {}
    for event in events:
        if event.kind in SKIPPED:
            continue
        host = "outside" if event.member == NOBODY else f"m{event.member}"
        clock = clocks[host]
        arrow = arrow_of(event) if event.kind in {"sends", "hears"} else None
        if event.kind == "hears" and arrow in sent:
            clock |= sent.pop(arrow)  # the larger of each two
            clocks[host] = clock
        clock[host] += 1
        if event.kind == "sends" and arrow is not None:
            sent[arrow] = clock.copy()
        yield described(event)
        yield f"{host} {json.dumps(dict(sorted(clock.items())))}"


def described(event: Event) -> str:
    """Return an event in one line of words."""
    words = " ".join(f"{name}={_text(value)}" for name, value in event.fields.items())
    return f"{event.at:.6f} {event.kind} {words}".rstrip()


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value)
