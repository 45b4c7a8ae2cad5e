"""What the facts so far say of a cluster: each member's durable log, the leaders, the commits.

Invariants share this knowledge and never change it. It outlives the members: what a member once
reported durable is known for ever, and is compared with what it has after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .facts import (
    Batch,
    Committed,
    CutOff,
    Deposed,
    Elected,
    Installed,
    Promised,
    Reached,
    Recorded,
    Standing,
    Started,
    TermRecorded,
    Truncated,
    Wiped,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from .facts import Fact

NOTHING = b""
"""The prefix of an empty log."""


@attrs.define(eq=False)
class Disk:
    """What is durable at a member.

    Attributes:
        batches: of its log, in order.
        prefix_at: for each end of a batch, what stands for the log up to there.
        bases: for each term in its recording log, where it begins.
        term: the highest term that it has promised.
        voted_for: the candidate it voted for in that term, -1 for none.
        commit: what the running member takes for committed.
        votes: its store has a vote, and counts for a quorum.
        lost: of the disk that it stands in the place of, what `prefix_at` was when that was lost;
            also of its own, when the end of its log was.
    """

    batches: list[Batch] = attrs.field(factory=list[Batch])
    prefix_at: dict[int, bytes] = attrs.field(factory=lambda: {0: NOTHING})
    bases: dict[int, int] = attrs.field(factory=dict[int, int])
    term: int = -1
    voted_for: int = -1
    commit: int = 0
    votes: bool = True
    lost: dict[int, bytes] = attrs.field(factory=dict[int, bytes])

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.batches[-1].end if self.batches else 0

    def cut(self, position: int) -> None:
        """Forget what was truncated."""
        while self.batches and self.batches[-1].end > position:
            del self.prefix_at[self.batches.pop().end]


class Knowledge:
    """What is known of a cluster.

    Args:
        members: their ids.
        standbys: those of them that are no part of any quorum.

    Attributes:
        voters: the others.
        quorum: how many of those a decision needs.
        disks: what is durable at each member.
        leads: in which term a member leads.
        newest: the highest term in which somebody was elected.
        committed: by position, the batch that was committed there.
        committed_prefix: for each end of a committed batch, what stands for the log up to there.
        digests: for each position that a service has reached, what stands for its state there.
        committed_end: how far anybody has committed.
        committed_in: for each term in which something was committed, how far.
    """

    def __init__(self, members: list[int], standbys: Collection[int] = ()) -> None:
        self.members = members
        self.voters = [i for i in members if i not in standbys]
        self.quorum = len(self.voters) // 2 + 1
        self.disks = {i: Disk() for i in members}
        self.leads: dict[int, int] = {}
        self.newest = -1
        self.committed: dict[int, Batch] = {}
        self.committed_prefix = {0: NOTHING}
        self.committed_end = 0
        self.committed_in: dict[int, int] = {}
        self.digests: dict[int, bytes] = {}

    def hear(self, fact: Fact) -> None:
        """Learn a fact."""
        match fact:
            case Recorded(member, batch):
                disk = self.disks[member]
                disk.batches.append(batch)
                disk.prefix_at[batch.end] = batch.prefix
            case Committed(member, position):
                self.disks[member].commit = position
                self._commit(member, position)
            case Standing(member, votes):
                self.disks[member].votes = votes
            case Promised(member, term, voted_for):
                self.disks[member].term, self.disks[member].voted_for = term, voted_for
            case TermRecorded(member, term, base):
                self.disks[member].bases[term] = base
            case Elected(member, term):
                self.leads[member], self.newest = term, max(self.newest, term)
            case Deposed(member):
                self.leads.pop(member, None)
            case Reached(_, position, digest):
                self.digests.setdefault(position, digest)
            case (
                Started(member)
                | Wiped(member)
                | CutOff(member)
                | Truncated(member)
                | Installed(member)
            ):
                self._log_changed(member, fact)
            case _:
                pass

    def _log_changed(
        self, member: int, fact: Started | Wiped | CutOff | Truncated | Installed
    ) -> None:
        disk = self.disks[member]
        match fact:
            case Started(_, append, term, voted_for):
                disk.cut(append)
                disk.term, disk.voted_for, disk.commit = term, voted_for, 0
                disk.bases.clear()
            case Wiped():
                self.disks[member] = Disk(votes=False, lost={**disk.lost, **disk.prefix_at})
            case CutOff(_, position):
                ends = disk.prefix_at.items()
                disk.lost.update({end: prefix for end, prefix in ends if end > position})
            case Truncated(_, position):
                disk.cut(position)
                disk.bases.clear()
            case Installed(_, position):  # it stands for what was committed up to there
                disk.batches = [each for each in self.committed.values() if each.end <= position]
                disk.prefix_at = {0: NOTHING} | {each.end: each.prefix for each in disk.batches}
                disk.bases.clear()

    def _commit(self, member: int, position: int) -> None:
        """Note which batches are committed; the first member that says so counts."""
        if position <= self.committed_end:
            return
        batches = self.disks[member].batches
        at = len(batches)
        while at and batches[at - 1].end > self.committed_end:
            at -= 1
        for batch in batches[at:]:
            if batch.end <= position:
                self.committed[batch.position] = batch
                self.committed_prefix[batch.end] = batch.prefix
                self.committed_end = batch.end
                self.committed_in[self.disks[member].term] = batch.end

    def holders(self, position: int, prefix: bytes) -> list[int]:
        """Give the members whose durable log is this one, up to a position.

        Only voters count. A store without a vote counts only for what its member had on the lost
        disk: it is not admitted before other members have that.
        """
        return [
            i
            for i, disk in ((i, self.disks[i]) for i in self.voters)
            if (disk.votes and disk.prefix_at.get(position) == prefix)
            or disk.lost.get(position) == prefix
        ]
