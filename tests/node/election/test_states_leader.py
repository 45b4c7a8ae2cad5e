"""The leader: what it waits for before it commits anything, what it counts, and what deposes it."""

from __future__ import annotations

import pytest
import trio

from quorate.node import State
from quorate.node.leader.commit import AT_ONCE_BYTES, PAUSE_SECONDS
from quorate.simulation.world import TIMEOUTS
from quorate.storage import decode_header_untrusted
from quorate.transport import (
    AppendFlags,
    CommitPosition,
    LogBatch,
    LogJoined,
    LogSubscribe,
    NewLeadershipTerm,
    TermSpan,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, Peer, log
from tests.support.script import Script, scripted

LOG = log((0, 96), (0, 192))
COMMITTED = log((0, 96), (0, 192), commit=96)
NEVER = 1000.0  # seconds


def published(peer: Peer) -> list[int]:
    """The commit positions that a peer was told of, each once."""
    told = [m.log_position for m in peer.messages(CommitPosition)]
    told += [m.commit_position for m in peer.messages(NewLeadershipTerm)]
    told += [decode_header_untrusted(m.batch).commit_position for m in peer.messages(LogBatch)]
    return sorted(set(told))


# --- before the election is closed ----------------------------------------------------------------


@scripted(batches=COMMITTED)
async def test_nothing_more_is_committed_before_a_quorum_has_recorded_the_new_term(
    s: Script,
) -> None:
    term = await s.win()
    for peer in s.peers.values():
        peer.append_position(term, 192)
    await s.enters(State.LEADER_READY)
    await trio.sleep(0.3)
    for peer in s.peers.values():  # all have the whole log, and say so again
        peer.append_position(term, 192)
    await trio.sleep(0.1)
    assert s.state is State.LEADER_READY
    assert s.peers[1].messages(NewLeadershipTerm)[-1].replication_position == 192
    assert s.member.status().applied_position == 96
    assert published(s.peers[1]) == published(s.peers[2]) == [96]
    assert s.store.append_position == 192


@scripted(batches=COMMITTED)
async def test_nothing_more_is_committed_before_an_entry_of_the_new_term_is_on_a_quorum(
    s: Script,
) -> None:
    await s.lead()
    end = s.member.store.submitted_position
    assert end > 192
    await s.until(lambda: s.store.append_position == end)
    s.peers[1].append_position(1, 192, AppendFlags.READY)
    await trio.sleep(0.1)
    assert s.member.status().commit_position == 96
    s.peers[1].append_position(1, end, AppendFlags.READY)
    await s.peers[1].hears(CommitPosition, lambda m: m.log_position == end)
    assert s.member.status().applied_position == end
    assert published(s.peers[2]) == [96, end]


@scripted(batches=COMMITTED)
async def test_all_that_a_leader_says_during_its_election_is_of_the_new_term(s: Script) -> None:
    term = await s.win()
    assert term == 1
    s.peers[1].append_position(term, 192)
    await s.enters(State.LEADER_READY)
    await trio.sleep(0.2)
    heard = s.peers[1].heard
    assert {m.leadership_term_id for m in s.peers[1].messages(CommitPosition)} == {1}
    told = s.peers[1].messages(NewLeadershipTerm)
    assert {(m.leadership_term_id, m.term_base_log_position, m.is_startup) for m in told} == {
        (1, 192, True)
    }
    assert len({m.log_session_id for m in told}) == 1
    assert {type(h.message).__name__ for h in heard} == {
        "CanvassPosition",
        "Scout",
        "RequestVote",
        "CommitPosition",
        "NewLeadershipTerm",
    }


@scripted()
async def test_a_follower_that_only_replicates_does_not_make_the_leader_ready(s: Script) -> None:
    term = await s.win()
    await s.enters(State.LEADER_READY)
    for flags in (AppendFlags.NONE, AppendFlags.CATCHUP):
        s.peers[1].append_position(term, 0, flags)
        s.peers[2].append_position(term, 96, flags)
        await trio.sleep(0.2)
    assert s.state is State.LEADER_READY
    s.peers[2].append_position(term, 0, AppendFlags.READY)
    await s.enters(State.CLOSED, within=0.01)


@scripted(size=5)
async def test_a_follower_that_canvasses_again_is_not_ready_any_more(s: Script) -> None:
    term = await s.win()
    await s.enters(State.LEADER_READY)
    s.peers[1].append_position(term, 0, AppendFlags.READY)
    await trio.sleep(0.01)
    s.peers[1].canvass(term, 0)
    await trio.sleep(0.01)
    s.peers[2].append_position(term, 0, AppendFlags.READY)
    await trio.sleep(0.01)
    assert s.state is State.LEADER_READY
    s.peers[1].append_position(term, 0, AppendFlags.READY)
    assert (await s.enters(State.CLOSED)).reason == "3 of 5 members are ready"


@scripted(batches=LOG)
async def test_canvasses_that_a_partition_has_held_up_get_one_answer(s: Script) -> None:
    await s.lead()
    peer, answers = s.peers[1], list[int]()
    for _ in range(2):
        peer.heard.clear()
        peer.forget()
        for _ in range(2000):
            peer.canvass(0, 192)
        await peer.hears(NewLeadershipTerm)
        peer.canvass(0, 96)  # what it has now is another thing to answer
        await peer.hears(NewLeadershipTerm)
        await trio.sleep(TIMEOUTS.canvass_interval)  # when members repeat an unanswered canvass
        answers.append(len(peer.messages(NewLeadershipTerm)))
    assert answers == [2, 2]


@scripted(batches=COMMITTED, read_seconds=NEVER)
@pytest.mark.parametrize(
    "state", [State.LEADER_LOG_REPLICATION, State.LEADER_REPLAY], ids=["replication", "replay"]
)
async def test_a_new_leader_without_a_quorum_gives_up_after_two_timeouts(
    s: Script, state: State
) -> None:
    term = await s.win()
    heard = s.transitions[-1].at
    if state is State.LEADER_REPLAY:
        s.peers[1].append_position(term, 192)
        heard = (await s.enters(State.LEADER_REPLAY)).at
    ended = await s.enters(State.INIT)
    assert (ended.before, ended.reason) == (state, "inactive follower quorum")
    assert ended.at - heard == pytest.approx(2 * TIMEOUTS.leader_heartbeat_timeout)


@scripted()
async def test_a_leader_whose_quorum_never_becomes_ready_gives_up_after_two_timeouts(
    s: Script,
) -> None:
    won = (await s.win(), s.transitions[-1].at)[1]
    ended = await s.enters(State.INIT)
    assert (ended.before, ended.reason) == (State.LEADER_READY, "inactive follower quorum")
    assert ended.at - won == pytest.approx(2 * TIMEOUTS.leader_heartbeat_timeout, abs=0.002)


@scripted()
async def test_leaders_that_fail_alike_wait_longer_each_time(s: Script) -> None:
    pauses: list[float] = []
    for _ in range(4):
        await s.win()
        failed = await s.enters(State.INIT)
        pauses.append((await s.enters(State.CANVASS)).at - failed.at)
    assert pauses == [pytest.approx(pause, abs=0.001) for pause in (0.0, 0.05, 0.1, 0.2)]


# --- what counts ----------------------------------------------------------------------------------


@scripted(size=5)
async def test_only_positions_reported_for_the_leaders_own_term_count(s: Script) -> None:
    term = await s.lead()
    end = s.store.submitted_position
    await s.until(lambda: s.store.append_position == end)
    s.peers[1].append_position(term, end, AppendFlags.READY)
    s.peers[2].append_position(term - 1, end, AppendFlags.READY)
    s.peers[3].canvass(term, end)
    s.peers[4].say(Vote(term, term, end, ME, 4, True, term, VoteReason.GRANTED))
    await trio.sleep(0.1)
    assert s.member.status().commit_position == 0
    s.peers[3].append_position(term, end)
    await s.peers[1].hears(CommitPosition, lambda m: m.log_position == end)


@scripted()
async def test_nothing_is_committed_before_it_is_durable_here(s: Script) -> None:
    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    s.disk.latency = 0.3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.member.command, b"x")
        await s.until(lambda: s.store.submitted_position > s.store.append_position)
        end, durable = s.store.submitted_position, s.store.append_position
        for peer in s.peers.values():  # both were quicker
            peer.append_position(0, end, AppendFlags.READY)
        await trio.sleep(0.1)
        assert s.member.status().commit_position <= durable
        for peer in s.peers.values():
            peer.append_position(0, end, AppendFlags.READY)
        await s.until(lambda: s.member.status().commit_position == end)
        assert s.store.append_position == end


