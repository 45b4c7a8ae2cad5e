"""Votes: one in each term, never taken back, and durable before any message carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ....transport import AppendPosition, NewLeadershipTerm, RequestVote, Vote
from ...watching.facts import Claimed, Promised, Started, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge

NOBODY = -1


class Votes(Invariant):
    """A member votes once in a term, over all its lives, and sends no vote that is not durable.

    Its promised term never goes back. A leader has voted for itself in its term. A follower has
    promised the term that it follows in. A member whose disk was replaced knows nothing of its
    votes, and may vote again.
    """

    source = "Raft §5.2, figure 2 (persistent state); protocol I-2, I-3, I-4, fix F10"
    hears: ClassVar[tuple[type[Fact], ...]] = (Claimed, Promised, Started, Wiped)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._votes: dict[tuple[int, int], int] = {}
        self._promised: dict[int, int] = {}

    def hear(self, fact: Fact) -> None:
        """Look at a promise, or at a message that rests on one."""
        match fact:
            case Promised(member, term, voted_for) | Started(member, _, term, voted_for):
                before = self._promised.get(member, -1)
                if term < before:
                    raise self.violated(f"member {member} went from term {before} to {term}")
                self._promised[member] = term
                if voted_for != NOBODY:
                    self._vote(member, term, voted_for)
            case Wiped(member):
                self._promised.pop(member, None)
                self._votes = {
                    each: vote for each, vote in self._votes.items() if each[0] != member
                }
            case Claimed(member, RequestVote(candidate_term_id=term)):
                self._kept(member, term, member)
            case Claimed(member, NewLeadershipTerm(leadership_term_id=term)):
                self._kept(member, term, member)
            case Claimed(member, Vote(vote=True, candidate_term_id=term) as message):
                self._kept(member, term, message.candidate_member_id)
            case Claimed(member, AppendPosition(leadership_term_id=term)):
                durable = self.known.disks[member].term
                if durable < term:
                    raise self.violated(
                        f"member {member} follows in term {term}, and has promised {durable}"
                    )
            case _:
                pass

    def _vote(self, member: int, term: int, candidate: int) -> None:
        first = self._votes.setdefault((member, term), candidate)
        if first != candidate:
            raise self.violated(
                f"member {member} voted for {first} and for {candidate} in term {term}"
            )

    def _kept(self, member: int, term: int, candidate: int) -> None:
        """What a message says of a vote must be durable already."""
        disk = self.known.disks[member]
        if not (disk.term >= term and self._votes.get((member, term)) == candidate):
            raise self.violated(
                f"member {member} tells of its vote for {candidate} in term {term}; durable is "
                f"{disk.voted_for} in term {disk.term}"
            )
