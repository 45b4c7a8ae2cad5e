"""Canvasses and ballots: how a member becomes a candidate, votes, and wins or does not.

Most of these are cases of Aeron's ElectionTest, with the changes that make the protocol safe.
"""

from __future__ import annotations

import itertools

import pytest
import trio

from quorate.node import State
from quorate.node.protocol.states import BALLOT_STATES
from quorate.simulation.world import TIMEOUTS
from quorate.storage import NodeState
from quorate.transport import (
    PROTOCOL_VERSION,
    CanvassPosition,
    LeadershipCession,
    NewLeadershipTerm,
    RequestVote,
    StaleLeader,
    TermSpan,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, log, untimed
from tests.support.script import Script, scripted

LOG = log((0, 96), (0, 192))


# --- alone ----------------------------------------------------------------------------------------


@scripted(size=1)
async def test_the_only_member_leads_a_new_term_after_each_start(s: Script) -> None:
    await s.enters(State.CLOSED)
    assert s.store.node_state == NodeState(0, ME)
    assert await s.member.command(b"one") == b"1"
    end = s.store.append_position
    await s.restart()
    await s.enters(State.CLOSED)
    assert s.store.node_state == NodeState(1, ME)
    assert s.terms == [(0, 0, end), (1, end, None)]
    assert await s.member.command(b"two") == b"2"  # the first one was applied again


# --- canvass --------------------------------------------------------------------------------------


@scripted(batches=LOG)
async def test_a_canvasser_repeats_its_position_until_all_have_answered(s: Script) -> None:
    await trio.sleep(0.5)
    heard = [each for each in s.peers[1].heard if isinstance(each.message, CanvassPosition)]
    assert {each.message for each in heard} == {CanvassPosition(0, 192, 0, ME, PROTOCOL_VERSION)}
    pauses = [after.at - one.at for one, after in itertools.pairwise(heard)]
    assert len(pauses) > 20
    assert pauses == [pytest.approx(TIMEOUTS.canvass_interval)] * len(pauses)
    assert s.path == [State.CANVASS]
    await s.nominate()


@scripted()
async def test_after_a_start_a_majority_waits_for_the_canvass_deadline(s: Script) -> None:
    s.peers[1].canvass()
    nominated = await s.enters(State.NOMINATE)
    assert nominated.reason == "quorum candidate"
    late = nominated.at - TIMEOUTS.startup_canvass
    assert 0 <= late <= TIMEOUTS.canvass_interval


@scripted(size=5)
async def test_without_a_majority_a_canvass_has_no_end_and_raises_no_term(s: Script) -> None:
    s.peers[1].canvass()  # willing
    s.peers[2].canvass(3, 96)  # not willing
    await trio.sleep(10)
    assert s.path == [State.CANVASS]
    assert s.store.node_state == NodeState(-1, -1)


@pytest.mark.parametrize(("log_term", "position"), [(0, 224), (1, 96)])
@scripted(batches=LOG)
async def test_a_member_with_a_shorter_log_than_another_is_no_unanimous_candidate(
    s: Script, log_term: int, position: int
) -> None:
    s.peers[1].canvass(log_term, position)
    s.peers[2].canvass(0, 192)
    await trio.sleep(1.0)
    assert s.path == [State.CANVASS]
    s.peers[1].canvass(0, 192)  # it has truncated what was not committed
    await s.enters(State.NOMINATE)


@scripted()
async def test_nobody_waits_for_a_member_whose_port_refuses(s: Script) -> None:
    s.stop_peer(2)
    s.peers[1].canvass()
    nominated = await s.enters(State.NOMINATE)
    assert nominated.reason == "unanimous candidate"
    assert nominated.at < TIMEOUTS.startup_canvass


@scripted()
async def test_nobody_waits_for_the_leader_that_closed_in_order(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.say(LeadershipCession(0, 0, 1))
    assert (await s.enters(State.INIT)).reason == "leader 1 closed in order"
    s.peers[2].canvass(0, 0)
    assert (await s.enters(State.NOMINATE)).reason == "unanimous candidate"


@scripted()
async def test_a_leader_that_closed_in_order_and_came_back_is_waited_for(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.say(LeadershipCession(0, 0, 1))
    await s.enters(State.CANVASS)
    leader.canvass(0, 96)
    await trio.sleep(0.01)
    s.peers[2].canvass(0, 0)
    await trio.sleep(0.1)
    assert s.state is State.CANVASS


@scripted()
async def test_a_later_canvass_takes_a_majority_once_no_leader_was_heard(s: Script) -> None:
    term = await s.stand()
    await s.enters(State.CANVASS)
    for _ in range(8):  # a leader that the member cannot follow yet
        s.peers[2].commit(term)
        s.peers[1].canvass()
        await trio.sleep(0.1)
    assert s.state is State.CANVASS
    silent_since = trio.current_time() - 0.1
    nominated = await s.enters(State.NOMINATE)
    assert nominated.reason == "quorum candidate"
    waited = nominated.at - silent_since
    assert 0 < waited - TIMEOUTS.leader_heartbeat_timeout < TIMEOUTS.canvass_interval + 0.001


@scripted()
async def test_each_canvass_begins_without_what_the_last_one_heard(s: Script) -> None:
    await s.stand()
    await s.enters(State.CANVASS)
    await trio.sleep(3.0)
    assert s.state is State.CANVASS


# --- nomination -----------------------------------------------------------------------------------


@scripted()
async def test_a_nominee_waits_less_than_half_an_election_timeout(s: Script) -> None:
    await s.nominate()
    began = s.transitions[-1].at
    stood = await s.enters(State.CANDIDATE_BALLOT)
    assert 0 < stood.at - began <= TIMEOUTS.election_timeout / 2 + 0.001  # and the disk


@scripted()
async def test_a_nominee_goes_on_canvassing(s: Script) -> None:
    await s.nominate()
    s.peers[2].forget()
    await s.peers[2].hears(CanvassPosition)
    assert s.state is State.NOMINATE


@scripted()
async def test_a_leader_that_appears_during_the_nomination_keeps_its_term(s: Script) -> None:
    await s.nominate()
    s.peers[1].lead(3)
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    assert s.store.node_state == NodeState(3, -1)
    assert s.peers[1].messages(RequestVote) == []


@pytest.mark.parametrize("hint", ["vote", "commit", "stale"])
@scripted()
async def test_a_nomination_jumps_over_the_highest_term_heard(s: Script, hint: str) -> None:
    term = await s.stand()
    match hint:
        case "vote":
            s.peers[1].vote(term, granted=False, own_term=40)
        case "commit":
            s.peers[1].commit(40)
        case _:
            s.peers[1].say(StaleLeader(40, 1))
    await s.enters(State.CANVASS)
    assert await s.stand() == 41


# --- the candidate --------------------------------------------------------------------------------


@scripted(batches=LOG)
async def test_a_request_for_votes_tells_where_the_log_ends(s: Script) -> None:
    assert await s.stand() == 1
    for peer in s.peers.values():
        assert await peer.hears(RequestVote) == RequestVote(0, 192, 1, ME, PROTOCOL_VERSION)


@scripted()
async def test_only_those_are_asked_again_that_have_not_answered(s: Script) -> None:
    term = await s.stand()
    s.peers[1].vote(term)
    await s.enters(State.LEADER_LOG_REPLICATION)
    assert len(s.peers[1].messages(RequestVote)) == 1
    assert len(s.peers[2].messages(RequestVote)) > 10


@scripted()
async def test_a_majority_wins_when_the_ballot_is_over_and_not_before(s: Script) -> None:
    term = await s.stand()
    began = s.transitions[-1].at
    s.peers[1].vote(term)
    won = await s.enters(State.LEADER_LOG_REPLICATION)
    assert won.reason == "quorum leader"
    assert won.at - began == pytest.approx(TIMEOUTS.election_timeout)


@scripted()
async def test_after_a_split_vote_the_next_term_can_be_won(s: Script) -> None:
    term = await s.stand()
    for peer in s.peers.values():
        peer.vote(term, granted=False)
    await s.enters(State.CANVASS)
    assert await s.win() == term + 1


@scripted()
async def test_one_refusal_vetoes_a_majority_twice_and_not_a_third_time(s: Script) -> None:
    for after in (State.CANVASS, State.CANVASS, State.LEADER_LOG_REPLICATION):
        term = await s.stand()
        s.peers[1].vote(term)
        s.peers[2].vote(term, granted=False)
        await s.enters(after)
    assert s.path.count(State.LEADER_LOG_REPLICATION) == 1


@scripted(promised=NodeState(6, 1))
async def test_votes_of_another_ballot_are_not_counted(s: Script) -> None:
    term = await s.stand()
    for peer in s.peers.values():
        peer.vote(term - 1)
        peer.vote(term + 1)
        message = Vote(term, -1, 0, 2, peer.member_id, True, term, VoteReason.GRANTED)
        peer.say(message)  # for another candidate
    assert (await s.enters(State.CANVASS)).reason == f"ballot of term {term} lost, votes {{}}"


# --- the voter ------------------------------------------------------------------------------------


@scripted(batches=LOG)
async def test_a_vote_tells_whom_for_and_where_the_voters_log_ends(s: Script) -> None:
    s.peers[1].request_vote(3, 0, 192)
    expected = Vote(3, 0, 192, 1, ME, True, 3, VoteReason.GRANTED)
    assert untimed(await s.peers[1].hears(Vote)) == expected
    assert s.store.node_state == NodeState(3, 1)


@scripted()
async def test_a_repeated_request_is_answered_alike_and_another_candidate_refused(
    s: Script,
) -> None:
    s.peers[1].request_vote(3)
    first = untimed(await s.peers[1].hears(Vote))
    s.peers[1].request_vote(3)
    assert untimed(await s.peers[1].hears(Vote)) == first
    s.peers[2].request_vote(3)
    refused = Vote(3, -1, 0, 2, ME, False, 3, VoteReason.ALREADY_VOTED)
    assert untimed(await s.peers[2].hears(Vote)) == refused
    await s.restart()
    s.peers[2].request_vote(3)
    assert untimed(await s.peers[2].hears(Vote)) == refused
    # Which store of it had our vote is not durable. A vote is lost by that, and never given twice.
    s.peers[1].request_vote(3)
    again = untimed(await s.peers[1].hears(Vote))
    assert again == Vote(3, -1, 0, 1, ME, False, 3, VoteReason.ALREADY_VOTED)


@scripted(promised=NodeState(7, 2))
async def test_a_request_of_an_older_term_is_refused_and_told_the_voters_own(s: Script) -> None:
    s.peers[1].request_vote(6)
    expected = Vote(6, -1, 0, 1, ME, False, 7, VoteReason.TERM)
    assert untimed(await s.peers[1].hears(Vote)) == expected
    assert s.state is State.CANVASS


@scripted(batches=LOG)
async def test_a_candidate_that_is_behind_is_refused_and_its_term_outdone(s: Script) -> None:
    s.peers[1].request_vote(5, 0, 96)
    expected = Vote(5, 0, 192, 1, ME, False, 5, VoteReason.LOG_NEWER)
    assert untimed(await s.peers[1].hears(Vote)) == expected
    assert s.store.node_state == NodeState(5, -1)
    assert s.state is State.CANVASS
    assert await s.stand() == 6


@scripted()
async def test_a_request_in_the_name_of_another_is_ignored(s: Script) -> None:
    s.peers[1].say(RequestVote(-1, 0, 3, 2))
    await trio.sleep(0.1)
    assert s.peers[1].messages(Vote) == []
    assert s.store.node_state == NodeState(-1, -1)


@scripted()
async def test_a_voter_that_votes_again_waits_for_the_second_candidate(s: Script) -> None:
    s.peers[1].request_vote(7)
    await s.enters(State.FOLLOWER_BALLOT)
    await trio.sleep(0.3)
    s.peers[2].request_vote(8)
    assert (await s.peers[2].hears(Vote)).vote
    voted = trio.current_time()
    ended = await s.enters(State.CANVASS)
    assert ended.at - voted == pytest.approx(2 * TIMEOUTS.election_timeout, abs=0.002)


# --- stale leaders --------------------------------------------------------------------------------


async def to(s: Script, state: State) -> None:
    """Take a member that has promised term 5 to a state of the ballot."""
    if state is State.NOMINATE:
        await s.nominate()
    elif state is State.CANDIDATE_BALLOT:
        assert await s.stand() == 6
    elif state is State.FOLLOWER_BALLOT:
        s.peers[2].request_vote(6)
        await s.enters(State.FOLLOWER_BALLOT)


@pytest.mark.parametrize(
    "state", sorted(BALLOT_STATES), ids=[s.name for s in sorted(BALLOT_STATES)]
)
@scripted(promised=NodeState(5, 2))
async def test_a_leader_below_the_promised_term_is_told_so_and_not_followed(
    s: Script, state: State
) -> None:
    await to(s, state)
    promised = s.store.node_state
    s.peers[1].lead(4, -1, TermSpan(4, 0, -1), commit=96)
    told = StaleLeader(promised.candidate_term, ME)
    assert await s.peers[1].hears(StaleLeader) == told
    s.peers[1].commit(4, 96)
    assert await s.peers[1].hears(StaleLeader) == told
    assert (s.state, s.store.node_state) == (state, promised)
    assert s.member.status().commit_position == 0


@scripted(promised=NodeState(5, 2))
async def test_a_stale_leader_does_not_put_off_the_election(s: Script) -> None:
    await s.stand()
    await s.enters(State.CANVASS)
    await trio.sleep(1.0)
    s.peers[2].commit(4)
    s.peers[1].canvass()
    await s.enters(State.NOMINATE, within=TIMEOUTS.canvass_interval)


@scripted()
async def test_a_leader_in_the_name_of_another_is_not_followed(s: Script) -> None:
    message = s.peers[2].new_term(0)
    assert isinstance(message, NewLeadershipTerm)
    s.peers[1].say(message)
    await trio.sleep(0.1)
    assert s.path == [State.CANVASS]
