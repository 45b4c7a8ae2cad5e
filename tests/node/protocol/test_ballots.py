"""The rules about candidates, ballots and majorities, a line for each case.

Where a table repeats a published case of Aeron's ClusterMemberTest its comment says so; members
are counted from 0, and the candidate is the member whose log end is given as `own`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.node.protocol.ballots import (
    VETO_ROUNDS,
    BallotDecision,
    VoterView,
    consider,
    has_quorum,
    is_quorum_candidate,
    is_quorum_leader,
    is_supported,
    is_unanimous_candidate,
    is_unanimous_leader,
    would_vote_for,
)
from quorate.node.protocol.quorum import Quorums, quorum
from quorate.storage import LogEnd, NodeState
from quorate.transport import RequestVote, VoteReason


def ends(*given: tuple[int, int] | None) -> dict[int, LogEnd | None]:
    """The log ends of members 1, 2, ...; None has not been heard."""
    return {i: None if one is None else LogEnd(*one) for i, one in enumerate(given, start=1)}


def of(members: int) -> Quorums[int]:
    """One set of voters: the candidate, which is member 0, and the members 1, 2, ..."""
    return Quorums.of(range(members))


# --- sizes and order ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (9, 5)]
)
def test_a_quorum_is_more_than_half(members: int, needed: int) -> None:
    assert quorum(members) == needed


@given(st.integers(1, 9))
def test_two_quorums_share_a_member(members: int) -> None:
    assert 2 * quorum(members) > members


@pytest.mark.parametrize(
    ("newer", "older"),
    [((3, 5), (2, 9)), ((2, 9), (2, 5)), ((0, 0), (-1, 0)), ((1, 0), (0, 1 << 60))],
)
def test_the_later_term_is_the_newer_log_and_then_the_longer_one(
    newer: tuple[int, int], older: tuple[int, int]
) -> None:
    assert LogEnd(*newer) > LogEnd(*older)


def test_equal_ends_are_equally_new() -> None:
    assert LogEnd(2, 9) == LogEnd(2, 9)
    assert not LogEnd(2, 9) < LogEnd(2, 9)


@pytest.mark.parametrize(
    ("member", "willing"),
    [
        (None, False),  # it has not canvassed
        ((2, 100), True),  # less
        ((4, 99), True),
        ((4, 100), True),  # the same
        ((4, 101), False),  # longer
        ((5, 0), False),  # newer, though shorter
    ],
)
def test_a_member_votes_for_a_log_that_is_not_behind_its_own(
    member: tuple[int, int] | None,
    willing: bool,  # noqa: FBT001 - a column of the table
) -> None:
    heard = None if member is None else LogEnd(*member)
    assert would_vote_for(heard, LogEnd(4, 100)) is willing


# --- who may stand --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "quorate"),
    [
        # Aeron: isQuorumCandidate, five members, candidate (10, 800)
        ([(2, 100), (18, 600), (19, 800), (10, 1000)], False),
        ([(2, 100), (18, 600), (9, 800), (10, 700)], True),
        # exactly a quorum of five, and one less
        ([(10, 800), (10, 800), None, None], True),
        ([(10, 800), (10, 801), None, None], False),
        ([None, None, None, None], False),
    ],
)
def test_a_quorum_candidate_has_a_quorum_willing(
    others: list[tuple[int, int] | None],
    quorate: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert is_quorum_candidate(LogEnd(10, 800), 0, ends(*others), of(5)) is quorate


@pytest.mark.parametrize(
    ("others", "absent", "unanimous"),
    [
        ([(2, 100), (2, 90)], [], True),  # the best log
        ([(2, 100), (2, 100)], [], True),  # as good as the others
        ([(2, 100), None], [], False),  # one has not been heard
        ([(2, 100), (2, 101)], [], False),  # one has a longer log
        ([(2, 100), (3, 1)], [], False),  # one has a newer log
        ([(2, 100), None], [2], True),  # the one that is missing closed in order
        ([(2, 100), (3, 1)], [2], True),  # nor is a closed leader asked for its log
        ([None, None], [1, 2], False),  # alone among three
        ([(2, 100), None, None, None], [2, 3, 4], False),  # two of five
        ([(2, 100), (2, 100), None, None], [3, 4], True),  # three of five
    ],
)
def test_a_unanimous_candidate_has_everybody_willing_who_is_there(
    others: list[tuple[int, int] | None],
    absent: list[int],
    unanimous: bool,  # noqa: FBT001 - a column of the table
) -> None:
    heard, quorums = ends(*others), of(1 + len(others))
    assert is_unanimous_candidate(LogEnd(2, 100), 0, heard, quorums, absent) is unanimous


def test_one_of_two_whose_leader_closed_in_order_is_no_candidate() -> None:
    # Aeron: isUnanimousCandidateReturnFalse...GracefullyClosed: 1 is less than a quorum of 2
    assert not is_unanimous_candidate(LogEnd(0, 100), 0, ends((0, 100)), of(2), [1])


def test_a_member_alone_is_unanimous() -> None:
    assert is_unanimous_candidate(LogEnd(-1, 0), 0, {}, of(1), [])
    assert is_quorum_candidate(LogEnd(-1, 0), 0, {}, of(1))


LOG_ENDS = st.builds(LogEnd, st.integers(-1, 3), st.integers(0, 3))
CLUSTERS = st.lists(st.none() | LOG_ENDS, min_size=0, max_size=8)


@given(LOG_ENDS, CLUSTERS)
def test_who_is_unanimous_with_everybody_there_is_a_quorum_candidate_too(
    own: LogEnd, others: list[LogEnd | None]
) -> None:
    heard = dict(enumerate(others, start=1))
    if is_unanimous_candidate(own, 0, heard, of(1 + len(others)), []):
        assert is_quorum_candidate(own, 0, heard, of(1 + len(others)))


@given(st.lists(LOG_ENDS, min_size=1, max_size=9))
def test_among_members_that_all_hear_each_other_one_may_stand(logs: list[LogEnd]) -> None:
    assert any(
        is_unanimous_candidate(own, i, dict(enumerate(logs)), of(len(logs)), [])
        for i, own in enumerate(logs)
    )


# --- the vote -------------------------------------------------------------------------------------

CANDIDATE = 2


def ask(
    *,
    term: int = 6,
    candidate: int = CANDIDATE,
    log: tuple[int, int] = (4, 100),
    own: tuple[int, int] = (4, 100),
    promised: NodeState | None = None,
    in_ballot: bool = True,
    leader_alive: bool = False,
) -> BallotDecision:
    return consider(
        RequestVote(log[0], log[1], term, candidate),
        VoterView(LogEnd(*own), promised or NodeState(5, 1)),
        in_ballot=in_ballot,
        leader_alive=leader_alive,
    )


@pytest.mark.parametrize("own", [(4, 100), (4, 99), (3, 500), (-1, 0)])
def test_a_vote_in_a_newer_term_for_a_log_as_good_is_granted_and_promised(
    own: tuple[int, int],
) -> None:
    assert ask(own=own) == BallotDecision(True, VoteReason.GRANTED, NodeState(6, CANDIDATE))


@pytest.mark.parametrize("term", [4, 0, -1])
def test_a_term_below_the_promised_one_is_refused_and_changes_nothing(term: int) -> None:
    assert ask(term=term) == BallotDecision(False, VoteReason.TERM)


def test_a_second_candidate_of_the_promised_term_is_refused() -> None:
    assert ask(term=5) == BallotDecision(False, VoteReason.ALREADY_VOTED)


def test_a_term_that_was_promised_without_a_vote_gets_no_vote_later() -> None:
    decision = ask(term=5, promised=NodeState(5, -1))
    assert decision == BallotDecision(False, VoteReason.ALREADY_VOTED)


def test_the_same_request_again_gets_the_same_answer() -> None:
    first = ask()
    assert first.promise is not None
    again = ask(promised=first.promise)
    assert again == BallotDecision(True, VoteReason.GRANTED)


def test_another_store_of_the_candidate_does_not_get_the_vote_again() -> None:
    voter = VoterView(LogEnd(4, 100), NodeState(6, CANDIDATE), same_store=False)
    asked = RequestVote(4, 100, 6, CANDIDATE)
    decision = consider(asked, voter, in_ballot=True, leader_alive=False)
    assert decision == BallotDecision(False, VoteReason.ALREADY_VOTED)


def test_a_repeated_request_is_answered_alike_even_when_the_log_has_grown_since() -> None:
    assert ask(
        own=(4, 900), promised=NodeState(6, CANDIDATE), in_ballot=False, leader_alive=True
    ) == (BallotDecision(True, VoteReason.GRANTED))


@pytest.mark.parametrize("own", [(4, 101), (5, 0)])
def test_a_log_behind_ours_is_refused_and_its_term_is_promised_to_nobody(
    own: tuple[int, int],
) -> None:
    assert ask(own=own) == BallotDecision(False, VoteReason.LOG_NEWER, NodeState(6, -1))


@pytest.mark.parametrize("in_ballot", [False, True])
@pytest.mark.parametrize("own", [(4, 100), (5, 0)])
def test_while_the_leader_is_alive_every_candidate_is_refused_whatever_the_term(
    own: tuple[int, int],
    in_ballot: bool,  # noqa: FBT001 - both ways
) -> None:
    decision = ask(term=900, own=own, in_ballot=in_ballot, leader_alive=True)
    assert decision == BallotDecision(False, VoteReason.LEADER_ALIVE)


def test_a_member_that_joins_a_leader_is_busy() -> None:
    assert ask(in_ballot=False) == BallotDecision(False, VoteReason.BUSY)


STATES = st.builds(NodeState, st.integers(-1, 4), st.integers(-1, 3))
REQUESTS = st.builds(
    RequestVote, st.integers(-1, 3), st.integers(0, 3), st.integers(-1, 5), st.integers(0, 3)
)


@given(REQUESTS, LOG_ENDS, STATES, st.booleans(), st.booleans())
def test_no_answer_ever_breaks_a_promise(
    request: RequestVote,
    own: LogEnd,
    promised: NodeState,
    in_ballot: bool,  # noqa: FBT001 - both ways
    alive: bool,  # noqa: FBT001 - both ways
) -> None:
    decision = consider(request, VoterView(own, promised), in_ballot=in_ballot, leader_alive=alive)
    after = decision.promise or promised
    assert promised.may_become(after)
    if decision.vote:
        assert after == NodeState(request.candidate_term_id, request.candidate_member_id)
    if decision.promise is not None:
        assert in_ballot
        assert not alive
    if decision.vote and decision.promise is not None:
        assert own <= LogEnd(request.log_leadership_term_id, request.log_position)


@given(st.lists(REQUESTS, max_size=12), LOG_ENDS)
def test_whatever_is_asked_one_vote_is_given_in_each_term(
    requests: list[RequestVote], own: LogEnd
) -> None:
    promised, given_to = NodeState(), dict[int, int]()
    for request in requests:
        voter = VoterView(own, promised)
        decision = consider(request, voter, in_ballot=True, leader_alive=False)
        promised = decision.promise or promised
        if decision.vote:
            term, candidate = request.candidate_term_id, request.candidate_member_id
            assert given_to.setdefault(term, candidate) == candidate


# --- the count ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "absent", "won"),
    [
        ({1: True, 2: True, 3: True, 4: True}, [], True),
        ({1: True, 2: True, 3: True}, [], False),  # one has not answered
        ({1: True, 2: True, 3: True, 4: False}, [], False),  # one refused
        ({1: True, 2: True, 3: True}, [4], True),  # nobody waits for the one that closed
        ({1: True, 2: True}, [3, 4], True),  # exactly a quorum
        ({1: True}, [2, 3, 4], False),  # less than a quorum
        ({}, [], False),
    ],
)
def test_a_unanimous_leader_has_the_votes_of_all_who_are_there(
    votes: dict[int, bool],
    absent: list[int],
    won: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert is_unanimous_leader(votes, 0, of(5), absent) is won


def test_of_two_members_the_one_whose_leader_closed_does_not_win_alone() -> None:
    assert not is_unanimous_leader({}, 0, of(2), [1])


@pytest.mark.parametrize(
    ("votes", "rounds", "won"),
    [
        ({1: True, 2: True}, 0, True),  # two silent ones do not matter
        ({1: True}, 0, False),  # two of five
        ({}, 0, False),
        ({1: True, 2: True, 3: True, 4: False}, 0, False),  # a veto in the first round
        ({1: True, 2: True, 3: True, 4: False}, 1, False),  # and in the second
        ({1: True, 2: True, 3: True, 4: False}, 2, True),  # from the third on a majority will do
        ({1: True, 2: True, 3: False, 4: False}, 9, True),
        ({1: True, 2: False, 3: False, 4: False}, 9, False),
    ],
)
def test_at_the_end_of_a_ballot_a_majority_wins_and_early_vetoes_count(
    votes: dict[int, bool],
    rounds: int,
    won: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert VETO_ROUNDS == 2
    assert is_quorum_leader(votes, 0, of(5), rounds) is won


@given(st.dictionaries(st.integers(1, 6), st.booleans(), max_size=6), st.integers(0, 5))
def test_nobody_wins_without_a_quorum_of_votes(votes: dict[int, bool], rounds: int) -> None:
    given_votes, seven = 1 + sum(votes.values()), of(7)
    for won in (
        is_quorum_leader(votes, 0, seven, rounds),
        is_unanimous_leader(votes, 0, seven, []),
    ):
        assert not won or given_votes >= 4
    assert has_quorum(votes, 0, seven) is (given_votes >= 4)


# --- two sets of voters ---------------------------------------------------------------------------

JOINT = Quorums.of([0, 1, 2], [0, 3, 4])
LEAVING = Quorums.of([0, 1, 2], [1, 2, 3])
"""The candidate, member 0, is in the first set only."""


@pytest.mark.parametrize(
    ("quorums", "votes", "won"),
    [
        (JOINT, {1: True, 3: True}, True),
        (JOINT, {1: True, 2: True}, False),  # of the second set it has only its own
        (JOINT, {3: True, 4: True}, False),
        (LEAVING, {1: True}, False),  # its own vote counts in the first set only
        (LEAVING, {1: True, 2: True}, True),
        (LEAVING, {1: True, 3: True}, True),
        (LEAVING, {3: True}, False),
        (JOINT, {7: True, 8: True}, False),  # strangers
    ],
)
def test_with_two_sets_a_winner_has_a_majority_of_each(
    quorums: Quorums[int],
    votes: dict[int, bool],
    won: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert has_quorum(votes, 0, quorums) is won
    assert is_quorum_leader(votes, 0, quorums, 0) is won
    absent = quorums.voters.difference(votes)
    assert is_unanimous_leader(votes, 0, quorums, absent) is won
    answers = dict.fromkeys(votes, VoteReason.GRANTED)
    assert is_supported(answers, 0, quorums, absent) is won
    heard = {voter: LogEnd(1, 0) for voter in votes}
    assert is_quorum_candidate(LogEnd(2, 0), 0, heard, quorums) is won
    assert is_unanimous_candidate(LogEnd(2, 0), 0, heard, quorums, absent) is won


def test_unanimity_is_over_the_voters_of_both_sets() -> None:
    heard = {voter: LogEnd(2, 0) for voter in (1, 2, 3)}
    assert not is_unanimous_candidate(LogEnd(2, 0), 0, heard, JOINT, [])  # 4 may have a longer log
    assert is_unanimous_candidate(LogEnd(2, 0), 0, heard | {4: LogEnd(2, 0)}, JOINT, [])
    assert not is_unanimous_candidate(LogEnd(2, 0), 0, heard | {4: LogEnd(2, 9)}, JOINT, [])
    assert not is_unanimous_leader({1: True, 2: True, 3: True}, 0, JOINT, [])
    assert is_unanimous_leader(dict.fromkeys((1, 2, 3, 4), True), 0, JOINT, [])


def test_a_candidate_waits_for_the_set_that_may_still_agree() -> None:
    yes = VoteReason.GRANTED
    assert is_supported({1: yes, 2: yes}, 0, JOINT, []) is None
    assert is_supported({1: yes, 2: yes}, 0, JOINT, [3]) is None  # 4 is enough
    assert is_supported({1: yes, 2: yes}, 0, JOINT, [3, 4]) is False
