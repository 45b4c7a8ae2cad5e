"""What comes of a replay is recorded by several batches far behind, and else as it comes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from quorate.errors import WireError
from quorate.node import State
from quorate.node.follower import replay_receiver as module
from quorate.node.follower.following import MAX_UNSYNCED_BYTES
from quorate.node.follower.replay_receiver import HELD_SECONDS, TOGETHER_BYTES, ReplayReceiver
from quorate.storage.writing.executor import MAX_GROUP_JOBS
from quorate.transport import (
    AppendPosition,
    CommitPosition,
    FrameStream,
    LogBatch,
    Message,
    TermSpan,
    encode,
)
from tests.support.peers import Peer, batch, log
from tests.support.replays import replaying
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from trio.testing import MockClock

FAR = 10_000
OUR_END = 192
LOG = log((0, 96), (0, 192))


@pytest.fixture(autouse=True)
def _three_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOGETHER_BYTES", 288)


class World:
    """A replay of batches of 96 bytes, for a log that ends at 192; the first was recorded."""

    def __init__(self, *messages: Message | None, stop: int | None = None) -> None:
        self.coming = deque(messages)
        self.appended = OUR_END
        self.pause = 0.0
        self.at_once = False  # all comes in one piece
        self.replayed = ReplayReceiver(self, 3, lambda: self.appended, stop)
        self.replayed.take()

    async def receive(self) -> Message | None:
        await trio.sleep(self.pause)
        if not self.coming:
            raise trio.BrokenResourceError("the link is gone")
        return self.coming.popleft()

    def receive_nowait(self) -> Message | None:
        return self.coming.popleft() if self.coming and self.at_once else None

    def record(self) -> list[int]:
        """Append what has come; where each batch begins."""
        taken = [header for header, _ in self.replayed.take()]
        if taken:
            self.appended = taken[-1].end
        return [header.position for header in taken]

    async def receive_and_record(self, committed: int = FAR) -> list[int]:
        await self.replayed.receive(committed)
        return self.record()


def replay(begin: int, term: int = 3) -> LogBatch:
    return LogBatch(term, 0, batch(3, begin, begin + 96))


def replays(stop: int) -> list[Message]:
    return [replay(begin) for begin in range(OUR_END, stop, 96)]


async def test_far_behind_several_come_together() -> None:
    world = World(*replays(768))
    assert await world.receive_and_record() == [192, 288, 384]
    assert await world.receive_and_record() == [480, 576, 672]


async def test_one_by_one_where_not_that_much_is_known_to_come() -> None:
    world = World(*replays(480))
    for begin in (192, 288, 384):
        assert await world.receive_and_record(begin + 96 + 287) == [begin]
    world = World(*replays(480))
    assert await world.receive_and_record(288 + 288) == [192, 288]


async def test_what_came_in_one_piece_is_recorded_at_once() -> None:
    world = World(*replays(384))
    world.at_once = True
    assert await world.receive_and_record(0) == [192, 288]
    world = World(*replays(768))  # but no more than is written at once
    world.at_once = True
    assert await world.receive_and_record(0) == [192, 288, 384]
    assert await world.receive_and_record(0) == [480, 576, 672]


async def test_nothing_is_recorded_behind_what_is_wanted() -> None:
    world = World(*replays(768), stop=384)
    world.at_once = True
    assert await world.receive_and_record(0) == [192, 288]
    assert world.replayed.over


async def test_the_first_batch_of_a_stream_leaves_the_rest_of_its_piece() -> None:
    world = World(replay(96), *replays(480))
    world.at_once = True
    world.replayed = ReplayReceiver(world, 3, lambda: world.appended, None)
    assert await world.receive_and_record(0) == [192]
    assert await world.receive_and_record(0) == [288, 384]


async def test_nothing_is_waited_for_behind_what_is_wanted() -> None:
    """All up to there is sent, be it committed or not."""
    world = World(*replays(672), stop=672)
    assert await world.receive_and_record(0) == [192, 288, 384]
    for begin in (480, 576):
        assert not world.replayed.over
        assert await world.receive_and_record(FAR) == [begin]
    assert world.replayed.over


async def test_the_first_batch_of_a_stream_waits_for_no_other() -> None:
    """Else who loses the link again and again, before there are more, would get nowhere."""
    world = World(*replays(384))
    world.replayed = ReplayReceiver(world, 3, lambda: world.appended, None)
    assert await world.receive_and_record() == [192]


async def test_a_rest_before_is_no_wait(autojump_clock: MockClock) -> None:
    world = World(*replays(480))
    await trio.sleep(2 * HELD_SECONDS)
    assert await world.receive_and_record() == [192, 288, 384]


async def test_on_a_slow_link_none_waits_for_more_than_the_next(autojump_clock: MockClock) -> None:
    world = World(*replays(576))
    world.pause = 0.6 * HELD_SECONDS
    assert await world.receive_and_record() == [192, 288]
    assert await world.receive_and_record() == [384, 480]


async def test_no_more_than_the_disk_writes_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOGETHER_BYTES", TOGETHER_BYTES)
    world = World(*replays(192 + 96 * (MAX_GROUP_JOBS + 1)))
    assert len(await world.receive_and_record(1 << 30)) == MAX_GROUP_JOBS
    assert 2 * TOGETHER_BYTES <= MAX_UNSYNCED_BYTES


async def test_the_end_of_a_replay_hands_over_what_has_come() -> None:
    world = World(replay(192), None)
    assert await world.receive_and_record() == [192]
    assert world.replayed.over


async def test_what_came_before_the_link_broke_is_handed_over_once() -> None:
    world = World(*replays(384))
    with pytest.raises(trio.BrokenResourceError):
        await world.replayed.receive(FAR)
    assert world.record() == [192, 288]
    assert world.record() == []


async def test_what_is_known_already_is_left_out() -> None:
    world = World(replay(96), *replays(480))
    assert await world.receive_and_record() == [192, 288, 384]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (replay(384), "replay at 384, our log ends elsewhere"),
        (replay(288, term=4), "a replay in term 4, not 3"),
        (CommitPosition(3, 0, 1, 0), "a CommitPosition in a replay"),
    ],
)
async def test_what_does_not_go_on_from_the_last_batch_is_refused(
    message: Message, words: str
) -> None:
    world = World(replay(192), message)
    with pytest.raises(WireError, match=words):
        await world.replayed.receive(FAR)
    assert world.record() == [192]


# --- in a follower --------------------------------------------------------------------------------


async def catching_up(s: Script) -> tuple[Peer, FrameStream]:
    """Have a leader send three batches, of which the follower holds two."""
    leader, stream = await replaying(s, joined=1152, commit=1152)
    for begin in (192, 288, 384):
        await stream.send(LogBatch(0, 0, batch(0, begin, begin + 96)))
    await leader.hears(AppendPosition, lambda m: m.log_position == 288)
    await trio.testing.wait_all_tasks_blocked()
    assert s.store.submitted_position == 288
    return leader, stream


@pytest.mark.parametrize("torn", [False, True])
@scripted(batches=LOG)
async def test_a_follower_keeps_what_came_before_its_catch_up_broke(
    s: Script, *, torn: bool
) -> None:
    leader, stream = await catching_up(s)
    if torn:
        await stream.send_frame(encode(LogBatch(0, 0, batch(0, 480, 576)))[:-1])
    stream.close()
    await leader.hears(AppendPosition, lambda m: m.log_position == 480)
    assert s.store.append_position == 480


@scripted(batches=LOG)
async def test_what_broke_may_have_met_the_live_log(s: Script) -> None:
    leader, stream = await replaying(s, joined=480, commit=1152)
    leader.live(*(batch(0, begin, begin + 96) for begin in range(480, 1152, 96)))
    await trio.testing.wait_all_tasks_blocked()
    for begin in (192, 288, 384):
        await stream.send(LogBatch(0, 0, batch(0, begin, begin + 96)))
    await leader.hears(AppendPosition, lambda m: m.log_position == 288)
    await trio.testing.wait_all_tasks_blocked()
    assert s.store.submitted_position == 288
    await stream.send_frame(encode(LogBatch(0, 0, batch(0, 480, 576)))[:-1])
    stream.close()
    await leader.hears(AppendPosition, lambda m: m.log_position == 1152)


@scripted(batches=LOG)
async def test_several_batches_are_recorded_in_one_go(s: Script) -> None:
    leader, stream = await catching_up(s)
    await stream.send(LogBatch(0, 0, batch(0, 480, 576)))
    report = await leader.hears(AppendPosition, lambda m: m.log_position > 288)
    assert report.log_position == 576


@scripted(batches=LOG)
async def test_a_second_catch_up_sends_again_what_the_first_one_left_unrecorded(s: Script) -> None:
    leader, first = await catching_up(s)
    second = await leader.open_catchup(192)
    for begin in range(192, 576, 96):
        await second.send(LogBatch(0, 0, batch(0, begin, begin + 96)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 384)
    second.close()
    await leader.hears(AppendPosition, lambda m: m.log_position == 576)
    assert await first.receive() is None


@scripted(batches=LOG)
async def test_what_is_held_when_the_role_ends_is_never_recorded(s: Script) -> None:
    _, stream = await catching_up(s)
    s.peers[2].lead(1, 0, TermSpan(0, 0, 1152), TermSpan(1, 1152, -1))
    await s.until(lambda: s.state is not State.FOLLOWER_CATCHUP)
    stream.close()
    await trio.testing.wait_all_tasks_blocked()
    assert s.store.submitted_position == 288
