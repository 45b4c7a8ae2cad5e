"""Corners in which a member could break a promise, lose a reply or stand still; one test for each.

Most put one real member among scripted peers, who say just what leads into the corner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.node import State
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import NodeState, decode_header_untrusted
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    ForwardReply,
    ForwardRequest,
    LogBatch,
    LogSubscribe,
    NewLeadershipTerm,
    TermSpan,
    Vote,
)
from tests.support.peers import batch, log
from tests.support.script import Script, open_script

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


LOG = log((0, 96), (0, 192))
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))  # of a leader that has what LOG has


async def send_command(s: Script, payload: bytes, answers: list[object]) -> None:
    try:
        answers.append(await s.member.command(payload))
    except (NoLeaderError, UnknownOutcomeError) as error:
        answers.append(error)


# --- ballots --------------------------------------------------------------------------------------


async def test_a_candidate_that_promised_a_newer_term_does_not_win_with_its_old_votes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It refuses a worse log and raises its promise; the newer term may be won by that rival."""
    async with open_script(tmp_path, batches=LOG) as s:
        term = await s.stand()
        s.peers[1].request_vote(term + 1, 0, 96)
        assert not (await s.peers[1].hears(Vote)).vote
        assert s.store.node_state == NodeState(term + 1, -1)
        s.peers[1].vote(term)
        s.peers[2].vote(term)
        await trio.sleep(0.4)
        assert s.peers[2].messages(NewLeadershipTerm) == []


# --- applying and answering -----------------------------------------------------------------------


async def test_a_new_leader_answers_parked_commands_although_earlier_entries_wait_to_be_applied(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s, trio.open_nursery() as nursery:
        answers: list[object] = []
        nursery.start_soon(send_command, s, b"parked", answers)
        term = await s.win()
        for peer in s.peers.values():
            peer.append_position(term, 192, AppendFlags.READY)
            peer.say(LogSubscribe(term, s.member.state.role.session_id, peer.member_id))  # type: ignore[attr-defined]
        live = await s.peers[1].hears(LogBatch)
        live = await s.peers[1].hears(LogBatch)
        end = decode_header_untrusted(live.batch).end
        await s.until(lambda: s.store.append_position == end)  # so both are committed at once
        for peer in s.peers.values():
            peer.append_position(term, end, AppendFlags.READY)
        await s.until(lambda: bool(answers), within=1.0)
        assert answers == [b"3"]


async def test_a_read_on_a_lone_member_is_answered_while_it_still_reads_its_log_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, 1, batches=LOG, read_seconds=0.2) as s:
        with trio.fail_after(2.0):
            assert await s.member.query(b"") == b"2"


# --- forwarded requests ---------------------------------------------------------------------------


async def test_a_reply_to_an_earlier_process_answers_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A member forwards a write, restarts, forwards another; then the first one is answered."""
    async with open_script(tmp_path, batches=LOG) as s, trio.open_nursery() as nursery:
        answers: list[object] = []
        await s.follow(1, 1, *LEVEL, log_term=0)
        nursery.start_soon(send_command, s, b"first", answers)
        first = await s.peers[1].hears(ForwardRequest)
        await s.restart()
        answers.clear()
        await s.follow(1, 1, *LEVEL, log_term=1)
        nursery.start_soon(send_command, s, b"second", answers)
        second = await s.peers[1].hears(ForwardRequest)
        s.peers[1].say(ForwardReply(first.request_id, 0, b"1"))
        await trio.sleep(0.1)
        assert answers == []
        s.peers[1].say(ForwardReply(second.request_id, 0, b"2"))
        await s.until(lambda: answers == [b"2"], within=1.0)


async def test_a_reply_of_an_unknown_kind_has_an_unknown_outcome(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s, trio.open_nursery() as nursery:
        answers: list[object] = []
        await s.follow(1, 1, *LEVEL, log_term=0)
        nursery.start_soon(send_command, s, b"x", answers)
        request = await s.peers[1].hears(ForwardRequest)
        s.peers[1].say(ForwardReply(request.request_id, 77, b"?"))
        await s.until(lambda: bool(answers), within=1.0)
        assert isinstance(answers[0], UnknownOutcomeError)


# --- following ------------------------------------------------------------------------------------


async def test_a_replicated_term_may_turn_out_to_be_longer_under_the_next_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first leader ends term 0 at 288 and falls; the second one holds more of term 0."""
    async with open_script(tmp_path, batches=LOG) as s:
        one, two = s.peers[1], s.peers[2]
        one.lead(1, 0, TermSpan(0, 0, 288), TermSpan(1, 288, -1))
        replay = await one.replay()
        await replay.send(1, batch(0, 192, 288))
        await s.until(lambda: s.store.append_position == 288)
        replay.end()
        await s.enters(State.CANVASS)
        spans = TermSpan(0, 0, 384), TermSpan(1, 384, 384), TermSpan(2, 384, -1)
        for _ in range(2):  # the first time the member only opens term 0 again
            two.lead(2, 0, *spans)
            await s.enters(
                State.FOLLOWER_LOG_REPLICATION if s.terms[-1][2] is None else State.CANVASS
            )
        replay = await two.replay()
        assert (replay.request.position, replay.request.stop_position) == (288, 384)
        await replay.send(2, batch(0, 288, 384))
        await s.until(lambda: s.store.append_position == 384)
        replay.end()


