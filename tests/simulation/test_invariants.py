"""Each invariant catches a violation that is planted, and nothing that is as it should be."""

from __future__ import annotations

import attrs
import pytest

from quorate.node.protocol.membership import Membership, Seat
from quorate.node.protocol.quorum import VoterId
from quorate.simulation import Observer
from quorate.simulation.invariants import INVARIANTS, ViolationError
from quorate.simulation.watching.facts import (
    Answered,
    Appended,
    Applied,
    Asked,
    Batch,
    Claimed,
    Committed,
    Counted,
    Created,
    CutOff,
    Deleted,
    Deposed,
    Dismissed,
    Elected,
    Fact,
    Holds,
    InForce,
    LeaderRefused,
    Leased,
    Listed,
    Point,
    Probed,
    Promised,
    Reached,
    Recorded,
    Refused,
    Said,
    Saved,
    Settled,
    Stamped,
    Started,
    TermRecorded,
    Timed,
    Truncated,
    Truncating,
    VotingStatus,
    Wiped,
    Writes,
)
from quorate.transport import AppendFlags, AppendPosition, RequestVote, Vote, VoteReason

A = Batch(0, 96, 0, b"a")
B = Batch(96, 192, 0, b"ab")
OTHER = Batch(96, 192, 1, b"ax")


def append_position(position: int, flags: AppendFlags = AppendFlags.NONE) -> AppendPosition:
    return AppendPosition(0, position, 1, flags, 0)


def granted(term: int, candidate: int) -> Vote:
    return Vote(term, -1, 0, candidate, 0, True, term, VoteReason.GRANTED)


def recorded(*members: int, term: int = 0) -> list[Fact]:
    """Members that have recorded a term and the batches A and B."""
    made: list[Fact] = []
    for i in members:
        made += [TermRecorded(i, term, 0), Recorded(i, A), Recorded(i, B)]
    return made


def elected(leader: int, term: int) -> list[Fact]:
    """A member that has won, with the votes of members 1 and 2, and its own."""
    return [*(Promised(i, term, leader) for i in sorted({1, 2, leader})), Elected(leader, term)]


def configuration(version: int, *voters: VoterId, outgoing: tuple[VoterId, ...] = ()) -> Membership:
    """A configuration in which all voters have a seat."""
    seats = tuple(
        Seat(v.member_id, f"h{v.member_id}", 7000, 6000, instance=v.instance_id)
        for v in sorted({*voters, *outgoing})
    )
    return Membership(seats, voters, outgoing, version, max(seat.member_id for seat in seats) + 1)


OPEN = Batch(0, 8, 0, b"open")
"""The entry that opens a term, before any configuration."""


def carrying(position: int, membership: Membership) -> Batch:
    """A batch with a configuration; its place and the version make its prefix."""
    prefix = b"%d/%d" % (position, membership.version)
    return Batch(max(position, OPEN.end), position + 96, 0, prefix, membership)


OLD = tuple(VoterId(i, 10 + i) for i in range(3))
"""The first voters, with their stores."""
NEW = (*OLD[:2], VoterId(3, 13))
"""The voters after one of them was replaced."""
M1 = configuration(1, *OLD)
M2 = configuration(2, *NEW, outgoing=OLD)
M3 = configuration(3, *NEW)
C1 = carrying(0, M1)
J2 = carrying(96, M2)
F3 = carrying(192, M3)


def begun(*batches: Batch) -> list[Fact]:
    """Members 0 to 3 with their stores; 0 to 2 have recorded and committed these batches."""
    made: list[Fact] = [Created(3)]
    for i in range(4):
        made += [Started(i, 0, -1, -1, 10 + i), VotingStatus(i, i < 3)]
    made += [TermRecorded(i, 0, 0) for i in range(3)]
    for each in (OPEN, *batches):
        made += [*(Recorded(i, each) for i in range(3)), Committed(0, each.end)]
    return made


def recorded_by_three(batch: Batch) -> list[Fact]:
    """A batch that three members have, and none has committed."""
    return [*begun(), *(Recorded(i, batch) for i in range(3))]


