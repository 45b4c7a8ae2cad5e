"""Leadership goes to whom an operator names: in order, without a lost write, or not at all."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import RefusedError, UnknownOutcomeError
from quorate.node import State
from quorate.node.requests.forwarding import ForwardStatus
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.storage import NodeState
from quorate.transport import (
    AppendFlags,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    LeadershipCession,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    ScoutReply,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.mark.parametrize("asked", ["leader", "target", "third"])
async def test_under_load_every_write_succeeds_once_and_the_pause_is_short(
    tmp_path: Path, autojump_clock: MockClock, asked: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        target, third = world.others(leader)
        at = {"leader": leader, "target": target, "third": third}[asked]
        term = world.hosts[leader].running.status().term
        acked: list[float] = []

        async def write(name: int) -> None:
            for i in range(100):
                await world.command(name % 3, b"%d-%d" % (name, i))
                acked.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for name in range(12):
                nursery.start_soon(write, name)
            await trio.sleep(0.05)
            said = await world.hosts[at].running.control(f"transfer {target}")
        assert said == f"member {target} takes over"
        assert await world.settled() == target
        assert world.hosts[target].running.status().term == term + 1
        await trio.sleep(0.2)
        payloads = world.hosts[third].service.payloads
        assert sorted(payloads) == sorted(b"%d-%d" % (n, i) for n in range(12) for i in range(100))
        assert max(b - a for a, b in itertools.pairwise(acked)) < 0.05


async def test_who_leads_already_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        seen = len(world.transitions)
        member = world.hosts[leader].running
        assert await member.control(f"transfer {leader}") == f"member {leader} leads already"
        assert len(world.transitions) == seen


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("transfer", "transfer to ''"),
        ("transfer 7", "transfer to '7': expected the id of a member, one of 0, 1, 2"),
        ("transfer x", "transfer to 'x'"),
        ("transfer 1 2", "transfer to '1 2'"),
        ("jump", "'jump' is none of the things"),
        ("", "a verb and its arguments"),
        ("tränsfer", "in ASCII"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, autojump_clock: MockClock, words: str, why: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for at in (leader, world.others(leader)[0]):
            with pytest.raises(RefusedError, match=why):
                await world.hosts[at].running.control(words)


async def test_a_member_that_does_not_follow_is_not_made_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        target = world.others(leader)[0]
        await world.kill(target)
        await trio.sleep(0.01)
        with pytest.raises(RefusedError, match=f"member {target} does not follow"):
            await world.hosts[leader].running.control(f"transfer {target}")
        assert await world.command(leader, b"x") == b"1"


# --- the one who hands over -----------------------------------------------------------------------


async def ask(s: Script, words: str, answers: list[object]) -> None:
    try:
        answers.append(await s.member.control(words))
    except (RefusedError, UnknownOutcomeError) as error:
        answers.append(error)


@scripted()
async def test_the_target_first_gets_all_of_the_log_and_if_it_stays_silent_nothing_changes(
    s: Script,
) -> None:
    term = await s.lead()
    await s.peers[1].hears(CommitPosition)
    answers: list[object] = []
    follower = s.member.state.role.followers[1]  # type: ignore[attr-defined]
    follower.live = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, "transfer 1", answers)
        await s.until(lambda: s.store.append_position > 0)
        await trio.sleep(0.05)
        assert s.peers[1].messages(TimeoutNow) == []
        for peer in s.peers.values():
            peer.append_position(term, s.store.append_position, AppendFlags.READY)
        assert await s.peers[1].hears(TimeoutNow) == TimeoutNow(term, ME, 1, by_operator=True)
        for _ in range(20):
            for peer in s.peers.values():
                peer.append_position(term, s.store.append_position, AppendFlags.READY)
            await trio.sleep(0.05)
    assert [str(each) for each in answers] == ["member 1 did not take over in time"]
    assert s.member.topology.is_leader
    assert s.state is State.CLOSED


@scripted()
async def test_a_member_that_is_about_to_follow_is_waited_for(s: Script) -> None:
    """As the last leader is after a transfer, when an operator gives it the leadership back."""
    term = await s.lead()
    answers: list[object] = []
    follower = s.member.state.role.followers[1]  # type: ignore[attr-defined]
    follower.live = follower.ready = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, "transfer 1", answers)
        await trio.sleep(TIMEOUTS.leader_heartbeat_timeout / 4)
        assert answers == []
        follower.live = True
        await s.until(lambda: s.store.append_position > 0)
        for peer in s.peers.values():
            peer.append_position(term, s.store.append_position, AppendFlags.READY)
        assert await s.peers[1].hears(TimeoutNow) == TimeoutNow(term, ME, 1, by_operator=True)
        nursery.cancel_scope.cancel()


@scripted()
async def test_who_hands_over_at_once_tells_no_more_of_its_term(s: Script) -> None:
    """The target would follow again, and the writes would wait in vain."""
    term = await s.lead()
    leads_since = trio.current_time()
    s.member.state.role.followers[1].live = True  # type: ignore[attr-defined]
    answers: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, "transfer 1", answers)
        await s.until(lambda: s.store.append_position > 0)
        for peer in s.peers.values():
            peer.append_position(term, s.store.append_position, AppendFlags.READY)
        await s.peers[1].hears(TimeoutNow)
        assert trio.current_time() - leads_since < TIMEOUTS.leader_heartbeat_interval
        told = s.peers[1].messages(NewLeadershipTerm)
        await trio.sleep(3 * TIMEOUTS.leader_heartbeat_interval)
        assert s.peers[1].messages(NewLeadershipTerm) == told
        assert answers == []


# --- the one who takes over -----------------------------------------------------------------------


@scripted(batches=log((0, 96)))
async def test_whom_the_leader_asks_stands_at_once_and_is_voted_for_against_a_living_leader(
    s: Script,
) -> None:
    leader = await s.follow(1, 0, log_term=0)
    leader.say(TimeoutNow(0, 1, ME))
    await s.enters(State.CANDIDATE_BALLOT, within=0.02)
    assert s.store.node_state == NodeState(1, ME)
    for peer in s.peers.values():
        assert await peer.hears(RequestVote) == RequestVote(0, 96, 1, ME, force=True)
        assert [scout.force for scout in peer.messages(Scout)] == [True]
        peer.vote(1)
    await s.enters(State.LEADER_LOG_REPLICATION)
    assert (await leader.hears(NewLeadershipTerm)).leadership_term_id == 1


@scripted()
async def test_whom_the_leader_asks_gives_way_to_nobody(s: Script) -> None:
    leader = await s.follow(1, 0)
    for peer in s.peers.values():
        peer.supports = None
    leader.say(TimeoutNow(0, 1, ME))
    await s.peers[2].hears(Scout)
    s.peers[2].say(Scout(1, 0, 0, 2, 77))
    assert (await s.peers[2].hears(ScoutReply)).reason is VoteReason.BUSY
    for peer in s.peers.values():
        peer.supports = VoteReason.GRANTED
    await s.enters(State.CANDIDATE_BALLOT, within=2 * TIMEOUTS.canvass_interval)


@scripted()
async def test_a_mandate_is_good_for_one_ballot(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.say(TimeoutNow(0, 1, ME))
    await s.enters(State.CANDIDATE_BALLOT)
    await s.enters(State.CANVASS, within=2 * TIMEOUTS.election_timeout)
    term = await s.stand()
    asked = await leader.hears(RequestVote, lambda m: m.candidate_term_id == term)
    assert not asked.force


@scripted()
async def test_only_the_leader_can_ask_and_only_in_its_term(s: Script) -> None:
    await s.follow(1, 0)
    for message in (TimeoutNow(0, 2, ME), TimeoutNow(1, 1, ME), TimeoutNow(0, 1, 2)):
        s.peers[2 if message.leader_member_id == 2 else 1].say(message)
    await trio.sleep(0.05)
    assert s.state is State.CLOSED
    assert s.store.node_state == NodeState(0, -1)


@scripted()
async def test_a_follower_votes_for_whom_the_leader_has_asked(s: Script) -> None:
    await s.follow(1, 0)
    s.peers[2].say(RequestVote(0, 0, 1, 2, force=True))
    vote = await s.peers[2].hears(Vote)
    assert (vote.vote, vote.reason) == (True, VoteReason.GRANTED)
    assert s.store.node_state == NodeState(1, 2)


@scripted(batches=log((0, 96)))
async def test_even_then_not_for_a_shorter_log(s: Script) -> None:
    await s.follow(1, 0, log_term=0)
    s.peers[2].say(RequestVote(0, 0, 1, 2, force=True))
    vote = await s.peers[2].hears(Vote)
    assert (vote.vote, vote.reason) == (False, VoteReason.LEADER_ALIVE)
    assert s.state is State.CLOSED


@scripted()
async def test_a_leader_that_does_not_wait_any_more_is_not_left(s: Script) -> None:
    """The request to take over came late, to a member that was held up."""
    leader = await s.follow(1, 0)
    leader.supports = VoteReason.LEADER_ALIVE
    leader.say(TimeoutNow(0, 1, ME))
    await s.enters(State.NOMINATE)
    await s.enters(State.CANVASS, within=0.02)
    assert s.store.node_state == NodeState(0, -1)
    leader.supports = VoteReason.GRANTED
    s.peers[1].forget()
    await s.stand()
    assert not (await leader.hears(Scout)).force


@scripted()
async def test_a_leader_makes_way_only_for_whom_it_has_asked(s: Script) -> None:
    term = await s.lead()
    end = s.store.submitted_position
    s.peers[2].say(Scout(term + 1, term, end, 2, 1, force=True))
    assert (await s.peers[2].hears(ScoutReply)).reason is VoteReason.LEADER_ALIVE
    s.peers[2].say(RequestVote(term, end, term + 1, 2, force=True))
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.LEADER_ALIVE
    assert s.member.topology.is_leader


# --- what happens to those who wait ---------------------------------------------------------------


@scripted(batches=log((0, 96)))
async def test_what_was_forwarded_to_a_leader_that_gives_up_is_answered_by_it(s: Script) -> None:
    """It knows its own end, and tells what of it was never done: that goes to the next leader."""
    leader = await s.follow(1, 0, log_term=0)
    answers: list[bytes] = []

    async def command(payload: bytes) -> None:
        answers.append(await s.member.command(payload))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(command, b"x")
        asked = await leader.hears(ForwardRequest)
        leader.canvass(0, 96)
        await s.enters(State.CANVASS)
        await trio.sleep(0.05)
        assert answers == []
        leader.say(ForwardReply(asked.request_id, ForwardStatus.RETRY, b""))
        s.peers[2].lead(1, 0, TermSpan(0, 0, 96), TermSpan(1, 96, -1))
        again = await s.peers[2].hears(ForwardRequest)
        s.peers[2].say(ForwardReply(again.request_id, ForwardStatus.REPLY, b"done"))
    assert answers == [b"done"]


@scripted()
async def test_a_leader_that_closes_while_it_hands_over_says_that_it_goes(s: Script) -> None:
    term = await s.lead()
    follower = s.member.state.role.followers[1]  # type: ignore[attr-defined]
    follower.live = True
    answers: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, "transfer 1", answers)
        await s.until(lambda: not s.member.state.role.accepting)  # type: ignore[attr-defined]
        nursery.start_soon(s.member.close)
        await trio.sleep(0.1)
        assert s.peers[2].messages(LeadershipCession) == []  # its entries are not committed yet
        for peer in s.peers.values():
            peer.append_position(term, s.store.append_position, AppendFlags.READY)
        assert (await s.peers[2].hears(LeadershipCession)).leadership_term_id == term
