"""Every state of small clusters: no two leaders of a term, nothing committed lost, no term raised.

``make model`` explores larger ones. Planted faults prove that the model finds wrong rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from quorate.node.protocol import ballots, log_matching
from quorate.storage import EMPTY_LOG
from tests.model import elector as model
from tests.model.cluster import FOLLOWING, Has, Log, Member, ViolationError
from tests.model.elector import Elector, explore

if TYPE_CHECKING:
    from quorate.node.protocol.ballots import BallotDecision
    from quorate.storage import NodeState
    from quorate.transport import RequestVote

SMALL = {
    "3 members, 1 term": (Elector(3, 1), 3017),
    "3 members, 2 terms, without scouting": (Elector(3, 2, scouting=False), 21381),
    "4 members, 1 term, without scouting": (Elector(4, 1, scouting=False), 7945),
    "3 members, 1 term, one loses its disk": (Elector(3, 1, scouting=False, wipes=True), 11658),
    "3 members, 2 of them steady": (Elector(3, 3, steady=frozenset({0, 1})), 8),
    "5 members, 3 of them steady": (Elector(5, 2, steady=frozenset({0, 1, 2})), 112),
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