def again(batch: Batch, version: int) -> Batch:
    """The configuration of a batch, as another version at its place in the log."""
    assert batch.membership is not None
    return carrying(96 * (version - 1), attrs.evolve(batch.membership, version=version))


SWAPPED = configuration(2, OLD[0], NEW[2], VoterId(4, 14), outgoing=OLD)
SWAP = carrying(96, SWAPPED)
"""A change of two voters at once, which only old voters have."""
TWICE = configuration(1, OLD[0], VoterId(1, 10), OLD[2])
UNKNOWN = configuration(1, *OLD[:2], VoterId(2, 99))

AHEAD = ((0, 9**9), (1, 0), (2, -1))
"""How far three clocks are ahead."""

END_LOST: list[Fact] = [CutOff(1, 96), Started(1, 96, -1, -1)]
"""Member 1 meets damage in B at a start."""


@attrs.frozen
class Planted:
    """Facts that are fine, and one more that is not."""

    invariant: str
    fine: list[Fact]
    wrong: Fact


PLANTED = [
    Planted("ElectionSafety", [*elected(0, 3), Deposed(0, 3), *elected(0, 3)], Elected(1, 3)),
    Planted("FreshTerms", [*recorded(0), *elected(0, 1), *elected(1, 2)], Elected(0, 0)),
    Planted("HonestLeaders", [], LeaderRefused(0, "its table goes back")),
    Planted("OneAtATime", [*elected(0, 3), Leased(0, 3), *elected(1, 4)], Leased(0, 3)),
    Planted("Votes", [Promised(0, 3, 1), Promised(0, 4, -1)], Promised(0, 3, 1)),
    Planted("Votes", [Promised(0, 3, 1), Started(0, 0, 3, 1)], Promised(0, 3, 2)),
    Planted("Votes", [Promised(0, 3, 1)], Started(0, 0, 2, -1)),
    Planted("Votes", [Promised(0, 3, 0)], Claimed(0, RequestVote(-1, 0, 4, 0))),
    Planted("Votes", [Promised(0, 3, 1), Claimed(0, granted(3, 1))], Claimed(0, granted(3, 2))),
    Planted(
        "Votes",
        [Promised(1, 1, -1), Claimed(1, append_position(0))],
        Claimed(1, AppendPosition(2, 0, 1, AppendFlags.NONE, 0)),
    ),
    Planted(
        "LeaderAppendOnly",
        [*recorded(0), Truncating(0, 96), Truncated(0, 96), *elected(0, 3)],
        Truncating(0, 0),
    ),
    Planted(
        "LogMatching",
        [TermRecorded(1, 0, 0), Recorded(1, A), *recorded(0)],
        Recorded(1, attrs.evolve(B, prefix=b"xb")),
    ),
    Planted("TermTable", recorded(0), Recorded(0, Batch(192, 288, 1, b"abc"))),
    Planted(
        "TermTable",
        [TermRecorded(0, 1, 0), TermRecorded(0, 0, 0), Recorded(0, attrs.evolve(A, term=1))],
        Recorded(0, B),
    ),
    Planted("TermTable", [TermRecorded(0, 0, 96)], TermRecorded(0, 1, 0)),
    Planted(
        "AnchoredTerms",
        [
            *elected(0, 3),
            TermRecorded(0, 3, 0),
            TermRecorded(1, 3, 0),
            Writes(0, 3),
            Deposed(0, 3),
            *elected(2, 4),
            TermRecorded(2, 4, 0),
        ],
        Writes(2, 4),
    ),
    Planted("ForeignFilesStay", [], Deleted(0, "photo.jpg")),
    Planted(
        "TermTable", [*elected(0, 3), TermRecorded(0, 3, 0), *elected(1, 5)], TermRecorded(1, 4, 0)
    ),
    Planted(
        "FewMessages", [Said(0, i / 1001, "Founding") for i in range(1000)], Said(0, 0.999, "X")
    ),
    Planted("DurableStays", [*recorded(0), Truncating(0, 96)], Started(0, 0, -1, -1)),
    Planted("DurableStays", [*recorded(0), Started(0, 192, -1, -1)], Started(0, 96, -1, -1)),
    Planted(
        "TruthfulReports",
        [*recorded(1), Promised(1, 0, -1), Claimed(1, append_position(192, AppendFlags.READY))],
        Claimed(1, append_position(193)),
    ),
    Planted(
        "TruthfulReports", [Promised(1, 0, -1)], Claimed(1, append_position(0, AppendFlags.READY))
    ),
    Planted(
        "CountsArePrefixes",
        [
            *recorded(0, 1),
            TermRecorded(2, 0, 0),
            Recorded(2, A),
            TermRecorded(2, 1, 96),
            Recorded(2, OTHER),
            Counted(0, 1, 0, 192),
            Counted(0, 2, 0, 96),
        ],
        Counted(0, 2, 0, 192),
    ),
    Planted(
        "CommitMonotonic",
        [*recorded(0, 1), Committed(0, 192), Started(0, 192, -1, -1), Committed(0, 96)],
        Committed(0, 0),
    ),
    Planted(
        "CommitMonotonic", [*recorded(0, 1), Committed(0, 96), Truncating(0, 96)], Truncating(0, 0)
    ),
    Planted("CommitMonotonic", recorded(0, 1), Committed(2, 96)),
    Planted("CommitOnQuorum", recorded(0), Committed(0, 96)),
    Planted(
        "CommitOnQuorum",
        [*recorded(0, 1), *END_LOST, Truncating(1, 0), Truncated(1, 0)],  # which it still had
        Committed(0, 96),
    ),
    Planted(
        "CommittedForEver",
        [
            *recorded(0, 1),
            TermRecorded(2, 0, 0),
            Recorded(2, A),
            TermRecorded(2, 1, 96),
            Recorded(2, OTHER),
            Committed(0, 192),
            Committed(2, 96),
        ],
        Committed(2, 192),
    ),
    Planted(
        "LeaderCompleteness",
        [*recorded(0, 1), Committed(0, 96), *elected(1, 3), *elected(2, 4)[:-1]],
        Elected(2, 4),
    ),
    Planted(
        "StateMachineSafety", [Reached(0, 96, b"x"), Reached(1, 96, b"x")], Reached(2, 96, b"y")
    ),
    Planted("StateMachineSafety", [Holds(0, 96, b"x"), Holds(1, 96, b"x")], Holds(2, 96, b"y")),
    Planted(
        "OnlyTheFinalLog",
        [
            *recorded(0, 1),
            Committed(0, 192),
            Reached(0, 192, b"x"),
            TermRecorded(2, 0, 0),
            Recorded(2, A),
            Reached(2, 96, b"y"),
            Settled(0, 192),
            Reached(2, 160, b"z"),
            TermRecorded(2, 1, 96),
            Recorded(2, attrs.evolve(OTHER, end=160)),
        ],
        Settled(0, 192),
    ),
    Planted(
        "EqualExpiry",
        [Probed(0, 96, b"TTL", b":5"), Probed(1, 192, b"TTL", b":4"), Probed(1, 96, b"TTL", b":5")],
        Probed(2, 96, b"TTL", b":6"),
    ),
    Planted("TimeOfAQuorum", [Timed(0, 5000, AHEAD)], Timed(0, 5001, AHEAD)),
    Planted("NoPhantoms", [Asked(1), Applied(0, 1, Point(0, 0))], Applied(0, 2, Point(0, 1))),
    Planted("NoPhantoms", [Asked(1), Refused(1)], Applied(0, 1, Point(0, 0))),
    Planted("NoPhantoms", [Asked(1), Applied(0, 1, Point(0, 0))], Refused(1)),
    Planted(
        "TruePrincipal",
        [Asked(1, 7), Applied(0, 1, Point(0, 0), 7), Asked(2), Applied(0, 2, Point(0, 1))],
        Applied(1, 1, Point(0, 0)),
    ),
    Planted(
        "ExactlyOnce",
        [Asked(1), Applied(0, 1, Point(0, 0)), Applied(1, 1, Point(0, 0))],
        Applied(0, 1, Point(96, 0)),
    ),
    Planted(
        "OncePerSession",
        [Stamped(0, 7, 1, b":1"), Stamped(1, 7, 1, b":1"), Stamped(0, 7, 1, b"-FORGOTTEN")],
        Stamped(0, 7, 1, b":2"),
    ),
    Planted(
        "NothingLost",
        [
            *recorded(0, 1),
            Committed(0, 96),
            Asked(1),
            Applied(0, 1, Point(0, 0)),
            Answered(1, Point(0, 0), False),
            Asked(2),
        ],
        Answered(2, Point(96, 0), False),
    ),
    Planted(
        "NothingLost",
        [
            *recorded(0, 1),
            Committed(0, 96),
            Asked(1),
            Asked(2),
            Applied(0, 1, Point(0, 0)),
            Answered(1, Point(0, 0), False),
        ],
        Applied(1, 2, Point(0, 0)),
    ),
    Planted("ElectedByQuorum", [*elected(0, 3), Promised(0, 4, 0)], Elected(0, 4)),
    Planted(
        "ElectedByQuorum",  # a majority of the old voters, and of the union
        [
            *begun(C1),
            *(Recorded(i, SWAP) for i in range(3)),
            InForce(0, SWAPPED),
            *(Promised(i, 1, 0) for i in (0, 1, 2)),
        ],
        Elected(0, 1),
    ),
    Planted(
        "CommitOnQuorum",
        [*begun(C1), *(Recorded(i, SWAP) for i in range(3)), InForce(0, SWAPPED)],
        Committed(0, 192),
    ),
    Planted(
        "LastInForce",
        [*begun(C1), InForce(0, M1), Appended(0, 192, M2)],
        InForce(0, M1),
    ),
    Planted(
        "LastInForce",
        [*begun(C1), Recorded(0, J2), InForce(0, M2), Truncating(0, 96)],
        InForce(1, M2),
    ),
    Planted(
        "LastInForce",
        [*begun(C1), Recorded(1, J2), Truncating(1, 96), Truncated(1, 96)],
        InForce(1, M2),
    ),
    Planted(
        "ListedAsInLog",
        [*begun(C1, J2), Listed(0, ((96, M1), (192, M2)))],
        Listed(0, ((96, M1),)),
    ),
    Planted("ListedAsInLog", begun(C1), Listed(0, ())),
    Planted("SavedAsInLog", begun(C1, J2), Saved(0, 100, M2)),
    Planted("SavedAsInLog", begun(C1, J2), Saved(0, 100, None)),
    Planted("VersionsInOrder", begun(C1), Recorded(0, F3)),
    Planted(
        "VersionsInOrder",
        begun(carrying(0, attrs.evolve(M1, next_id=4))),
        Recorded(0, J2),
    ),
    Planted(
        "OneChange",
        [*begun(C1), Recorded(0, again(C1, 2))],
        Recorded(0, again(C1, 3)),
    ),
    Planted(
        "OwnTermFirst",
        [*begun(C1), TermRecorded(0, 1, 96)],
        Recorded(0, attrs.evolve(again(C1, 2), term=1)),
    ),
    Planted("JointFirst", [*begun(C1), Recorded(0, J2)], Recorded(0, F3)),
    Planted("JointFirst", begun(C1), Recorded(0, again(F3, 2))),
    Planted("StoresCountOnce", recorded_by_three(carrying(0, TWICE)), Committed(0, 96)),
    Planted("SharedQuorums", recorded_by_three(carrying(0, UNKNOWN)), Committed(0, 96)),
    Planted("NotForTheDropped", begun(C1, J2), Recorded(2, F3)),
    Planted("RemovedIfCommitted", begun(C1, J2), Dismissed(2)),
    Planted(  # it was removed in the history before
        "RemovedIfCommitted",
        [
            *begun(C1, J2),
            TermRecorded(3, 0, 0),
            *(Recorded(3, each) for each in (OPEN, C1, J2)),
            *(Recorded(i, F3) for i in (0, 1, 3)),
            Committed(0, 288),
            VotingStatus(0, True, 288),
        ],
        Dismissed(2),
    ),
    Planted(
        "RealTimeOrder",
        [
            *recorded(0, 1),
            Committed(0, 192),
            Asked(1),
            Asked(2),
            Answered(1, Point(96, 0), False),
            Asked(3),
            Answered(2, Point(96, -1), True),
        ],
        Answered(3, Point(96, -1), True),
    ),
    Planted(
        "RealTimeOrder",
        [*recorded(0, 1), Committed(0, 192), Asked(1), Answered(1, Point(192, -1), True), Asked(2)],
        Answered(2, Point(96, 0), False),
    ),
]


