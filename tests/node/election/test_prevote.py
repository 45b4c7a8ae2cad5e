"""Scouting: no term is raised unless a quorum says that it would vote for the one who asks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import State
from quorate.node.protocol.ballots import gives_way, is_supported
from quorate.node.protocol.quorum import Quorums
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.storage import LogEnd, NodeState
from quorate.transport import RequestVote, Scout, ScoutReply, VoteReason
from tests.support.peers import ME, log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

YES, NO = VoteReason.GRANTED, VoteReason.BUSY


# --- what the answers mean ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "absent", "expected"),
    [
        ({}, (), None),
        ({1: YES}, (), None),  # 2 may answer as well
        ({1: YES}, (2,), True),
        ({1: YES, 2: YES}, (), True),
        ({1: YES, 2: NO}, (), True),
        ({1: NO}, (), None),
        ({1: NO}, (2,), False),
        ({1: NO, 2: NO}, (), False),
        ({}, (1, 2), False),
    ],
)
def test_a_quorum_of_three_is_two(
    answers: dict[int, VoteReason],
    absent: tuple[int, ...],
    expected: bool | None,  # noqa: FBT001
) -> None:
    assert is_supported(answers, 0, Quorums.of(range(3)), absent) is expected


def test_of_two_that_scout_the_longer_log_goes_first_and_then_the_higher_id() -> None:
    for own, member, position, asker, expected in (
        (96, 1, 192, 0, True),
        (192, 0, 96, 1, False),
        (96, 0, 96, 1, True),
        (96, 1, 96, 0, False),
    ):
        assert gives_way(LogEnd(3, own), member, Scout(4, 3, position, asker, 7)) is expected


# --- the one who asks -----------------------------------------------------------------------------


@scripted(batches=log((0, 96)), promised=NodeState(5, -1))
async def test_what_is_asked_and_of_whom(s: Script) -> None:
    assert await s.stand() == 6
    for peer in s.peers.values():
        scout = await peer.hears(Scout)
        assert scout == Scout(6, 0, 96, ME, scout.nonce)


@scripted(promised=NodeState(5, -1))
@pytest.mark.parametrize("answer", [None, NO, VoteReason.LEADER_ALIVE])
async def test_without_a_quorum_of_supporters_no_term_is_raised(
    s: Script, answer: VoteReason | None
) -> None:
    for peer in s.peers.values():
        peer.supports = answer
    rounds: list[float] = []
    for _ in range(8):
        await s.nominate()
        rounds.append((await s.enters(State.CANVASS)).at)
    assert s.store.node_state == NodeState(5, -1)
    assert s.peers[1].messages(RequestVote) == []
    pauses = [after - before for before, after in itertools.pairwise(rounds)]
    assert pauses[-1] > 4 * TIMEOUTS.election_timeout  # who is not wanted asks ever less often
    for peer in s.peers.values():
        peer.supports = YES
    assert await s.stand() == 6


@scripted()
async def test_who_did_not_answer_the_scout_is_not_waited_for_in_the_ballot(s: Script) -> None:
    s.peers[2].supports = None
    await s.nominate()
    stood = await s.enters(State.CANDIDATE_BALLOT)
    s.peers[1].vote(s.store.node_state.candidate_term)
    won = await s.enters(State.LEADER_LOG_REPLICATION)
    assert won.reason == "unanimous leader"
    assert won.at - stood.at < TIMEOUTS.election_timeout / 10


@scripted()
async def test_a_member_in_a_newer_term_is_asked_again_about_the_next(s: Script) -> None:
    for peer in s.peers.values():
        peer.supports = None
    await s.nominate()
    scout = await s.peers[1].hears(Scout)
    s.peers[2].supports = YES
    s.peers[1].say(ScoutReply(0, scout.nonce, 1, VoteReason.TERM, 9))
    again = await s.peers[1].hears(Scout, lambda each: each.nonce != scout.nonce)
    assert again.proposed_term_id == 10
    s.peers[1].say(ScoutReply(10, scout.nonce, 1, YES, 9))  # to the first question: too late
    await trio.sleep(0.001)
    assert s.state is State.NOMINATE
    await s.enters(State.CANDIDATE_BALLOT)
    assert s.store.node_state == NodeState(10, ME)


@scripted()
async def test_of_two_that_scout_at_once_one_gives_way(s: Script) -> None:
    for peer in s.peers.values():
        peer.supports = None
    await s.nominate()
    await s.peers[1].hears(Scout)
    s.peers[1].say(Scout(0, -1, 0, 1, 77))
    reply = await s.peers[1].hears(ScoutReply)
    assert reply == ScoutReply(0, 77, ME, YES, -1)
    for peer in s.peers.values():
        peer.supports = YES
    await trio.sleep(0.9 * TIMEOUTS.election_timeout)
    assert s.state is State.NOMINATE
    assert s.store.node_state == NodeState(-1, -1)
    s.peers[1].request_vote(0)
    await s.enters(State.FOLLOWER_BALLOT)


# --- the one who is asked -------------------------------------------------------------------------


async def answer(s: Script, scout: Scout) -> VoteReason:
    s.peers[scout.member_id].say(scout)
    reply = await s.peers[scout.member_id].hears(ScoutReply)
    assert (reply.proposed_term_id, reply.nonce) == (scout.proposed_term_id, scout.nonce)
    return reply.reason


@scripted(batches=log((0, 96)), promised=NodeState(5, -1))
async def test_an_answer_binds_nobody(s: Script) -> None:
    assert await answer(s, Scout(6, 0, 96, 1, 1)) is YES
    assert await answer(s, Scout(6, 0, 96, 2, 2)) is YES
    assert await answer(s, Scout(5, 0, 96, 2, 3)) is VoteReason.ALREADY_VOTED
    assert await answer(s, Scout(4, 0, 96, 2, 4)) is VoteReason.TERM
    assert await answer(s, Scout(9, 0, 0, 2, 5)) is VoteReason.LOG_NEWER
    assert s.store.node_state == NodeState(5, -1)
    assert State.FOLLOWER_BALLOT not in s.path


@scripted()
async def test_who_waits_for_the_winner_of_a_ballot_supports_nobody_else(s: Script) -> None:
    s.peers[1].request_vote(3)
    await s.enters(State.FOLLOWER_BALLOT)
    assert await answer(s, Scout(4, -1, 0, 2, 1)) is VoteReason.BUSY


@scripted()
async def test_a_steady_follower_says_no_whatever_the_term(s: Script) -> None:
    await s.follow(1, 0)
    before = list(s.path)
    assert await answer(s, Scout(900, 9, 960, 2, 1)) is VoteReason.LEADER_ALIVE
    assert (s.path, s.store.node_state) == (before, NodeState(0, -1))


@scripted()
async def test_a_leader_says_no_whatever_the_term(s: Script) -> None:
    term = await s.lead()
    assert await answer(s, Scout(900, 9, 960, 2, 1)) is VoteReason.LEADER_ALIVE
    assert s.member.topology.is_leader
    assert s.store.node_state == NodeState(term, ME)


@scripted()
async def test_a_scout_in_the_name_of_another_is_not_answered(s: Script) -> None:
    s.peers[1].say(Scout(3, -1, 0, 2, 1))
    await trio.sleep(0.1)
    assert s.peers[2].messages(ScoutReply) == s.peers[1].messages(ScoutReply) == []


# --- what it is for (BlazingMQ: the two scenarios) ------------------------------------------------


async def test_a_member_that_was_cut_off_and_returns_changes_neither_leader_nor_term(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4) as world:
        await world.start()
        leader = await world.settled()
        lonely = (leader + 1) % 4
        term = world.hosts[leader].running.status().term
        for other in range(4):
            if other != lonely:
                world.network.cut(f"h{lonely}", f"h{other}")
        await trio.sleep(10 * TIMEOUTS.leader_heartbeat_timeout)
        assert world.hosts[lonely].running.store.node_state.candidate_term <= term
        for other in range(4):
            world.network.heal(f"h{lonely}", f"h{other}")
        await world.settled()
        await trio.sleep(10 * TIMEOUTS.leader_heartbeat_timeout)
        assert world.leaders() == [leader]
        assert {host.running.status().term for host in world.hosts.values()} == {term}


async def test_one_broken_link_between_leader_and_follower_costs_no_election(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4) as world:
        await world.start()
        leader = await world.settled()
        term = world.hosts[leader].running.status().term
        world.network.cut(f"h{leader}", f"h{(leader + 1) % 4}")
        for _ in range(40):
            await trio.sleep(TIMEOUTS.leader_heartbeat_timeout)
            assert world.leaders() == [leader]
        assert all(
            host.running.store.node_state.candidate_term <= term for host in world.hosts.values()
        )
