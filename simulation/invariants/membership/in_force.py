"""A member decides by the last configuration of its own log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import (
    Appended,
    InForce,
    Installed,
    Installing,
    Listed,
    Recorded,
    Saved,
    Started,
    Truncated,
    Truncating,
    VotingStatus,
    Wiped,
)
from ..base import Invariant

if TYPE_CHECKING:
    from ....node.protocol.membership import Membership
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class LastInForce(Invariant):
    """The configuration in force is the last one in the member's own log, durable or not.

    It counts from its append on, and until a truncation undoes it. So it is compared after each
    append, truncation, install and start. Without one, the member's file is in force.
    """

    source = "Raft dissertation §4.1: the latest configuration in the log; I4 of the design"
    hears: ClassVar[tuple[type[Fact], ...]] = (
        Appended,
        Recorded,
        InForce,
        Started,
        Installing,
        Installed,
        Truncated,
        Truncating,
        VotingStatus,
        Wiped,
    )

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._submitted: dict[int, list[tuple[int, Membership]]] = {}
        self._cutting: set[int] = set()

    def hear(self, fact: Fact) -> None:
        """Follow a member's log, and compare what it decides by."""
        match fact:
            case Appended(member, end, membership):
                self._note(member, end, membership)
            case Started(member) | Installed(member) | Wiped(member):
                self._cutting.discard(member)
                self._submitted[member] = [*self.known.disks[member].configurations]
            case VotingStatus(member, _, floor):
                rows = self._submitted.get(member, [])
                self._submitted[member] = [row for row in rows if row[0] > floor]
            case Installing(member):
                self._cutting.add(member)
            case Truncating(member, position):
                self._cutting.add(member)
                self._cut(member, position)
            case Truncated(member, position):
                self._cutting.discard(member)
                self._cut(member, position)
            case Recorded(member, batch) if batch.membership is not None:
                self._note(member, batch.end, batch.membership)
            case InForce(member, membership):
                self._compare(member, membership)
            case _:
                pass

    def _cut(self, member: int, position: int) -> None:
        rows = self._submitted.get(member, [])
        self._submitted[member] = [row for row in rows if row[0] <= position]

    def _note(self, member: int, end: int, membership: Membership) -> None:
        """Note an entry, which may be read at a start, or come another way than by an append."""
        rows = self._submitted.setdefault(member, [])
        if (end, membership) not in rows and end > self.known.disks[member].floor:
            rows.append((end, membership))

    def _compare(self, member: int, found: Membership) -> None:
        if member in self._cutting:
            return  # its log may have changed already, or not yet
        rows = self._submitted.get(member, [])
        if not rows:
            # The file of a joiner, or of a member that lost its disk, has the members of the time
            # when it was written.
            founder = member not in self.known.lost and any(
                member == voter.member_id for voter in self.known.first.voters
            )
            if found.version or (founder and found.voters != self.known.first.voters):
                raise self.violated(
                    f"member {member} decides by {found}, and its log has no configuration"
                )
            return
        end, last = rows[-1]
        if found != last:
            raise self.violated(
                f"member {member} decides by version {found.version} ({found}); the last "
                f"configuration in its log is version {last.version}, which ends at {end} ({last})"
            )


class ListedAsInLog(Invariant):
    """The table of configurations on a member's disk ends with the last one of its durable log.

    All its rows are in the log, unless the log was pruned there. The first row may be that of a
    snapshot, and then stands at the position of the snapshot. So the configuration survives each
    crash, truncation and install, and a snapshot has the one that was in force at its position.
    """

    source = "I4 and I11 of the design; etcd #19557: a promotion that was not persisted everywhere"
    hears: ClassVar[tuple[type[Fact], ...]] = (Listed,)

    def hear(self, fact: Fact) -> None:
        """Compare a table with the log."""
        assert isinstance(fact, Listed)
        log, listed = self.known.disks[fact.member].entries, [*fact.rows]
        end = log[max(len(log) - len(listed), 0) :]
        first = [value for _, value in listed[:1]] == [value for _, value in end[:1]]
        if not first or listed[1:] != end[1:] or (log and not listed):
            raise self.violated(
                f"the table of member {fact.member} lists {_words(listed)}; its log has "
                f"{_words(log)}"
            )


class SavedAsInLog(Invariant):
    """A snapshot has the configuration that was in force at its position, not a later one.

    Whoever installs it decides by that one, until the log behind it brings the next.
    """

    source = "I11 of the design; Raft dissertation §5.1: a snapshot has the latest configuration"
    hears: ClassVar[tuple[type[Fact], ...]] = (Saved,)

    def hear(self, fact: Fact) -> None:
        """Compare a snapshot with the configurations that are committed."""
        assert isinstance(fact, Saved)
        rows = [row for row in self.known.configurations if row[0] <= fact.position]
        value = rows[-1][1] if rows else None
        if fact.membership != value:
            saved = [] if fact.membership is None else [(fact.position, fact.membership)]
            raise self.violated(
                f"member {fact.member} saves {_words(saved)}; committed up to there is "
                f"{_words(rows[-1:])}"
            )


def _words(rows: list[tuple[int, Membership]]) -> str:
    return ", ".join(f"version {value.version} at {end}" for end, value in rows) or "none"
