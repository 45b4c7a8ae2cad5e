"""What an event is, and which kinds there are.

As a line of a file an event is one JSON object: ``at``, ``member``, ``kind``, and the fields of its
kind next to them. The head is the first line::

    {"quorate_trace": 2, "source": "live", "version": "0.1.0", "cluster": "orders",
     "clock": "wall", "started_ms": 1764247000000, "seed": null, "command": "",
     "members": [{"id": 0, "role": "voter"}, ...], "reporter": 0}

``at`` is in seconds since ``started_ms`` (milliseconds since the epoch; 0 in a simulation, whose
time is virtual). ``reporter`` is the member that wrote the file, -1 if something outside of all
members did. A reader ignores kinds and fields that it does not know.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION: Final = 2

# Made once: `json.dumps` with separators makes one for each line, which takes as long as the line.
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode

NOBODY: Final = -1
"""The member of an event that is of no member."""

Fields: TypeAlias = "Mapping[str, Any]"
"""Names and values of JSON: numbers, strings, booleans, null, and lists and objects of these."""


class Source(enum.Enum):
    """What was recorded."""

    LIVE = "live"
    SIMULATION = "simulation"
    TORTURE = "torture"


KINDS: Final[dict[str, tuple[str, ...]]] = {
    # The picture of everything at one moment: from here on the events say what changes.
    "keyframe": ("members", "links"),
    # A member reports of itself: its status, its rates and its quantiles (see `status.py` of node).
    "status": ("status",),
    # An election takes a step.
    "enters": ("before", "after", "reason", "term", "election", "log_end", "commit"),
    # A member leads a term, and why there was an election; from the term event in the log.
    "leads": ("term", "cause", "base", "took"),
    # Messages. `n` counts those on one link since it came up (`link` counts the links), so the
    # n-th that was sent is the n-th that is heard.
    "sends": ("to", "link", "n", "type", "term", "position"),
    "hears": ("sender", "link", "n", "type", "term", "position"),
    "positions": ("append", "commit", "applied", "snapshot"),
    "durable": ("append",),
    "link": ("peer", "direction", "up", "why"),
    "disk": ("what", "bytes", "took"),
    "snapshot": ("what", "position", "bytes", "took"),
    "config": ("version", "voters", "joint"),
    # A batch that took long, and where its time went (seconds).
    "batch": (
        "position",
        "entries",
        "bytes",
        "receive",
        "sync",
        "quorum",
        "apply",
        "reply",
        "took",
    ),
    # An operation of a client: `status` is "ok", "fail", "unknown" or "called".
    "client": ("client", "op", "key", "status", "took"),
    # The life of a process or a machine.
    "created": ("name",),
    "starts": (),
    "ends": (),
    "stops": (),
    "fails": ("why",),
    "killed": (),
    "powerless": ("fate",),
    "pauses": (),
    "resumes": (),
    "wiped": (),
    "removed": (),
    "fault": ("what", "targets", "until"),
    "violation": ("invariant", "text"),
    "note": ("text",),
}
"""The fields of each kind. A field that is not known in a case is left out."""


@attrs.frozen
class Event:
    """Something that happened.

    Args:
        at: when, in seconds since the recording began.
        member: the member, `NOBODY` for none in particular.
        kind: one of `KINDS`.
        fields: those of the kind.
        body: the fields as an object of JSON, if somebody has written them already.
    """

    at: float
    member: int
    kind: str
    fields: Fields = attrs.field(factory=dict[str, Any])
    body: str = attrs.field(default="", eq=False, repr=False)

    def as_json(self) -> str:
        """Return one line, without its end."""
        head = f'{{"at":{round(self.at, 6)},"member":{self.member},"kind":"{self.kind}"'
        inner = (self.body or _encode(dict(self.fields)))[1:]
        return f"{head},{inner}" if inner != "}" else f"{head}{inner}"
