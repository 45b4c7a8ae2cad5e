"""The edges to INIT: every state gives up in its own way; and that no edge is without a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import EDGES, State
from quorate.transport import CommitPosition, LogSubscribe, StopCatchup, TermSpan
from tests.node.protocol.test_edges import BEHIND, LEVEL, LOG
from tests.support.edges import TAKEN, takes
from tests.support.peers import ME, Peer, log

if TYPE_CHECKING:
    from tests.support.script import Script

SHORTER = (TermSpan(0, 0, 96), TermSpan(5, 96, -1))  # of a leader that lacks the end of LOG
COMMITTED = log((0, 96), (0, 192), commit=96)
NEVER = 1000.0  # seconds


async def truncates(s: Script, leader: Peer) -> None:
    """Have a leader of term 5 appear to a member whose log is LOG and parts from the leader's."""
    leader.lead(5, 0, *SHORTER)
    reason = (await s.enters(State.INIT)).reason
    assert reason == "truncated uncommitted entries from 96 on"
    assert s.store.append_position == 96
    assert s.terms == [(0, 0, None)]
    assert s.store.node_state.candidate_term == 5


def hears_of_a_newer_term(s: Script) -> None:
    s.peers[2].commit(900)


@takes(State.CANVASS, State.INIT, batches=LOG)
async def test_a_canvasser_truncates_what_is_not_the_leaders(s: Script) -> None:
    await truncates(s, s.peers[1])


@takes(State.NOMINATE, State.INIT, batches=LOG)
async def test_a_nominee_truncates_what_is_not_the_leaders(s: Script) -> None:
    await s.nominate()
    await truncates(s, s.peers[1])


@takes(State.CANDIDATE_BALLOT, State.INIT, batches=LOG)
async def test_a_candidate_truncates_what_is_not_the_leaders(s: Script) -> None:
    await s.stand()
    await truncates(s, s.peers[1])


@takes(State.FOLLOWER_BALLOT, State.INIT, batches=LOG)
async def test_a_voter_truncates_what_is_not_the_leaders(s: Script) -> None:
    # it voted for a log as long as its own, and the winner is another one
    s.peers[2].request_vote(4, 0, 192)
    await s.enters(State.FOLLOWER_BALLOT)
    await truncates(s, s.peers[1])


@takes(State.LEADER_LOG_REPLICATION, State.INIT, batches=LOG)
async def test_a_leader_that_waits_for_its_log_to_spread_gives_way_to_a_newer_term(
    s: Script,
) -> None:
    await s.win()
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 is in term 900"


@takes(State.LEADER_REPLAY, State.INIT, batches=COMMITTED, read_seconds=NEVER)
async def test_a_leader_that_replays_gives_way_to_a_newer_term(s: Script) -> None:
    s.peers[1].append_position(await s.win(), 192)
    await s.enters(State.LEADER_REPLAY)
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 is in term 900"


@takes(State.LEADER_INIT, State.INIT, batches=LOG)
async def test_a_leader_that_writes_its_term_gives_way_to_a_newer_one(s: Script) -> None:
    term = await s.win()
    s.disk.latency = 0.4
    s.peers[1].append_position(term, 192)
    await s.enters(State.LEADER_INIT)
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 is in term 900"
    # the write cannot be called back, and the next election waits for it
    await s.enters(State.CANVASS)
    assert s.terms == [(0, 0, 192), (term, 192, None)]


@takes(State.LEADER_READY, State.INIT)
async def test_a_leader_that_waits_for_a_ready_quorum_gives_way_to_a_newer_term(s: Script) -> None:
    await s.win()
    await s.enters(State.LEADER_READY)
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 is in term 900"


@takes(State.FOLLOWER_LOG_REPLICATION, State.INIT)
async def test_a_replay_that_ends_too_early_is_given_up(s: Script) -> None:
    s.peers[1].lead(1, -1, *BEHIND)
    (await s.peers[1].replay()).end()
    assert "the replay ended at 0" in (await s.enters(State.INIT)).reason


@takes(State.FOLLOWER_REPLAY, State.INIT, batches=COMMITTED, read_seconds=NEVER)
async def test_a_follower_that_replays_gives_up_a_leader_of_an_older_term(s: Script) -> None:
    s.peers[1].lead(1, 0, *LEVEL)
    await s.enters(State.FOLLOWER_REPLAY)
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 leads term 900"


@takes(State.FOLLOWER_CATCHUP_INIT, State.INIT)
async def test_a_follower_that_cannot_ask_for_a_replay_gives_up(s: Script) -> None:
    s.network.refuse("h1")
    s.network.break_links("h0", "h1")
    await s.until(lambda: not s.member.links.connected(1))
    await s.until(lambda: s.peers[1].links.connected(ME))
    s.peers[1].lead(0, position=96)
    began = (await s.enters(State.FOLLOWER_CATCHUP_INIT)).at
    ended = await s.enters(State.INIT)
    assert ended.at - began == pytest.approx(s.config.timeouts.leader_heartbeat_timeout)


@takes(State.FOLLOWER_CATCHUP_AWAIT, State.INIT)
async def test_a_follower_whose_replay_does_not_come_gives_up(s: Script) -> None:
    s.peers[1].lead(0, position=96)
    began = (await s.enters(State.FOLLOWER_CATCHUP_AWAIT)).at
    ended = await s.enters(State.INIT)
    assert ended.at - began == pytest.approx(s.config.timeouts.leader_heartbeat_timeout)


@takes(State.FOLLOWER_CATCHUP, State.INIT, batches=LOG)
async def test_a_catch_up_that_makes_no_progress_is_given_up(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(1, 0, *LEVEL, position=288)
    await s.enters(State.FOLLOWER_CATCHUP_AWAIT)
    await leader.open_catchup(192)
    for _ in range(6):  # the leader is alive, only its replay is not
        await trio.sleep(0.1)
        leader.commit(1)
    assert "no progress of the catch-up at 192" in (await s.enters(State.INIT)).reason


@takes(State.FOLLOWER_LOG_INIT, State.INIT, batches=COMMITTED, read_seconds=0.1)
async def test_a_follower_whose_leader_is_replaced_just_then_does_not_join_it(s: Script) -> None:
    s.service.on_advance = lambda _: s.member.on_message(2, CommitPosition(900, 0, 2, 0))
    s.peers[1].lead(1, 0, *LEVEL)
    assert (await s.enters(State.INIT)).reason == "member 2 leads term 900"


@takes(State.FOLLOWER_LOG_AWAIT, State.INIT)
async def test_a_follower_that_the_live_log_has_left_behind_begins_anew(s: Script) -> None:
    s.peers[1].lead(0)
    await s.peers[1].hears(LogSubscribe)
    s.peers[1].join(0, 96)
    assert "catch-up is needed" in (await s.enters(State.INIT)).reason


@takes(State.FOLLOWER_READY, State.INIT, batches=LOG)
async def test_a_follower_that_writes_the_leaders_term_gives_way_to_a_newer_one(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(1, 0, *LEVEL, position=288)
    await s.enters(State.FOLLOWER_CATCHUP_AWAIT)
    await leader.open_catchup(192)
    await leader.hears(LogSubscribe)
    s.disk.latency = 0.4
    leader.join(1, 192)
    leader.say(StopCatchup(1, ME))
    await s.enters(State.FOLLOWER_READY)
    hears_of_a_newer_term(s)
    assert (await s.enters(State.INIT)).reason == "member 2 leads term 900"


def test_every_edge_has_its_test() -> None:
    edges = {(before, after) for before, following in EDGES.items() for after in following}
    assert set(TAKEN) == edges
    assert len(edges) == 49