@scripted()
async def test_a_position_beyond_the_leaders_own_log_counts_as_its_end(s: Script) -> None:
    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    end = s.store.append_position
    s.peers[1].append_position(0, 1 << 40, AppendFlags.READY)
    await s.until(lambda: s.member.status().commit_position == end)
    assert s.member.status().peers[0].append_position == end


@scripted()
async def test_the_published_commit_position_never_goes_back(s: Script) -> None:
    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    end = s.store.append_position
    for position in (end, 0, 32):
        s.peers[1].append_position(0, position, AppendFlags.READY)
        await trio.sleep(0.1)
    s.peers[1].canvass(0, 0)  # its disk was lost
    await trio.sleep(0.1)
    told = [m.log_position for m in s.peers[2].messages(CommitPosition)]
    assert told == sorted(told)
    assert told[-1] == s.member.status().commit_position == end


@pytest.mark.parametrize(("size", "waits_s"), [(AT_ONCE_BYTES, 0.0), (100, PAUSE_SECONDS)])
@scripted()
async def test_of_much_that_is_committed_the_followers_hear_at_once(
    s: Script, size: int, waits_s: float
) -> None:
    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    s.peers[1].append_position(0, s.store.append_position, AppendFlags.READY)
    await trio.sleep(0.1)
    start = s.store.append_position
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.member.command, bytes(size))
        await s.until(lambda: s.store.append_position > start)
        end = s.store.append_position
        s.peers[1].append_position(0, end)
        await s.until(lambda: s.member.status().commit_position == end)
        committed_at = trio.current_time()
    for peer in s.peers.values():
        await peer.hears(CommitPosition, lambda m: m.log_position == end)
        at = next(h.at for h in peer.heard if getattr(h.message, "log_position", 0) == end)
        assert waits_s <= at - committed_at < waits_s + 0.002
    assert published(s.peers[2])[-2:] == [start, end]


