"""What a follower reports is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ....transport import AppendFlags, AppendPosition
from ...watching.facts import Claimed
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class TruthfulReports(Invariant):
    """A reported append position, or READY, is durable at that time."""

    source = "protocol I-26"
    hears: ClassVar[tuple[type[Fact], ...]] = (Claimed,)

    def hear(self, fact: Fact) -> None:
        """Look at a report."""
        match fact:
            case Claimed(member, AppendPosition(log_position=position) as message):
                disk = self.known.disks[member]
                if position > disk.end:
                    raise self.violated(
                        f"member {member} reports {position}; durable is {disk.end}"
                    )
                term = message.leadership_term_id
                if not (AppendFlags.READY not in message.flags or term in disk.bases):
                    raise self.violated(
                        f"member {member} is ready in term {term}, which it has not recorded"
                    )
            case _:
                pass
