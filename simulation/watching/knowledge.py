"""What the facts so far say of a cluster: each member's durable log, the leaders, the commits.

Invariants share this knowledge and never change it. It outlives the members: what a member once
reported durable is known for ever, and is compared with what it has after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...node.protocol.membership import Membership
from ...node.protocol.quorum import ANY_STORE, Quorums, VoterId
from .facts import (
    Batch,
    Committed,
    Created,
    CutOff,
    Deposed,
    Elected,
    InForce,
    Installed,
    Promised,
    Reached,
    Recorded,
    Started,
    TermRecorded,
    Truncated,
    VotingStatus,
    Wiped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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
        given: the candidate of each vote that it ever gave, by term.
        commit: what the running member takes for committed.
        votes: its store has a vote.
        instance: of its store, 0 before the first start.
        floor: up to there the log is of a history before a restore.
        cut_off: what `prefix_at` was for the end of the log that was damaged, and is cut off.
    """

    batches: list[Batch] = attrs.field(factory=list[Batch])
    prefix_at: dict[int, bytes] = attrs.field(factory=lambda: {0: NOTHING})
    bases: dict[int, int] = attrs.field(factory=dict[int, int])
    term: int = -1
    voted_for: int = -1
    given: dict[int, int] = attrs.field(factory=dict[int, int])
    commit: int = 0
    votes: bool = True
    instance: int = 0
    floor: int = 0
    cut_off: dict[int, bytes] = attrs.field(factory=dict[int, bytes])

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.batches[-1].end if self.batches else 0

    @property
    def configurations(self) -> list[tuple[int, Membership]]:
        """The configurations in the log that mean something, each with the end of its batch."""
        return [row for row in self.entries if row[0] > self.floor]

    @property
    def entries(self) -> list[tuple[int, Membership]]:
        """All entries of membership in the log, each with the end of its batch, in order."""
        return [
            (batch.end, batch.membership) for batch in self.batches if batch.membership is not None
        ]

    def has(self, position: int, prefix: bytes | None) -> bool:
        """Say whether the log is, or was before damage, this one up to a position."""
        return prefix is not None and prefix in {
            self.prefix_at.get(position),
            self.cut_off.get(position),
        }

    def promise(self, term: int, voted_for: int) -> None:
        """Note a promise, which may be a vote."""
        self.term, self.voted_for = term, voted_for
        if voted_for >= 0:
            self.given.setdefault(term, voted_for)

    def cut(self, position: int) -> None:
        """Forget what was truncated."""
        while self.batches and self.batches[-1].end > position:
            del self.prefix_at[self.batches.pop().end]


def quorums_of(membership: Membership) -> Quorums[VoterId]:
    """Give the sets of voters of a configuration; by ourselves, since members may be wrong."""
    return Quorums[VoterId].of(*filter(None, (membership.outgoing, membership.voters)))


