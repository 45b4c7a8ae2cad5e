"""What happened in a run: a digest of all of it, the last of it at hand, the whole in a file.

An event is a fact of one moment: a message that arrived, bytes that became durable, a transition,
a fault, an operation of a client. Every event goes into the digest, so two runs with the same
digest did the same. The file has one JSON object a line: first the head (what was run), then the
events, each with ``at`` (virtual seconds), ``member`` (-1 for none), ``kind`` and its details.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from io import TextIOBase

NOBODY: Final = -1
"""The member of an event that is nobody's."""

KEPT_EVENTS: Final = 400
"""Events that stay at hand; the whole run is written only where a file is given."""

FORMAT_VERSION: Final = 1

Detail: TypeAlias = int | float | str | bytes | None


@attrs.frozen
class Event:
    """Something that happened.

    Args:
        at: when, in virtual seconds.
        member: the member, -1 for none in particular.
        kind: what, in a word.
        details: more about it, in an order that the kind gives.
    """

    at: float
    member: int
    kind: str
    details: tuple[Detail, ...]

    def __str__(self) -> str:
        """Write it as one line of a report."""
        who = "      " if self.member == NOBODY else f"m{self.member:<5}"
        return " ".join([f"{self.at:12.6f} {who}{self.kind}", *map(_text, self.details)])


class Trace:
    """The events of one run.

    Args:
        file: where all of them are written, as JSON lines.
        head: the first line of the file: what is run.
    """

    def __init__(
        self, file: TextIOBase | None = None, head: Mapping[str, object] | None = None
    ) -> None:
        self.count = 0
        self.last: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._file = file
        self._hash = hashlib.sha256()
        if file is not None:
            file.write(json.dumps({"quorate_trace": FORMAT_VERSION, **(head or {})}) + "\n")

    def tell(self, kind: str, member: int = NOBODY, *details: Detail) -> None:
        """Note that something happens now."""
        event = Event(trio.current_time(), member, kind, details)
        self.count += 1
        self.last.append(event)
        self._hash.update(f"{event.at!r} {member} {kind} {details!r}\n".encode())
        if self._file is not None:
            self._file.write(_line(event))

    @property
    def digest(self) -> str:
        """Of all events so far: 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]

    def tail(self, count: int, kinds: Iterable[str] = ()) -> list[Event]:
        """Return the last events at hand, oldest first; of those kinds if any are given."""
        wanted = set(kinds)
        found = [each for each in self.last if not wanted or each.kind in wanted]
        return found[-count:]


def _line(event: Event) -> str:
    details = [
        each.decode("latin-1") if isinstance(each, bytes) else each for each in event.details
    ]
    fields = {"at": event.at, "member": event.member, "kind": event.kind, "details": details}
    return json.dumps(fields) + "\n"


def _text(detail: Detail) -> str:
    if isinstance(detail, float):
        return f"{detail:g}"
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