@scripted()
async def test_no_message_repeats_a_commit_position_that_a_batch_carries(s: Script) -> None:
    async def write() -> float:
        """Write, have it committed, and return when."""
        start = s.store.append_position
        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.member.command, b"x")
            await s.until(lambda: s.store.append_position > start)
            s.peers[1].append_position(0, s.store.append_position)
            await s.until(lambda: s.member.status().commit_position == s.store.append_position)
        return trio.current_time()

    async def told_after(committed_at: float) -> float:
        end = s.store.append_position
        await s.peers[2].hears(CommitPosition, lambda m: m.log_position == end)
        heard = next(h for h in s.peers[2].heard if getattr(h.message, "log_position", 0) == end)
        return heard.at - committed_at

    await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    s.peers[1].append_position(0, s.store.append_position, AppendFlags.READY)
    await trio.sleep(0.1)
    began = trio.current_time()
    told = len(s.peers[2].messages(CommitPosition))
    while trio.current_time() < began + 0.1:
        await write()
    beats = 0.1 / s.config.timeouts.leader_heartbeat_interval + 1
    assert len(s.peers[2].messages(CommitPosition)) - told <= beats, "batches carry it"
    assert await told_after(await write()) < 2 * PAUSE_SECONDS + 0.002


# --- what the leader answers ----------------------------------------------------------------------


