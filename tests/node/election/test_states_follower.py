"""The follower: how it joins a leader, what it keeps of its log, and whom it believes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import State
from quorate.simulation.world import TIMEOUTS
from quorate.storage import NodeState
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    LogBatch,
    StaleLeader,
    TermSpan,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, batch, log
from tests.support.script import Script, open_script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

LOG = log((0, 96), (0, 192))
COMMITTED = log((0, 96), (0, 192), commit=96)
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))


# --- joining --------------------------------------------------------------------------------------


@scripted()
@pytest.mark.parametrize("term", [0, 4])
async def test_the_first_term_that_an_empty_member_records_is_the_leaders(
    s: Script, term: int
) -> None:
    await s.follow(1, term, *(TermSpan(t, 0, 0) for t in range(term)), TermSpan(term, 0, -1))
    assert s.terms == [(term, 0, None)]
    assert s.store.node_state == NodeState(term, -1)


@scripted(batches=LOG)
async def test_empty_terms_right_before_the_leaders_need_no_row(s: Script) -> None:
    empty = (TermSpan(1, 192, 192), TermSpan(2, 192, 192))
    await s.follow(1, 3, TermSpan(0, 0, 192), *empty, TermSpan(3, 192, -1), log_term=0)
    assert s.terms == [(0, 0, 192), (3, 192, None)]
    assert State.FOLLOWER_LOG_REPLICATION not in s.path


@scripted()
async def test_a_replicated_term_is_recorded_when_durable_and_not_applied(s: Script) -> None:
    # Aeron waits for the leader's commit, which only counts replicas and promises nothing
    leader = s.peers[1]
    leader.lead(1, -1, TermSpan(0, 0, 192), TermSpan(1, 192, -1), commit=0)
    await (await leader.replay()).send(1, *LOG)
    await s.enters(State.CANVASS)
    assert s.terms == [(0, 0, 192)]
    assert s.service.commands == []
    reports = [m.log_position for m in leader.messages(AppendPosition)]
    assert (reports[0], reports[-1]) == (0, 192)


@scripted()
async def test_a_replicated_term_is_applied_as_far_as_the_leader_has_committed(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(1, -1, TermSpan(0, 0, 192), TermSpan(1, 192, -1), commit=96)
    await (await leader.replay()).send(1, *LOG)
    await s.enters(State.CANVASS)
    assert [command.position for command in s.service.commands] == [0]


@scripted()
async def test_a_term_that_a_fallen_leader_had_less_of_is_completed_from_the_next(
    s: Script,
) -> None:
    one, two = s.peers[1], s.peers[2]
    one.lead(1, -1, TermSpan(0, 0, 96), TermSpan(1, 96, -1))
    await (await one.replay()).send(1, LOG[0])
    await s.enters(State.CANVASS)
    assert s.terms == [(0, 0, 96)]
    spans = (TermSpan(0, 0, 192), TermSpan(1, 192, 192), TermSpan(2, 192, -1))
    two.lead(2, 0, *spans)
    await s.enters(State.INIT)  # the term is opened again
    assert s.terms == [(0, 0, None)]
    await s.enters(State.CANVASS)
    two.lead(2, 0, *spans)
    replay = await two.replay()
    assert (replay.request.position, replay.request.stop_position) == (96, 192)
    await replay.send(2, LOG[1])
    await s.enters(State.CANVASS)
    assert s.terms == [(0, 0, 192)]


@scripted()
async def test_a_gap_in_the_live_log_ends_the_following(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.live(batch(0, 0, 96), batch(0, 192, 288))
    assert (await s.enters(State.INIT)).reason == "gap in the live log: 192 after 96"
    await s.enters(State.CANVASS)
    assert s.store.append_position == 96


@scripted()
async def test_a_damaged_batch_of_the_live_log_is_not_recorded(s: Script) -> None:
    leader = await s.follow(1, 0)
    damaged = bytearray(batch(0, 0, 320))
    damaged[200] ^= 1
    leader.say(LogBatch(0, 0, bytes(damaged)))
    assert "the live log is damaged" in (await s.enters(State.INIT)).reason
    assert s.store.append_position == 0


# --- what is committed ----------------------------------------------------------------------------


@scripted(batches=LOG)
async def test_the_commit_position_never_goes_back(s: Script) -> None:
    leader = await s.follow(1, 0, TermSpan(0, 0, -1), log_term=0)
    leader.commit(0, 192)
    await s.until(lambda: s.member.status().commit_position == 192)
    leader.commit(0, 96)
    leader.lead(0, 0, TermSpan(0, 0, -1), commit=0)
    leader.commit(0, 0)
    await trio.sleep(0.1)
    assert s.state is State.CLOSED
    assert s.member.status().commit_position == 192
    assert len(s.service.commands) == 2


@scripted(batches=LOG)
async def test_the_commit_position_survives_a_change_of_the_leader(s: Script) -> None:
    leader = await s.follow(1, 0, TermSpan(0, 0, -1), log_term=0)
    leader.commit(0, 192)
    await s.until(lambda: s.member.status().commit_position == 192)
    await s.follow(2, 1, *LEVEL, log_term=0)  # which knows of no commit yet
    assert s.member.status().commit_position == 192
    assert len(s.service.commands) == 2


@scripted()
async def test_nothing_is_applied_or_reported_before_it_is_durable(s: Script) -> None:
    leader = await s.follow(1, 0)
    s.disk.latency = 0.2
    leader.live(batch(0, 0, 96))
    leader.commit(0, 96)
    await trio.sleep(0.15)
    assert s.member.status().commit_position == 0
    assert {m.log_position for m in leader.messages(AppendPosition)} == {0}
    leader.commit(0, 96)
    await leader.hears(AppendPosition, lambda m: m.log_position == 96)
    assert s.service.payloads == [b""]


@scripted()
async def test_only_the_leader_says_what_is_committed(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.live(batch(0, 0, 96))
    await s.until(lambda: s.store.append_position == 96)
    s.peers[2].commit(0, 96)
    await trio.sleep(0.1)
    assert s.member.status().commit_position == 0
    assert s.state is State.CLOSED


# --- what is kept ---------------------------------------------------------------------------------


@scripted(batches=log((0, 96), (1, 192), (1, 288)))
async def test_a_late_message_about_our_own_term_does_not_truncate(s: Script) -> None:
    s.peers[1].lead(1, 1, TermSpan(0, 0, 64), TermSpan(1, 64, -1))
    await trio.sleep(0.1)
    assert s.path == [State.CANVASS]
    assert s.store.append_position == 288
    assert s.terms == [(0, 0, 96), (1, 96, None)]


async def test_a_truncation_below_the_commit_position_is_refused(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    async with open_script(tmp_path, batches=COMMITTED) as s:
        s.peers[1].lead(5, 0, *(TermSpan(t, 0, 0) for t in range(5)), TermSpan(5, 0, -1))
        await trio.sleep(0.1)
        assert "to truncate to 0, below the commit position 96" in caplog.text
        assert s.store.node_state.candidate_term == 0
        await s.follow(2, 6, TermSpan(0, 0, 192), TermSpan(6, 192, -1), log_term=0)
    async with open_script(tmp_path) as s:
        assert s.store.append_position == 192
        assert s.terms == [(0, 0, 192), (6, 192, None)]


@scripted(batches=COMMITTED)
async def test_a_truncation_to_the_commit_position_is_none_of_its_business(s: Script) -> None:
    s.peers[1].lead(5, 0, TermSpan(0, 0, 96), TermSpan(5, 96, -1))
    await s.enters(State.INIT)
    assert s.store.append_position == 96


@scripted()
async def test_batches_still_on_their_way_to_the_disk_are_judged_with_the_log(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.live(batch(0, 0, 96, name="kept"))
    await s.until(lambda: s.store.append_position == 96)
    s.disk.latency = 0.2
    leader.live(batch(0, 96, 320, name="doomed"))
    await s.until(lambda: s.store.submitted_position == 320)
    spans = (TermSpan(0, 0, 96), TermSpan(1, 96, -1))
    s.peers[2].lead(1, 0, *spans, position=960, commit=960)  # it lacks the second batch
    await s.enters(State.INIT)
    truncated = await s.enters(State.INIT)
    assert truncated.reason == "truncated uncommitted entries from 96 on"
    assert s.store.append_position == 96
    assert len(s.service.commands) <= 1
    assert all(m.log_position <= 96 for m in s.peers[2].messages(AppendPosition))


# --- whom it believes -----------------------------------------------------------------------------


@scripted()
async def test_a_steady_follower_refuses_a_candidate_whatever_its_term(s: Script) -> None:
    leader = await s.follow(1, 0)
    for _ in range(10):
        leader.commit(0)
        s.peers[2].request_vote(900, 5, 9600)
        vote = await s.peers[2].hears(Vote)
        assert (vote.vote, vote.reason) == (False, VoteReason.LEADER_ALIVE)
        assert vote.voter_candidate_term_id == 0
        await trio.sleep(0.1)
    assert s.state is State.CLOSED
    assert s.store.node_state == NodeState(0, -1)


@scripted()
async def test_a_joining_follower_refuses_a_candidate(s: Script) -> None:
    s.peers[1].lead(0)
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    s.peers[2].request_vote(900)
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.LEADER_ALIVE
    assert s.state is State.FOLLOWER_LOG_AWAIT


@scripted()
@pytest.mark.parametrize("sign", ["commit", "batch"])
async def test_a_follower_gives_up_a_leader_that_is_silent_for_the_timeout(
    s: Script, sign: str
) -> None:
    leader = await s.follow(1, 0)
    for i in range(10):
        if sign == "commit":
            leader.commit(0)
        else:
            leader.live(batch(0, i * 96, i * 96 + 96))
        await trio.sleep(0.1)
    heard = trio.current_time() - 0.1
    ended = await s.enters(State.INIT)
    assert (ended.before, ended.reason) == (State.CLOSED, "leader heartbeat timeout")
    assert ended.at - heard == pytest.approx(TIMEOUTS.leader_heartbeat_timeout, abs=0.001)
    s.peers[2].request_vote(900, 0, 9600)
    assert (await s.peers[2].hears(Vote)).vote  # now it would


@scripted()
async def test_others_do_not_keep_a_silent_leader_alive(s: Script) -> None:
    await s.follow(1, 0)
    for _ in range(10):
        s.peers[2].canvass(0, 0)
        s.peers[2].append_position(0, 0, AppendFlags.READY)
        await trio.sleep(0.1)
    assert s.path[6] is State.INIT


@scripted()
@pytest.mark.parametrize("says", ["canvass", "request_vote"])
async def test_a_follower_leaves_at_once_when_its_leader_looks_for_another(
    s: Script, says: str
) -> None:
    leader = await s.follow(1, 0)
    if says == "canvass":
        leader.canvass(0, 0)
    else:
        leader.request_vote(1, 0)
    ended = await s.enters(State.INIT, within=0.01)
    assert ended.reason == "leader 1 has given up"
    await s.enters(State.CANVASS if says == "canvass" else State.FOLLOWER_BALLOT, within=0.1)


@scripted()
async def test_a_follower_leaves_at_once_when_the_leaders_link_ends(s: Script) -> None:
    await s.follow(1, 0)
    s.stop_peer(1)
    ended = await s.enters(State.INIT, within=0.01)
    assert ended.reason == "log disconnected from leader"


@scripted(promised=NodeState(3, -1))
async def test_a_follower_tells_leaders_of_older_terms_that_they_are_stale(s: Script) -> None:
    await s.follow(1, 5, *(TermSpan(t, 0, 0) for t in range(5)), TermSpan(5, 0, -1))
    s.peers[2].commit(4, 96)
    assert await s.peers[2].hears(StaleLeader) == StaleLeader(5, ME)
    s.peers[2].lead(4)
    assert await s.peers[2].hears(StaleLeader) == StaleLeader(5, ME)
    assert s.state is State.CLOSED


@scripted()
async def test_a_follower_goes_over_to_a_newer_leader_by_its_first_message(s: Script) -> None:
    await s.follow(1, 0)
    s.peers[2].commit(7)
    ended = await s.enters(State.INIT)
    assert (ended.before, ended.reason) == (State.CLOSED, "member 2 leads term 7")
    assert (await s.peers[2].hears(CanvassPosition)).log_leadership_term_id == 0
    empty = tuple(TermSpan(t, 0, 0) for t in range(7))
    await s.follow(2, 7, *empty, TermSpan(7, 0, -1), log_term=0)
    assert s.member.status().leader_id == 2


@scripted()
async def test_a_second_leader_of_the_same_term_is_not_followed(s: Script) -> None:
    await s.follow(1, 0)
    s.peers[2].lead(0)
    await trio.sleep(TIMEOUTS.leader_heartbeat_timeout / 2)
    assert (s.state, s.member.status().leader_id) == (State.CLOSED, 1)


@scripted(batches=LOG)
async def test_what_a_leader_had_repeated_is_forgotten_once_it_is_followed(s: Script) -> None:
    for _ in range(3):
        s.peers[1].lead(0, 0, TermSpan(0, 0, -1), position=192)
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    s.peers[1].join(0, 192)
    await s.enters(State.CLOSED)
    s.stop_peer(1)
    await s.enters(State.CANVASS)
    s.peers[2].canvass(0, 0)
    await s.enters(State.NOMINATE, within=0.1)
    assert s.path[-3:] == [State.INIT, State.CANVASS, State.NOMINATE]
