"""What comes of a replay is recorded by several batches far behind, and else one by one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio

from quorate.errors import WireError
from quorate.node import replayed as module
from quorate.node.replayed import Replayed
from quorate.simulation.peers import batch, log
from quorate.simulation.script import Script, scripted
from quorate.storage import Store
from quorate.transport import (
    AppendPosition,
    CatchupPosition,
    CommitPosition,
    FrameStream,
    LogBatch,
    LogSubscribe,
    Message,
    TermSpan,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FAR = 10_000


@pytest.fixture(autouse=True)
def _three_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHERED_BYTES", 288)


class World:
    """A replay of batches of 96 bytes, for a log that ends at 192."""

    def __init__(self, *messages: Message | None, stop: int | None = None) -> None:
        self.waiting = deque(messages)
        self.store = mock.create_autospec(Store, instance=True, appended_position=192)
        stream = mock.create_autospec(FrameStream, instance=True)
        stream.receive = self.receive
        self.replayed = Replayed(stream, 3, self.store, stop)

    async def receive(self) -> Message | None:
        await trio.lowlevel.checkpoint()
        if not self.waiting:
            raise trio.BrokenResourceError("the link is gone")
        return self.waiting.popleft()

    def taken(self) -> Iterator[int]:
        """Where the batches begin that are handed over, each appended."""
        for header, _ in self.replayed.take():
            yield header.position
            self.store.appended_position = header.end


def replay(begin: int, term: int = 3) -> LogBatch:
    return LogBatch(term, 0, batch(3, begin, begin + 96))


async def test_far_behind_several_come_together() -> None:
    world = World(*map(replay, range(192, 1152, 96)))
    await world.replayed.receive(lambda: FAR)
    assert [*world.taken()] == [192, 288, 384]
    await world.replayed.receive(lambda: FAR)
    assert [*world.taken()] == [480, 576, 672]


async def test_one_by_one_where_not_that_much_is_known_to_be_committed() -> None:
    world = World(*map(replay, range(192, 480, 96)))
    for begin in range(192, 480, 96):
        await world.replayed.receive(lambda: 480 + 95)
        assert [*world.taken()] == [begin]


async def test_what_is_committed_meanwhile_counts() -> None:
    committed = iter([288 + 288, 0])
    world = World(*map(replay, range(192, 480, 96)))
    await world.replayed.receive(lambda: next(committed))
    assert [*world.taken()] == [192, 288]


async def test_nothing_is_waited_for_behind_what_is_wanted() -> None:
    world = World(*map(replay, (192, 288)), stop=384)
    assert not world.replayed.over
    for begin in (192, 288):
        await world.replayed.receive(lambda: FAR)
        assert [*world.taken()] == [begin]
    assert world.replayed.over


async def test_the_end_of_a_replay_hands_over_what_has_come() -> None:
    world = World(replay(192), None)
    await world.replayed.receive(lambda: FAR)
    assert world.replayed.over
    assert [*world.taken()] == [192]


async def test_what_came_before_the_link_broke_is_kept() -> None:
    world = World(replay(192), replay(288))
    with pytest.raises(trio.BrokenResourceError):
        await world.replayed.receive(lambda: FAR)
    assert [*world.taken()] == [192, 288]
    assert [*world.taken()] == []


async def test_what_the_live_log_has_brought_meanwhile_is_left_out() -> None:
    world = World(replay(96), *map(replay, range(192, 480, 96)))  # the first is known already
    await world.replayed.receive(lambda: FAR)
    world.store.appended_position = 288
    assert [*world.taken()] == [288, 384]


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
        await world.replayed.receive(lambda: FAR)
    assert [*world.taken()] == [192]


@pytest.mark.parametrize("torn", [False, True])
@scripted(batches=log((0, 96), (0, 192)))
async def test_a_follower_keeps_what_came_before_its_catch_up_broke(
    s: Script, *, torn: bool
) -> None:
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=1152, commit=1152)
    request = await leader.hears(CatchupPosition)
    stream = await leader.open_catchup(request.log_position)
    await leader.hears(LogSubscribe)
    leader.join(0, 1152)
    for begin in (192, 288, 384, 480):
        await stream.send(LogBatch(0, 0, batch(0, begin, begin + 96)))
    report = await leader.hears(AppendPosition, lambda m: m.log_position > 192)
    assert report.log_position == 480, "three are durable at once, and the fourth waits for others"
    if torn:
        await stream.send_frame(encode(LogBatch(0, 0, batch(0, 576, 672)))[:-1])
    stream.close()
    await leader.hears(AppendPosition, lambda m: m.log_position == 576)
    assert s.store.append_position == 576
