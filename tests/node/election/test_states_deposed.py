"""What deposes a leader, what does not, and what it does then."""

from __future__ import annotations

import pytest
import trio

from quorate.node import State
from quorate.simulation.world import TIMEOUTS
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    CommitPosition,
    NewLeadershipTerm,
    StaleLeader,
    TermSpan,
)
from tests.support.peers import ME, log
from tests.support.script import Script, scripted

LOG = log((0, 96), (0, 192))


@scripted()
@pytest.mark.parametrize(
    "message",
    [
        StaleLeader(900, 2),
        CommitPosition(900, 0, 2, 0),
        AppendPosition(900, 0, 2, AppendFlags.NONE, 0),
    ],
    ids=["StaleLeader", "CommitPosition", "AppendPosition"],
)
async def test_a_leader_steps_down_when_somebody_lives_in_a_newer_term(
    s: Script, message: StaleLeader | CommitPosition | AppendPosition
) -> None:
    await s.lead()
    assert s.member.status().role == "leader"
    s.peers[2].say(message)
    ended = await s.enters(State.INIT)
    assert (ended.before, ended.reason) == (State.CLOSED, "member 2 is in term 900")
    await s.enters(State.CANVASS)
    assert s.member.status().role == "follower"
    assert not s.member.topology.is_leader
    assert s.store.node_state.candidate_term == 0
    assert await s.stand() == 901


@scripted()
async def test_a_leader_in_its_election_gives_up_when_a_canvasser_has_log_of_a_newer_term(
    s: Script,
) -> None:
    await s.win()
    await s.enters(State.LEADER_READY)
    s.peers[2].canvass(7, 960)
    assert (await s.enters(State.INIT, within=0.1)).reason == "member 2 has log of term 7"
    await s.enters(State.CANVASS)


@scripted()
async def test_a_deposed_leader_follows_by_the_very_message_that_deposed_it(s: Script) -> None:
    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    end = s.store.append_position
    spans = (TermSpan(0, 0, end), TermSpan(9, end, -1))
    await s.follow(2, 9, *spans, log_term=0)
    assert s.path[-7:] == [
        State.INIT,
        State.CANVASS,
        State.FOLLOWER_REPLAY,
        State.FOLLOWER_LOG_INIT,
        State.FOLLOWER_LOG_AWAIT,
        State.FOLLOWER_READY,
        State.CLOSED,
    ]
    assert s.member.status().leader_id == 2


@scripted(batches=LOG)
async def test_messages_of_older_terms_do_not_disturb_a_leader(s: Script) -> None:
    assert await s.lead() == 1
    peer = s.peers[2]
    peer.say(StaleLeader(0, 2), StaleLeader(1, 2))
    peer.append_position(0, 960)
    peer.vote(1)
    peer.commit(0, 960)
    assert await peer.hears(StaleLeader) == StaleLeader(1, ME)
    peer.lead(0)
    assert await peer.hears(StaleLeader) == StaleLeader(1, ME)
    assert s.state is State.CLOSED


@scripted()
async def test_a_leader_that_no_quorum_answers_steps_down_after_the_timeout(s: Script) -> None:
    await s.lead()
    for _ in range(20):  # longer than the doubled timeout of its election
        s.peers[1].append_position(0, 0, AppendFlags.READY)
        await trio.sleep(0.1)
    answered = trio.current_time() - 0.1
    ended = await s.enters(State.INIT)
    assert ended.reason == "inactive follower quorum"
    assert ended.at - answered == pytest.approx(TIMEOUTS.leader_heartbeat_timeout, abs=0.002)


@scripted()
async def test_canvassing_members_are_no_quorum(s: Script) -> None:
    await s.lead()
    heard = trio.current_time()
    for _ in range(20):
        for peer in s.peers.values():
            peer.canvass()
        await trio.sleep(0.1)
    ended = next(t for t in s.transitions if t.after is State.INIT)
    assert ended.reason == "inactive follower quorum"
    # the timeout of the election, which is twice as long, may still be running
    assert ended.at - heard < 2 * TIMEOUTS.leader_heartbeat_timeout + 0.01


@scripted()
async def test_a_leader_that_hears_of_another_one_of_its_term_leads_no_more(s: Script) -> None:
    term = await s.lead()
    s.peers[2].lead(term)
    ended = await s.enters(State.INIT)
    assert ended.reason == f"members 2 and 0 both lead term {term}"
    assert await s.stand() > term


@scripted()
async def test_a_deposed_leader_begins_its_next_term_with_another_log_session(s: Script) -> None:
    sessions: list[int] = []
    for newer in (50, 90):
        s.peers[1].forget()
        await s.lead()
        sessions.append((await s.peers[1].hears(NewLeadershipTerm)).log_session_id)
        s.peers[2].say(StaleLeader(newer, 2))
        await s.enters(State.CANVASS)
    assert sessions[0] != sessions[1]
