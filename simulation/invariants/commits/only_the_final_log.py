"""Nothing is applied or served that the final log does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Committed, Reached, Recorded, Settled, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class OnlyTheFinalLog(Invariant):
    """What any member applied, or took for committed, is in the final log.

    Stale reads show what is applied; backups and other readers get what is taken for committed.
    The other invariants compare members as things happen. This one waits until the cluster has
    come to rest, so it needs no other member that reached the same place, and believes nobody's
    commit position.
    """

    source = "Raft, figure 3 (state machine safety); protocol I-22"
    hears: ClassVar[tuple[type[Fact], ...]] = (Committed, Reached, Recorded, Settled, Wiped)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._shown: dict[tuple[int, bytes], int] = {}
        self._unread: set[tuple[int, int]] = set()  # reached before its batch was looked at

    def hear(self, fact: Fact) -> None:
        """Note what was shown; compare it with the final log once there is one."""
        match fact:
            case Reached(member, position) | Committed(member, position):
                prefix = self.known.disks[member].prefix_at.get(position)
                if prefix is None:
                    self._unread.add((member, position))
                else:
                    self._shown.setdefault((position, prefix), member)
            case Recorded(member, batch):
                if (member, batch.end) in self._unread:
                    self._unread.discard((member, batch.end))
                    self._shown.setdefault((batch.end, batch.prefix), member)
            case Wiped(member):
                self._unread = {each for each in self._unread if each[0] != member}
            case Settled(member, end):
                self._compare(member, end)
            case _:
                pass

    def _compare(self, final: int, end: int) -> None:
        prefix_at = self.known.disks[final].prefix_at
        for (position, prefix), member in list(self._shown.items()):
            if position > end:
                continue
            if prefix_at.get(position) != prefix:
                raise self.violated(
                    f"member {member} applied, or took for committed, a log up to {position} that "
                    f"is not the final one, which member {final} has up to {end}"
                )
            del self._shown[position, prefix]
