"""Every edge of the election but those to INIT, each taken by a test of its own.

The diagram is `quorate.node.protocol.states.EDGES`; `test_edges_back.py` takes the edges to INIT
and checks that none is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.node import State
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    LogBatch,
    LogSubscribe,
    NewLeadershipTerm,
    RequestVote,
    StopCatchup,
    TermSpan,
    Vote,
)
from tests.support.edges import takes
from tests.support.peers import ME, Peer, batch, log

if TYPE_CHECKING:
    from tests.support.script import Script

LOG = log((0, 96), (0, 192))  # term 0, not closed
BEHIND = (TermSpan(0, 0, 96), TermSpan(1, 96, -1))  # the terms of a leader that has more than ""
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))  # of one that has what LOG has


# --- finding a leader -----------------------------------------------------------------------------


@takes(State.INIT, State.LEADER_LOG_REPLICATION, size=1)
async def test_the_only_member_elects_itself(s: Script) -> None:
    await s.enters(State.LEADER_LOG_REPLICATION)
    assert s.store.node_state.candidate_term == 0
    assert s.store.node_state.voted_for == ME


@takes(State.INIT, State.CANVASS)
async def test_one_of_several_members_looks_for_a_leader(s: Script) -> None:
    assert s.path == [State.CANVASS]
    assert (await s.peers[1].hears(CanvassPosition)).log_leadership_term_id == -1


@takes(State.CANVASS, State.NOMINATE)
async def test_a_member_for_which_all_would_vote_nominates_itself(s: Script) -> None:
    s.peers[1].canvass()
    await s.until(lambda: s.path == [State.CANVASS], within=0.1)
    s.peers[2].canvass()
    assert (await s.enters(State.NOMINATE)).reason == "unanimous candidate"


@takes(State.CANVASS, State.FOLLOWER_BALLOT)
async def test_a_canvasser_votes_for_a_candidate(s: Script) -> None:
    s.peers[1].request_vote(0)
    assert (await s.peers[1].hears(Vote)).vote


@takes(State.CANVASS, State.FOLLOWER_LOG_REPLICATION)
async def test_a_canvasser_that_lacks_a_term_replicates_it(s: Script) -> None:
    s.peers[1].lead(1, -1, *BEHIND)
    request = (await s.peers[1].replay()).request
    assert (request.position, request.stop_position) == (0, 96)


@takes(State.CANVASS, State.FOLLOWER_REPLAY)
async def test_a_canvasser_that_reaches_the_leaders_term_follows(s: Script) -> None:
    s.peers[1].lead(0)
    assert (await s.enters(State.FOLLOWER_REPLAY)).term == 0


@takes(State.NOMINATE, State.CANVASS)
async def test_a_nominee_to_whom_a_leader_speaks_of_another_log_term_canvasses(s: Script) -> None:
    await s.nominate()
    s.peers[1].lead(1, 0, *BEHIND)
    await s.enters(State.CANVASS)
    assert s.store.node_state.candidate_term == -1


@takes(State.NOMINATE, State.CANDIDATE_BALLOT)
async def test_a_nominee_raises_the_term_and_asks_for_votes(s: Script) -> None:
    await s.nominate()
    assert (await s.peers[2].hears(RequestVote)).candidate_term_id == 0
    assert s.store.node_state.voted_for == ME


@takes(State.NOMINATE, State.FOLLOWER_BALLOT)
async def test_a_nominee_votes_for_a_candidate_that_was_quicker(s: Script) -> None:
    await s.nominate()
    s.peers[2].request_vote(0)
    assert (await s.peers[2].hears(Vote)).vote


@takes(State.NOMINATE, State.FOLLOWER_LOG_REPLICATION)
async def test_a_nominee_replicates_from_a_leader_that_appears(s: Script) -> None:
    await s.nominate()
    s.peers[1].lead(1, -1, *BEHIND)
    await s.peers[1].replay()


@takes(State.NOMINATE, State.FOLLOWER_REPLAY)
async def test_a_nominee_follows_a_leader_that_appears(s: Script) -> None:
    await s.nominate()
    s.peers[1].lead(0)
    await s.enters(State.FOLLOWER_REPLAY)


# --- ballots --------------------------------------------------------------------------------------


@takes(State.CANDIDATE_BALLOT, State.CANVASS)
async def test_a_candidate_without_votes_canvasses_again_when_the_time_is_over(s: Script) -> None:
    await s.stand()
    began = s.transitions[-1].at
    ended = await s.enters(State.CANVASS)
    assert ended.at - began == pytest.approx(s.config.timeouts.election_timeout)


@takes(State.CANDIDATE_BALLOT, State.FOLLOWER_BALLOT)
async def test_a_candidate_votes_for_another_in_a_newer_term(s: Script) -> None:
    term = await s.stand()
    s.peers[1].request_vote(term + 1)
    assert (await s.peers[1].hears(Vote)).vote


@takes(State.CANDIDATE_BALLOT, State.LEADER_LOG_REPLICATION)
async def test_a_candidate_with_all_votes_wins_at_once(s: Script) -> None:
    term = await s.stand()
    s.peers[1].vote(term)
    await s.until(lambda: s.state is State.CANDIDATE_BALLOT, within=0.01)
    s.peers[2].vote(term)
    assert (await s.enters(State.LEADER_LOG_REPLICATION)).reason == "unanimous leader"


@takes(State.CANDIDATE_BALLOT, State.FOLLOWER_LOG_REPLICATION)
async def test_a_candidate_replicates_from_the_rival_that_won(s: Script) -> None:
    term = await s.stand()
    s.peers[1].lead(term + 1, -1, TermSpan(0, 0, 96), TermSpan(term + 1, 96, -1))
    await s.peers[1].replay()


@takes(State.CANDIDATE_BALLOT, State.FOLLOWER_REPLAY)
async def test_a_candidate_follows_the_rival_that_won(s: Script) -> None:
    s.peers[2].lead(await s.stand())
    await s.enters(State.FOLLOWER_REPLAY)


@takes(State.FOLLOWER_BALLOT, State.CANVASS)
async def test_a_voter_canvasses_when_no_leader_emerges(s: Script) -> None:
    s.peers[1].request_vote(7)
    began = (await s.enters(State.FOLLOWER_BALLOT)).at
    ended = await s.enters(State.CANVASS)
    # a candidate needs one timeout before a majority is enough, so a voter waits for two
    assert ended.at - began == pytest.approx(2 * s.config.timeouts.election_timeout)


@takes(State.FOLLOWER_BALLOT, State.FOLLOWER_LOG_REPLICATION)
async def test_a_voter_replicates_from_the_winner(s: Script) -> None:
    s.peers[1].request_vote(1, 0, 96)
    await s.enters(State.FOLLOWER_BALLOT)
    s.peers[1].lead(1, -1, *BEHIND)
    await s.peers[1].replay()


@takes(State.FOLLOWER_BALLOT, State.FOLLOWER_REPLAY)
async def test_a_voter_follows_the_winner(s: Script) -> None:
    s.peers[1].request_vote(0)
    await s.enters(State.FOLLOWER_BALLOT)
    s.peers[1].lead(0)
    await s.enters(State.FOLLOWER_REPLAY)


# --- leading --------------------------------------------------------------------------------------


@takes(State.LEADER_LOG_REPLICATION, State.LEADER_REPLAY, batches=LOG)
async def test_a_leader_goes_on_once_a_quorum_has_its_log(s: Script) -> None:
    term = await s.win()
    s.peers[1].append_position(term, 96)
    await s.peers[1].hears(NewLeadershipTerm, lambda m: m.log_position == 192)
    assert s.state is State.LEADER_LOG_REPLICATION
    s.peers[1].append_position(term, 192)
    assert (await s.enters(State.LEADER_REPLAY)).commit_position == 0


@takes(
    State.LEADER_REPLAY,
    State.LEADER_INIT,
    batches=log((0, 96), (0, 192), commit=96),
    read_seconds=0.3,
)
async def test_a_leader_applies_what_is_known_to_be_committed_and_no_more(s: Script) -> None:
    term = await s.win()
    s.peers[1].append_position(term, 192)
    await s.enters(State.LEADER_REPLAY)
    await s.enters(State.LEADER_INIT)
    assert [command.position for command in s.service.commands] == [0]


@takes(State.LEADER_INIT, State.LEADER_READY, batches=LOG)
async def test_a_leader_writes_its_term_into_its_recording_log(s: Script) -> None:
    term = await s.win()
    s.peers[1].append_position(term, 192)
    await s.enters(State.LEADER_READY)
    assert s.terms == [(0, 0, 192), (1, 192, None)]


@takes(State.LEADER_READY, State.CLOSED)
async def test_a_leader_opens_its_term_when_a_quorum_is_ready(s: Script) -> None:
    term = await s.win()
    await s.enters(State.LEADER_READY)
    s.peers[1].append_position(term, 0, AppendFlags.READY)
    assert (await s.enters(State.CLOSED)).reason == "2 of 3 members are ready"
    assert (await s.peers[1].hears(CommitPosition)).leadership_term_id == term


# --- following ------------------------------------------------------------------------------------


@takes(State.FOLLOWER_LOG_REPLICATION, State.CANVASS)
async def test_a_term_that_was_replicated_is_recorded_and_the_canvass_goes_on(s: Script) -> None:
    s.peers[1].lead(1, -1, *BEHIND)
    await (await s.peers[1].replay()).send(1, batch(0, 0, 96))
    await s.enters(State.CANVASS)
    assert s.terms == [(0, 0, 96)]


@takes(State.FOLLOWER_REPLAY, State.FOLLOWER_CATCHUP_INIT)
async def test_a_follower_that_lacks_a_part_of_the_term_catches_up(s: Script) -> None:
    s.peers[1].lead(0, position=96)
    await s.enters(State.FOLLOWER_CATCHUP_INIT)


@takes(State.FOLLOWER_REPLAY, State.FOLLOWER_LOG_INIT)
async def test_a_follower_that_lacks_nothing_joins_the_live_log(s: Script) -> None:
    s.peers[1].lead(0)
    await s.enters(State.FOLLOWER_LOG_INIT)


@takes(State.FOLLOWER_CATCHUP_INIT, State.FOLLOWER_CATCHUP_AWAIT, batches=LOG)
async def test_a_follower_asks_for_a_replay_from_the_end_of_its_log(s: Script) -> None:
    s.peers[1].lead(1, 0, *LEVEL, position=288)
    assert await s.peers[1].hears(CatchupPosition) == CatchupPosition(1, 192, ME, "h0:7000")


async def catch_up(s: Script, leader: Peer) -> None:
    """Bring a member whose log is LOG to FOLLOWER_CATCHUP, with one more batch of term 1."""
    leader.lead(1, 0, *LEVEL, position=288)
    await s.enters(State.FOLLOWER_CATCHUP_AWAIT)
    stream = await leader.open_catchup(192)
    await stream.send(LogBatch(1, 0, batch(1, 192, 288)))
    await s.enters(State.FOLLOWER_CATCHUP)


@takes(State.FOLLOWER_CATCHUP_AWAIT, State.FOLLOWER_CATCHUP, batches=LOG)
async def test_a_follower_whose_replay_arrives_records_it(s: Script) -> None:
    await catch_up(s, s.peers[1])
    report = await s.peers[1].hears(AppendPosition, lambda m: m.log_position == 288)
    assert report.flags is AppendFlags.CATCHUP


@takes(State.FOLLOWER_CATCHUP, State.FOLLOWER_LOG_INIT, batches=LOG)
async def test_a_catch_up_ends_when_it_met_the_live_log_and_the_leader_says_so(s: Script) -> None:
    leader = s.peers[1]
    await catch_up(s, leader)
    await leader.hears(LogSubscribe)
    leader.join(1, 288)
    await leader.hears(AppendPosition, lambda m: m.log_position == 288)
    assert s.state is State.FOLLOWER_CATCHUP
    leader.say(StopCatchup(1, ME))
    await s.enters(State.FOLLOWER_LOG_INIT)


@takes(State.FOLLOWER_LOG_INIT, State.FOLLOWER_READY, batches=LOG)
async def test_after_a_catch_up_the_live_log_is_joined_already(s: Script) -> None:
    leader = s.peers[1]
    await catch_up(s, leader)
    leader.join(1, 288)
    leader.say(StopCatchup(1, ME))
    await s.enters(State.FOLLOWER_READY)
    assert State.FOLLOWER_LOG_AWAIT not in s.path
    assert len(leader.messages(LogSubscribe)) == 1


@takes(State.FOLLOWER_LOG_INIT, State.FOLLOWER_LOG_AWAIT)
async def test_a_follower_with_nothing_to_catch_up_asks_for_the_live_log(s: Script) -> None:
    s.peers[1].lead(0)
    await s.peers[1].hears(LogSubscribe)


@takes(State.FOLLOWER_LOG_AWAIT, State.FOLLOWER_READY, batches=LOG)
async def test_a_follower_is_ready_when_the_live_log_begins_where_its_own_ends(s: Script) -> None:
    s.peers[1].lead(1, 0, *LEVEL)
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    s.peers[1].join(1, 192)
    await s.enters(State.FOLLOWER_READY)
    assert s.terms == [(0, 0, 192), (1, 192, None)]


@takes(State.FOLLOWER_READY, State.CLOSED)
async def test_a_follower_that_has_told_that_it_is_ready_is_done(s: Script) -> None:
    leader = await s.follow(1, 0)
    told = await leader.hears(AppendPosition, lambda m: m.flags is AppendFlags.READY)
    assert told.log_position == 0