class Knowledge:
    """What is known of a cluster.

    Args:
        members: their ids when it begins.
        standbys: those of them that are no part of any quorum.

    Attributes:
        first: the configuration without an entry of the log.
        disks: what is durable at each member.
        lost: the disks of each member that were lost.
        in_force: the configuration by which each member decides.
        leads: in which term a member leads.
        newest: the highest term in which somebody was elected.
        committed: by position, the batch that was committed there.
        committed_prefix: for each end of a committed batch, what stands for the log up to there.
        configurations: the committed ones, each with the end of its batch, in order.
        digests: for each position that a service has reached, what stands for its state there.
        committed_end: how far anybody has committed.
        committed_in: for each term in which something was committed, how far.
        floor: up to there logs are of a history before a restore.
        ids_return: a member may get the id of one that was removed, for a new store.
    """

    def __init__(self, members: list[int], standbys: Collection[int] = ()) -> None:
        voters = tuple(VoterId(i) for i in members if i not in standbys)
        self.ids_return = False
        self.first = Membership((), voters, next_id=max(members, default=-1) + 1)
        self.disks = {i: Disk() for i in members}
        self.lost: dict[int, list[Disk]] = {}
        self.in_force: dict[int, Membership] = {}
        self.leads: dict[int, int] = {}
        self.newest = -1
        self.committed: dict[int, Batch] = {}
        self.committed_prefix = {0: NOTHING}
        self.configurations: list[tuple[int, Membership]] = []
        self.committed_end = 0
        self.floor = 0
        self.committed_in: dict[int, int] = {}
        self.digests: dict[int, bytes] = {}

    # --- who decides ------------------------------------------------------------------------------

    @property
    def latest(self) -> Membership:
        """The last committed configuration."""
        return self.configurations[-1][1] if self.configurations else self.first

    def decides_by(self, member: int) -> Quorums[VoterId]:
        """Give the voters by which a member decides."""
        return quorums_of(self.in_force.get(member, self.first))

    def disks_of(self, voter: VoterId) -> list[Disk]:
        """Give the disks that are a voter's: one with its store, wherever it is now.

        A lost disk is one of them: what was reported of it may still be counted. A voter that is
        named without a store is every disk of the member that had a vote.
        """
        member, instance = voter
        here = [self.disks[member]] if member in self.disks else []
        every = [*here, *self.lost.get(member, ())]
        if instance == ANY_STORE:
            return [disk for disk in every if disk.votes]
        return [disk for disk in every if disk.instance == instance]

    def is_there(self, voter: VoterId) -> bool:
        """Say whether a voter still has its disk."""
        disk = self.disks.get(voter.member_id)
        return disk is not None and any(disk is each for each in self.disks_of(voter))

    def voters(
        self, quorums: Quorums[VoterId], applies: Callable[[Disk], bool]
    ) -> frozenset[VoterId]:
        """Give the voters with a disk to which something applies."""
        return frozenset(
            voter for voter in quorums.voters if any(map(applies, self.disks_of(voter)))
        )

    def configurations_of(self, member: int) -> list[tuple[int, Membership]]:
        """Give the configurations in a member's log that mean something to the cluster.

        A store without a vote does not know the floor yet, and decides nothing.
        """
        return [row for row in self.disks[member].configurations if row[0] > self.floor]

    def open_configurations(self) -> list[Membership]:
        """Give the configurations by which anybody may decide from now on.

        They are the last committed one, and those in a log that may still be committed.
        """
        found = {self.latest.version: [self.latest]}
        for disk in self.disks.values():
            for end, membership in disk.configurations[-2:]:
                if end > self.committed_end and membership.version > self.latest.version:
                    known = found.setdefault(membership.version, [])
                    if membership not in known:
                        known.append(membership)
        return [each for version in sorted(found) for each in found[version]]

    def is_committed(self, end: int, prefix: bytes) -> bool:
        """Say whether a log with this prefix is committed up to a position."""
        return end <= self.committed_end and self.committed_prefix.get(end) == prefix

    # --- learning ---------------------------------------------------------------------------------

    def hear(self, fact: Fact) -> None:
        """Learn a fact."""
        match fact:
            case Reached(_, position, digest):
                self.digests.setdefault(position, digest)
            case Recorded(member, batch):
                disk = self.disks[member]
                disk.batches.append(batch)
                disk.prefix_at[batch.end] = batch.prefix
            case Committed(member, position):
                self.disks[member].commit = position
                self._commit(member, position)
            case InForce(member, membership):
                self.in_force[member] = membership
            case Elected(member, term):
                self.leads[member], self.newest = term, max(self.newest, term)
            case Deposed(member):
                self.leads.pop(member, None)
            case VotingStatus() | Promised() | TermRecorded():
                self._disk_changed(fact)
            case (
                Started(member)
                | Created(member)
                | Wiped(member)
                | CutOff(member)
                | Truncated(member)
                | Installed(member)
            ):
                self._log_changed(member, fact)
            case _:
                pass

    def _disk_changed(self, fact: VotingStatus | Promised | TermRecorded) -> None:
        disk = self.disks[fact.member]
        match fact:
            case VotingStatus(_, votes, floor):
                disk.votes, disk.floor = votes, floor
                if floor:  # a new history begins, with the members of their files
                    self.floor = max(self.floor, floor)
                    self.configurations = [row for row in self.configurations if row[0] > floor]
            case Promised(_, term, voted_for):
                disk.promise(term, voted_for)
            case TermRecorded(_, term, base):
                disk.bases[term] = base

    def _log_changed(
        self, member: int, fact: Started | Created | Wiped | CutOff | Truncated | Installed
    ) -> None:
        if isinstance(fact, Created):
            self.disks[member] = Disk(votes=False)
            return
        disk = self.disks[member]
        match fact:
            case Started(_, append, term, voted_for, instance):
                disk.cut(append)
                disk.commit, disk.instance = 0, instance
                disk.promise(term, voted_for)
                disk.bases.clear()
            case Wiped():
                self.lost.setdefault(member, []).append(disk)
                self.disks[member] = Disk(votes=False)
            case CutOff(_, position):
                ends = disk.prefix_at.items()
                disk.cut_off.update({end: prefix for end, prefix in ends if end > position})
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
                if batch.membership is not None:
                    self.configurations.append((batch.end, batch.membership))