@pytest.mark.parametrize(
    "planted", PLANTED, ids=[f"{i}-{p.invariant}" for i, p in enumerate(PLANTED)]
)
def test_an_invariant_catches_what_is_planted(planted: Planted) -> None:
    observer = Observer([0, 1, 2])
    for fact in planted.fine:
        observer.tell(fact)
    with pytest.raises(ViolationError, match=f"^{planted.invariant}: "):
        observer.tell(planted.wrong)


def test_a_violation_is_planted_for_every_invariant() -> None:
    assert {each.invariant for each in PLANTED} == {kind.__name__ for kind in INVARIANTS}


def test_every_invariant_says_where_it_is_from() -> None:
    assert all(kind.source and kind.__doc__ for kind in INVARIANTS)
    assert all(kind.hears for kind in INVARIANTS)


def test_a_disk_that_was_replaced_forgets_and_may() -> None:
    observer = Observer([0, 1, 2])
    facts: list[Fact] = [
        *recorded(0, 1),
        Promised(0, 3, 1),
        Committed(0, 192),
        Wiped(0),
        Started(0, 0, -1, -1),
        Promised(0, 3, 2),
        Counted(1, 0, 0, 192),
    ]
    for fact in facts:
        observer.tell(fact)


def test_a_disk_that_is_lost_with_its_report_on_the_way_was_there() -> None:
    observer = Observer([0, 1, 2])
    facts: list[Fact] = [
        *elected(0, 3),
        TermRecorded(0, 3, 0),
        TermRecorded(1, 3, 0),
        Wiped(1),
        Started(1, 0, -1, -1),
        Writes(0, 3),
    ]
    for fact in facts:
        observer.tell(fact)