@scripted(batches=LOG)
@pytest.mark.parametrize(
    ("log_term", "following"), [(-1, (0, 0, 192)), (0, (1, 192, -1)), (1, (-1, -1, -1))]
)
async def test_a_canvasser_is_told_what_follows_its_log_term(
    s: Script, log_term: int, following: tuple[int, int, int]
) -> None:
    await s.lead()
    peer, end = s.peers[2], s.store.submitted_position
    await trio.sleep(0.01)
    peer.forget()
    peer.canvass(log_term, 0)
    told = await peer.hears(NewLeadershipTerm)
    assert told.log_leadership_term_id == log_term
    assert following == (
        told.next_leadership_term_id,
        told.next_term_base_log_position,
        told.next_log_position,
    )
    assert (told.leadership_term_id, told.term_base_log_position) == (1, 192)
    assert told.log_position == end
    assert told.terms == (TermSpan(0, 0, 192), TermSpan(1, 192, -1))


@scripted()
async def test_a_canvasser_of_a_newer_log_term_gets_no_answer(s: Script) -> None:
    await s.lead()
    await trio.sleep(0.1)
    s.peers[2].forget()
    s.peers[2].canvass(7, 960)
    with pytest.raises(trio.TooSlowError):
        await s.peers[2].hears(NewLeadershipTerm, within=0.2)
    assert s.state is State.CLOSED


@scripted()
async def test_a_candidate_of_no_newer_term_is_refused_and_told_of_the_leader(s: Script) -> None:
    term = await s.lead()
    s.peers[2].forget()
    s.peers[2].request_vote(term, -1, 0)
    vote = await s.peers[2].hears(Vote)
    told = await s.peers[2].hears(NewLeadershipTerm)
    assert (vote.vote, told.leadership_term_id, told.log_leadership_term_id) == (False, term, -1)


@scripted()
async def test_a_candidate_of_a_newer_term_is_refused_and_not_told_of_the_leader(s: Script) -> None:
    term = await s.lead()
    s.peers[2].forget()
    s.peers[2].request_vote(term + 1, -1, 0)
    assert not (await s.peers[2].hears(Vote)).vote
    with pytest.raises(trio.TooSlowError):  # it would refuse a leader below its promise
        await s.peers[2].hears(NewLeadershipTerm, within=0.2)


@scripted()
@pytest.mark.parametrize("state", [State.LEADER_READY, State.CLOSED], ids=["ready", "closed"])
async def test_a_candidate_is_refused_by_a_leader_whatever_its_term(
    s: Script, state: State
) -> None:
    if state is State.CLOSED:
        await s.lead()
    else:
        await s.win()
        await s.enters(State.LEADER_READY)
    s.peers[2].request_vote(900, 5, 9600)
    vote = await s.peers[2].hears(Vote)
    assert (vote.vote, vote.reason) == (False, VoteReason.LEADER_ALIVE)
    assert vote.voter_candidate_term_id == 0
    assert s.state is state
    assert s.store.node_state.candidate_term == 0


@scripted()
async def test_the_live_log_begins_at_the_end_of_the_leaders(s: Script) -> None:
    await s.lead()
    peer, end = s.peers[1], s.store.submitted_position
    session = (await peer.hears(NewLeadershipTerm)).log_session_id
    peer.say(LogSubscribe(0, session + 1, 1))  # of another log
    peer.say(LogSubscribe(0, session, 1))
    assert await peer.hears(LogJoined) == LogJoined(0, session, end, ME)
    assert len(peer.messages(LogJoined)) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.member.command, b"x")
        first = await peer.hears(LogBatch)
        assert decode_header_untrusted(first.batch).position == end
        assert s.peers[2].messages(LogBatch) == []
        nursery.cancel_scope.cancel()
