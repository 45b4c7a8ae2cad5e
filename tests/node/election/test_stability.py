"""The two scenarios of BlazingMQ's article on its elector, with and without what prevents them.

A leader that is not left alone: one member of four is cut off for ten election timeouts, and comes
back. Leadership to and fro: the leader and one follower can't see each other, the others see both.
Neither may cost an election, since who wants to stand asks first: by its canvass, which only those
answer that have no leader, and again by scouting; and since nobody votes who hears a leader.

A member that asks nobody brings the cluster down to what the article tells of; so these scripts
would see it if ours did. One that asks only by its canvass raises its term on what it heard before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.node import State
from quorate.node.election import election
from quorate.node.election.prevote import PreVote, stand
from quorate.node.protocol import ballots
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import RequestVote, VoteReason
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node.election.transition import Next
    from quorate.simulation import Ledger, World


@attrs.frozen
class Cost:
    """What a scenario cost.

    Args:
        terms: how many were raised.
        elections: how often somebody won.
    """

    terms: int
    elections: int


NOTHING = Cost(0, 0)


@pytest.fixture
def no_scouting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the term without having scouted."""

    async def stand_at_once(prevote: PreVote) -> Next | None:
        ctx = prevote.ctx
        return await stand(ctx, max(ctx.promised_term, ctx.highest_term_heard) + 1)

    monkeypatch.setattr(PreVote, "ask_voters", stand_at_once)


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch, no_scouting: None) -> None:
    """Stand after a heartbeat timeout without a leader, whoever was heard or not."""

    def always(*_facts: object) -> bool:
        return True

    monkeypatch.setattr(ballots, "is_quorum_candidate", always)


@pytest.fixture
def everybody_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers leave a leader that they hear for a candidate of a newer term."""

    def forced(
        log_term: int, position: int, term: int, member: int, *, force: bool, even_if_behind: bool
    ) -> RequestVote:
        return RequestVote(log_term, position, term, member, force=True)

    monkeypatch.setattr(election, "RequestVote", forced)


async def cut_off_and_returning(world: World[Ledger]) -> None:
    """One member is cut off for ten election timeouts, and comes back."""
    (leader,) = world.leaders()
    world.isolate((leader + 1) % 4)
    await trio.sleep(10 * TIMEOUTS.election_timeout)
    world.mend()
    await trio.sleep(10 * TIMEOUTS.election_timeout)


async def to_and_fro(world: World[Ledger]) -> None:
    """The leader and one follower can't see each other, the others see both."""
    (leader,) = world.leaders()
    world.network.cut(f"h{leader}", f"h{(leader + 1) % 4}")
    await trio.sleep(40 * TIMEOUTS.leader_heartbeat_timeout)
    world.mend()
    await trio.sleep(10 * TIMEOUTS.election_timeout)


SCENARIOS = [cut_off_and_returning, to_and_fro]


async def cost_of(scenario: object, directory: Path) -> Cost:
    """Run a scenario on a cluster of four, and count."""
    async with open_ledgers(directory, 4) as world:
        await world.start()
        await world.settled()
        before = highest_term(world)
        seen = len(world.transitions)
        await scenario(world)  # type: ignore[operator]
        won = sum(each.after is State.LEADER_READY for each in world.transitions[seen:])
        return Cost(highest_term(world) - before, won)


def highest_term(world: World[Ledger]) -> int:
    return max(host.running.store.node_state.candidate_term for host in world.hosts.values())


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_it_costs_no_election_and_no_term(
    tmp_path: Path, autojump_clock: MockClock, scenario: object
) -> None:
    assert await cost_of(scenario, tmp_path) == NOTHING


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_where_nobody_is_asked_terms_are_raised_and_the_leader_is_lost(
    tmp_path: Path, autojump_clock: MockClock, scenario: object, nobody_is_asked: None
) -> None:
    cost = await cost_of(scenario, tmp_path)
    assert cost.terms >= 5
    assert cost.elections >= 1


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_where_everybody_votes_as_well_it_is_worse(
    tmp_path: Path,
    autojump_clock: MockClock,
    scenario: object,
    nobody_is_asked: None,
    everybody_votes: None,
) -> None:
    cost = await cost_of(scenario, tmp_path)
    assert cost.elections >= (2 if scenario is to_and_fro else 1), cost


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_canvass_alone_prevents_these_two(
    tmp_path: Path, autojump_clock: MockClock, scenario: object, no_scouting: None
) -> None:
    assert await cost_of(scenario, tmp_path) == NOTHING


async def stale_canvass(s: Script) -> int:
    """Both others canvass, and find a leader that we don't hear; return the terms we raise."""
    for peer in s.peers.values():
        peer.canvass()
        peer.supports = VoteReason.LEADER_ALIVE
    before = s.store.node_state.candidate_term
    await trio.sleep(10 * TIMEOUTS.election_timeout)
    return s.store.node_state.candidate_term - before


@scripted()
async def test_what_the_canvass_told_may_be_over_and_scouting_asks_again(s: Script) -> None:
    assert await stale_canvass(s) == 0
    assert State.NOMINATE in s.path


@scripted()
@pytest.mark.usefixtures("no_scouting")
async def test_without_scouting_a_term_is_raised_on_what_is_over(s: Script) -> None:
    assert await stale_canvass(s) > 0