def test_a_damaged_end_with_its_report_on_the_way_was_there() -> None:
    observer = Observer([0, 1, 2])
    for fact in [*recorded(0, 1), *END_LOST, Committed(0, 192)]:
        observer.tell(fact)


def test_who_wins_an_old_ballot_late_need_not_have_what_was_committed_since() -> None:
    observer = Observer([0, 1, 2])
    facts: list[Fact] = [*recorded(0, 1), Promised(0, 5, 0), Committed(0, 96), *elected(2, 4)]
    for fact in facts:
        observer.tell(fact)
    *votes, last = elected(2, 6)
    for fact in votes:
        observer.tell(fact)
    with pytest.raises(ViolationError, match=r"^LeaderCompleteness: "):
        observer.tell(last)


def test_a_whole_change_is_as_it_should_be() -> None:
    observer = Observer([0, 1, 2])
    facts: list[Fact] = [
        *begun(C1),
        *(InForce(i, M1) for i in range(3)),
        Appended(0, 192, M2),
        InForce(0, M2),
        TermRecorded(3, 0, 0),
        *(Recorded(3, each) for each in (OPEN, C1, J2)),
        Listed(3, ((96, M1), (192, M2))),
        *(Recorded(i, J2) for i in range(3)),
        Committed(0, 192),
        Appended(0, 288, M3),
        InForce(0, M3),
        *(Recorded(i, F3) for i in (0, 3)),
        Committed(0, 288),
        Dismissed(2),
        *(Saved(0, at, value) for at, value in ((8, None), (96, M1), (200, M2), (288, M3))),
        Wiped(3),
        Started(3, 0, -1, -1, 99),
    ]
    for fact in facts:
        observer.tell(fact)
    assert observer.known.latest == M3


def test_an_observer_can_go_on() -> None:
    observer = Observer([0, 1, 2], fatal=False)
    for fact in elected(0, 1):
        observer.tell(fact)
    observer.tell(Elected(1, 1))
    assert observer.violations[0] == "ElectionSafety: members 0 and 1 both lead term 1"
