"""Corners of the log: writes in flight when a role ends, replays, and disks that are slow.

One real member among scripted peers, as in :mod:`.test_safety`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import UnknownOutcomeError
from quorate.node import State
from quorate.node.follower import following
from quorate.storage import decode_header_untrusted
from quorate.transport import (
    PROTOCOL_VERSION,
    Address,
    AppendFlags,
    AppendPosition,
    CatchupPosition,
    Hello,
    LogBatch,
    ReplayRequest,
    StreamPurpose,
    TermSpan,
    open_stream,
)
from tests.node.protocol.test_safety import LEVEL, LOG, send_command
from tests.support.peers import ME, batch, log
from tests.support.script import Script, open_script

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.transport import FrameStream


# --- writes in flight when a role ends ------------------------------------------------------------


async def test_a_deposed_leader_counts_what_was_on_its_way_to_the_disk_among_its_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s, trio.open_nursery() as nursery:
        term = await s.lead()
        await s.until(lambda: s.store.append_position > 192)
        end = s.store.append_position
        s.disk.latency = 0.3
        nursery.start_soon(send_command, s, b"x", list[object]())
        await s.until(lambda: s.store.submitted_position > end)
        spans = TermSpan(0, 0, 192), TermSpan(term, 192, end), TermSpan(term + 1, end, -1)
        await replaced(s, spans)


async def test_a_follower_counts_what_was_on_its_way_to_the_disk_among_its_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        leader = await s.follow(1, 1, *LEVEL, log_term=0)
        s.disk.latency = 0.3
        leader.live(batch(1, 192, 288))
        await s.until(lambda: s.store.submitted_position == 288)
        await replaced(s, (TermSpan(0, 0, 192), TermSpan(1, 192, 192), TermSpan(2, 192, -1)))


async def replaced(s: Script, spans: tuple[TermSpan, ...]) -> None:
    """A new leader appears, which does not have what is in flight; nothing of it may survive."""
    new, term, base = s.peers[2], spans[-1].term, spans[-1].base
    new.lead(term, term - 1, *spans)
    await s.until(lambda: s.store.node_state.candidate_term == term)
    s.disk.latency = 0.001
    await s.enters(State.CANVASS)
    new.lead(term, term - 1, *spans)
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    assert s.store.append_position == s.store.submitted_position == base
    await new.hears(AppendPosition, lambda m: m.leadership_term_id == term)
    reports = [m for m in new.messages(AppendPosition) if m.leadership_term_id == term]
    assert [m.log_position for m in reports if m.log_position > base] == []


# --- replays --------------------------------------------------------------------------------------


async def test_a_follower_takes_no_replay_from_one_who_does_not_lead_its_term_any_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The server may have followed another leader meanwhile, and truncated what was asked for."""
    async with open_script(tmp_path, batches=LOG) as s:
        s.peers[1].lead(
            3,
            0,
            TermSpan(0, 0, 384),
            *(TermSpan(t, 384, 384) for t in (1, 2)),
            TermSpan(3, 384, -1),
        )
        replay = await s.peers[1].replay()
        await replay.send(4, batch(1, 192, 288))
        await s.enters(State.INIT, within=0.2)
        assert s.store.append_position == 192
        assert s.terms == [(0, 0, None)]


async def test_a_replay_names_the_term_in_which_its_server_lives_when_it_reads(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        term = await s.lead()
        s.peers[2].canvass(term, 0)
        stream = await open_replay(s, 96, 192)
        message = await stream.receive()
        assert isinstance(message, LogBatch)
        assert message.leadership_term_id == term
        stream.close()
        s.disk.read_seconds = 0.1
        stream = await open_replay(s, 96, 192)
        end = s.store.append_position
        spans = [
            TermSpan(each, base, end if stop is None else stop) for each, base, stop in s.terms
        ]
        s.peers[1].lead(term + 1, term, *spans, TermSpan(term + 1, end, -1))
        await s.until(lambda: s.store.node_state.candidate_term == term + 1)
        message = await stream.receive()
        assert isinstance(message, LogBatch)
        assert message.leadership_term_id == term + 1
        stream.close()


async def open_replay(s: Script, position: int, stop: int) -> FrameStream:
    stream = await s.peers[1].links.open_stream(ME, purpose=StreamPurpose.REPLAY)
    await stream.send(ReplayRequest(position, stop))
    return stream


@pytest.mark.parametrize("position", [-1, 1, 95, 97, 191, 193, 2**62])
async def test_a_replay_from_nowhere_ends_the_stream_and_not_the_member(
    tmp_path: Path, autojump_clock: MockClock, position: int
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        stream = await open_replay(s, position, 2**63 - 1)
        with trio.fail_after(1.0):
            assert await stream.receive() is None
        assert s.state is State.CANVASS


@pytest.mark.parametrize("position", [-1, 1, 97, 2**62])
async def test_a_catch_up_from_nowhere_ends_the_stream_and_not_the_leader(
    tmp_path: Path, autojump_clock: MockClock, position: int
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:

        async def take(_hello: object, stream: FrameStream) -> None:
            await stream.receive()

        setattr(s.peers[1], "on_stream", take)  # noqa: B010 - of this one peer
        term = await s.lead()
        s.peers[1].say(CatchupPosition(term, position, 1, "h1:7000"))
        s.peers[2].append_position(term, 192, AppendFlags.READY)
        await trio.sleep(0.2)
        assert s.member.topology.is_leader


async def test_a_reader_that_is_no_member_gets_only_what_is_committed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=log((0, 96), (0, 192), commit=96)) as s:
        hello = Hello("test", -1, PROTOCOL_VERSION, 7, StreamPurpose.REPLAY)
        stream = await open_stream(s.network.host("reader"), Address("h0", 7000), hello)
        await stream.send(ReplayRequest(0, 192))
        message = await stream.receive()
        assert isinstance(message, LogBatch)
        assert decode_header_untrusted(message.batch).end == 96
        with trio.move_on_after(1.0) as waited:
            await stream.receive()
        assert waited.cancelled_caught
        stream.close()


# --- disks ----------------------------------------------------------------------------------------


async def test_a_leader_whose_disk_has_stalled_steps_down(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s, trio.open_nursery() as nursery:
        term = await s.lead()
        await s.until(lambda: s.member.topology.is_leader)

        async def followers_are_well() -> None:
            while True:
                for peer in s.peers.values():
                    peer.append_position(term, s.store.submitted_position, AppendFlags.READY)
                await trio.sleep(0.05)

        nursery.start_soon(followers_are_well)
        await trio.sleep(5.0)
        assert s.state is State.CLOSED
        s.disk.latency = 20.0
        answers: list[object] = []
        nursery.start_soon(send_command, s, b"x", answers)
        assert (await s.enters(State.INIT, within=1.1)).reason == "our disk has stalled"
        await s.until(lambda: bool(answers), within=0.1)
        assert isinstance(answers[0], UnknownOutcomeError)
        nursery.cancel_scope.cancel()


async def test_a_follower_whose_disk_is_too_slow_for_the_live_log_lets_go_of_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_BUFFERED_BYTES", 1000)
    async with open_script(tmp_path, batches=LOG) as s:
        leader = await s.follow(1, 1, *LEVEL, log_term=0)
        s.disk.latency = 5.0
        leader.live(*(batch(1, 192 + 96 * i, 288 + 96 * i) for i in range(12)))
        assert "behind the live log" in (await s.enters(State.INIT, within=0.1)).reason
        assert s.store.append_position == 192
        await s.enters(State.CANVASS)
        assert s.store.append_position == s.store.submitted_position == 192 + 11 * 96