async def test_messages_that_waited_since_before_a_term_of_following_are_forgotten(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Or a leader long gone is adopted again, once for each time that it announced itself."""
    async with open_script(tmp_path, batches=LOG) as s:
        for _ in range(4):
            s.peers[1].lead(1, 0, *LEVEL)
        await s.enters(State.FOLLOWER_LOG_AWAIT)
        seen = len(s.transitions)
        await s.enters(State.CANVASS)
        await trio.sleep(1.0)
        assert [t.after for t in s.transitions[seen:]][:2] == [State.INIT, State.CANVASS]
        assert State.FOLLOWER_REPLAY not in [t.after for t in s.transitions[seen:]]


async def test_a_member_that_hears_of_one_newer_leader_after_the_other_does_not_back_off(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        for term in range(1, 6):
            s.peers[1].lead(
                term, 0, TermSpan(0, 0, 192), *(TermSpan(t, 192, -1) for t in range(1, term + 1))
            )
            await s.enters(State.FOLLOWER_LOG_AWAIT)
            s.peers[2].commit(term + 1)
            await s.enters(State.INIT)
            at = trio.current_time()
            await s.enters(State.CANVASS)
            assert trio.current_time() - at < 0.05


async def test_a_follower_to_which_the_live_log_does_not_come_notices_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A commit position travels behind its batches; one ahead of them means that they are lost."""
    async with open_script(tmp_path, batches=LOG) as s:
        leader = await s.follow(1, 1, *LEVEL, log_term=0)
        leader.live(batch(1, 192, 288))
        leader.commit(1, 288)
        await s.until(lambda: s.member.status().commit_position == 288)
        leader.commit(1, 384)
        assert "commit" in (await s.enters(State.INIT, within=0.2)).reason


async def test_ready_is_not_reported_before_the_terms_row_is_durable(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        leader = s.peers[1]
        leader.lead(1, 0, *LEVEL)
        await s.enters(State.FOLLOWER_LOG_AWAIT)
        s.disk.latency = 0.2
        leader.join(1, 192)
        leader.live(batch(1, 192, 288))
        await leader.hears(AppendPosition, lambda m: AppendFlags.READY in m.flags)
        assert s.store.log_term == 1


# --- whole clusters -------------------------------------------------------------------------------


async def test_a_member_that_lacks_the_leaders_last_term_makes_a_quorum_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The leader tells where its last term ends before its new one is in its recording log."""
    async with open_ledgers(tmp_path, contain=True) as stage:
        await stage.start()
        first = await stage.settled()
        late, other = stage.others(first)
        await stage.kill(late)
        await stage.kill(first)
        await stage.start(first)
        second = await stage.settled()
        assert await stage.attempt(second, b"in the second term")
        await equal(stage, [b"in the second term"])
        await stage.kill(first, other)
        await stage.start(second, late)
        assert await stage.settled(within=5.0) == second
        await equal(stage, [b"in the second term"])
