"""The head of a recording: its first line, which says what was recorded, when and by what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs

from .events import FORMAT_VERSION, NOBODY, Fields, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

VIRTUAL: Final = "virtual"
"""The clock of a simulation: one for all members, and it begins at 0."""

WALL: Final = "wall"
"""The clock of one machine: those of two members may differ."""

MERGED: Final = "merged"
"""The clocks of several members, brought to that of one; `Head.clocks` says how well."""


@attrs.frozen
class RecordedMember:
    """A member of the recorded cluster.

    Args:
        member_id: its id.
        role: "voter", "standby" or "witness".
    """

    member_id: int
    role: str = "voter"


@attrs.frozen
class ClockOffset:
    """How the clock of a member was brought to the clock of the recording.

    Args:
        offset: seconds that were added to the member's times.
        uncertainty: by how many seconds that may be wrong, at most; None if nothing bounds it.
    """

    offset: float
    uncertainty: float | None


@attrs.frozen
class Head:
    """What was recorded.

    Args:
        source: a live member, a simulation, or torture.
        version: of the program.
        cluster: its name.
        clock: which clock the times are of: `VIRTUAL`, `WALL` or `MERGED`.
        started_ms: milliseconds since the epoch to which ``at`` is added; 0 in a simulation.
        members: those known at the start.
        seed: of a simulation or of torture.
        command: the command line that does the same again.
        reporter: the member that wrote it, `NOBODY` if something outside of all members did.
        clocks: in a merged recording, the clock of each member.
    """

    source: Source
    version: str
    cluster: str
    clock: str
    started_ms: int = 0
    members: tuple[RecordedMember, ...] = ()
    seed: int | None = None
    command: str = ""
    reporter: int = NOBODY
    clocks: Mapping[int, ClockOffset] = attrs.field(factory=dict[int, ClockOffset])

    def as_fields(self) -> Fields:
        """Return the head as one object of JSON."""
        fields: dict[str, Any] = {
            "quorate_trace": FORMAT_VERSION,
            "source": self.source.value,
            "version": self.version,
            "cluster": self.cluster,
            "clock": self.clock,
            "started_ms": self.started_ms,
            "seed": self.seed,
            "command": self.command,
            "members": [{"id": each.member_id, "role": each.role} for each in self.members],
            "reporter": self.reporter,
        }
        if self.clocks:
            fields["clocks"] = {
                str(member): attrs.asdict(clock) for member, clock in self.clocks.items()
            }
        return fields

    def as_json(self) -> str:
        """Return the first line of a recording, without its end."""
        return json.dumps(self.as_fields(), separators=(",", ":"))
