"""Every state of small clusters: no two leaders of a term, nothing committed lost, no term raised.

``make model`` explores larger ones. Planted faults prove that the model finds wrong rules.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from quorate.node.protocol import ballots, log_matching
from quorate.node.protocol.quorum import Quorums, quorum
from quorate.storage import EMPTY_LOG
from tests.model import elector as model
from tests.model.cluster import FOLLOWING, Has, Log, Member, ViolationError
from tests.model.elector import Elector, explore

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from quorate.node.protocol.ballots import BallotDecision
    from quorate.storage import NodeState
    from quorate.transport import RequestVote

ONE_OF_THREE = frozenset({0}), frozenset({0, 1, 2})
ONE_REPLACED = frozenset({0, 1, 2}), frozenset({1, 2, 3})

SMALL = {
    "3 members, 1 term": (Elector(3, 1), 3017),
    "3 members, 2 terms, without scouting": (Elector(3, 2, scouting=False), 21381),
    "4 members, 1 term, without scouting": (Elector(4, 1, scouting=False), 7945),
    "3 members, 1 term, one loses its disk": (Elector(3, 1, scouting=False, wipes=True), 11658),
    "3 members, 2 of them steady": (Elector(3, 3, steady=frozenset({0, 1})), 8),
    "5 members, 3 of them steady": (Elector(5, 2, steady=frozenset({0, 1, 2})), 112),
    "1 and 3 voters, 1 term": (
        Elector(3, 1, sets=ONE_OF_THREE, alone=frozenset({0})),
        3602,
    ),
    "3 and 3 voters of 4 members, 1 term, without scouting": (
        Elector(4, 1, scouting=False, sets=ONE_REPLACED),
        12415,
    ),
}


@pytest.mark.parametrize("words", SMALL)
def test_every_state_is_safe(words: str) -> None:
    elector, states = SMALL[words]
    assert explore(elector, elector.start()) == states


def violation(elector: Elector) -> str:
    """Return the violation that the model finds within a bounded number of states."""
    with pytest.raises(ViolationError) as caught:
        explore(elector, elector.start(), most=200_000)
    return str(caught.value)


def over_the_union(quorums: Quorums[int], voters: AbstractSet[int]) -> bool:
    """Count a majority of all voters together, whichever set they are in: wrong."""
    return len(quorums.voters & voters) >= quorum(len(quorums.voters))


def test_a_majority_of_the_union_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorums, "agree", over_the_union)
    elector = Elector(3, 1, scouting=False, sets=ONE_OF_THREE, alone=frozenset({0}))
    assert "both won term 1" in violation(elector)


def test_a_majority_of_the_union_is_one_of_each_set_if_one_voter_changes() -> None:
    # So only a change of two voters or more can show that the union is wrong.
    quorums = Quorums[int](ONE_REPLACED)
    for voters in itertools.combinations(range(4), 3):
        assert quorums.agree(set(voters))


def test_votes_that_a_crash_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(member: Member) -> Member:
        return Member(log=member.log)

    monkeypatch.setattr(Member, "back", forgetful)
    assert "both won term" in violation(Elector(3, 1, scouting=False))


def test_a_vote_for_a_shorter_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    consider = ballots.consider

    def blind(request: RequestVote, voter: ballots.VoterView, **more: Any) -> BallotDecision:
        return consider(request, attrs.evolve(voter, own=EMPTY_LOG), **more)

    monkeypatch.setattr(ballots, "consider", blind)
    assert "committed is" in violation(Elector(3, 2, scouting=False))


def test_a_leader_of_the_past_that_is_followed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_message: object, _newest: int) -> bool:
        return False

    monkeypatch.setattr(log_matching, "is_stale", never)
    monkeypatch.setattr(Member, "promising", _keep)
    assert "committed" in violation(Elector(3, 2, scouting=False))


def _keep(member: Member, state: NodeState | None) -> Member:
    if state is None or state.candidate_term < member.promised:
        return member
    return member._replace(promised=state.candidate_term, voted=state.voted_for)


def test_a_winner_that_is_behind_and_fetches_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(member: Member, _given: object) -> Log:
        return member.log

    monkeypatch.setattr(model, "drawn_level", own)
    assert "committed is" in violation(Elector(3, 2, transfers=True, scouting=False))


def test_without_scouting_a_member_without_leader_raises_terms() -> None:
    elector = Elector(3, 3, steady=frozenset({0, 1}))
    assert "raised its term" in violation(attrs.evolve(elector, scouting=False))


def test_scouts_that_are_answered_with_yes_by_followers_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consider = ballots.consider

    def unsteady(
        request: RequestVote, voter: ballots.VoterView, *, in_ballot: bool, leader_alive: bool
    ) -> BallotDecision:
        del in_ballot, leader_alive
        return consider(request, voter, in_ballot=True, leader_alive=False)

    monkeypatch.setattr(ballots, "consider", unsteady)
    assert violation(Elector(3, 3, steady=frozenset({0, 1})))


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["votes", "is counted"])
def test_a_wiped_disk_that_is_taken_for_a_member_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    if planted == "votes":
        monkeypatch.setattr(Member, "votes", property(lambda _member: True))
    else:
        monkeypatch.setattr(model, "_reports", _reports)
    assert violation(Elector(3, 2, scouting=False, wipes=True))


def _reports(member: Member, i: int) -> tuple[Has, ...]:
    return (Has(member.term, i, member.log),) if member.role == FOLLOWING else ()
