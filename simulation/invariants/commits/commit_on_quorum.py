"""What is committed is durable on a quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Committed
from ..base import Invariant, names, rule

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class CommitOnQuorum(Invariant):
    """What anybody takes for committed is durable on a quorum, byte for byte.

    The quorum is that of the configuration by which the first member that says so decides. While
    the voters change, it is a majority of each set.
    """

    source = "Raft §5.3, §5.4.2, dissertation §4.3; protocol I-19"
    hears: ClassVar[tuple[type[Fact], ...]] = (Committed,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._seen = 0

    def hear(self, fact: Fact) -> None:
        """Look at a commit position that is higher than any before."""
        assert isinstance(fact, Committed)
        if fact.position <= self._seen:
            return
        self._seen = fact.position
        prefix = self.known.disks[fact.member].prefix_at.get(fact.position)
        quorums = self.known.decides_by(fact.member)
        found = self.known.voters(quorums, lambda disk: disk.has(fact.position, prefix))
        if not quorums.agree(found):
            raise self.violated(
                f"member {fact.member} commits {fact.position}, which is durable only on "
                f"{names(found)}; it decides by a majority of {rule(quorums)}"
            )
