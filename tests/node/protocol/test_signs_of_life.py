"""A member is heard to be alive also in the middle of a long message."""

from __future__ import annotations

import trio

from quorate.node import State
from quorate.node.follower import catchup_rate
from quorate.transport import (
    AppendFlags,
    CatchupPosition,
    ForwardReply,
    ForwardRequest,
    LogBatch,
    Message,
    TermSpan,
)
from quorate.transport.testing.direction import Pace
from tests.support.peers import ME, batch, log
from tests.support.script import Script, scripted

LOG = log((0, 96), (0, 192))
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))
LONG = bytes(10 << 20)  # what a network in memory carries in 40 round trips
TIMEOUT = 0.5


async def say_slowly(s: Script, peer: int, message: Message, parts: int) -> None:
    """Say something long over a link that is cut but for a moment, again and again.

    The pauses are shorter than the heartbeat timeout, and all of them together much longer.
    """
    s.network.cut(f"h{peer}", f"h{ME}", both=False)
    s.peers[peer].say(message)
    for _ in range(parts):
        await trio.sleep(0.6 * TIMEOUT)
        s.network.heal(f"h{peer}", f"h{ME}", both=False)
        await trio.sleep(0.0012)
        s.network.cut(f"h{peer}", f"h{ME}", both=False)


@scripted(batches=LOG)
async def test_a_leader_whose_long_message_is_coming_is_alive(s: Script) -> None:
    await s.follow(1, 1, *LEVEL, log_term=0)
    await say_slowly(s, 1, ForwardReply(1, 0, LONG), parts=10)
    assert s.state is State.CLOSED
    s.network.heal("h1", f"h{ME}", both=False)
    await trio.sleep(0.8 * TIMEOUT)
    assert s.state is State.CLOSED
    await s.enters(State.INIT, within=0.3 * TIMEOUT)  # it said nothing more


@scripted(batches=LOG)
async def test_a_long_message_of_another_member_is_no_sign_of_the_leader(s: Script) -> None:
    await s.follow(1, 1, *LEVEL, log_term=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(say_slowly, s, 2, ForwardReply(1, 0, LONG), 10)
        await s.enters(State.INIT, within=1.1 * TIMEOUT)
        nursery.cancel_scope.cancel()


@scripted()
async def test_a_follower_whose_long_message_is_coming_counts_for_the_leaders_quorum(
    s: Script,
) -> None:
    term = await s.lead()
    s.stop_peer(2)
    s.peers[1].append_position(term, 0, AppendFlags.READY)
    await say_slowly(s, 1, ForwardRequest(1, 0, 0, LONG), parts=10)
    assert s.state is State.CLOSED
    s.network.heal("h1", f"h{ME}", both=False)
    await s.enters(State.INIT, within=1.1 * TIMEOUT)


@scripted()
async def test_a_member_that_never_followed_is_not_of_the_quorum_for_all_that_it_says(
    s: Script,
) -> None:
    await s.win()
    s.stop_peer(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(say_slowly, s, 1, ForwardRequest(1, 0, 0, LONG), 10)
        await s.enters(State.INIT, within=2.2 * TIMEOUT)
        nursery.cancel_scope.cancel()


@scripted(batches=LOG)
async def test_a_large_batch_that_is_coming_is_progress_of_a_catch_up(s: Script) -> None:
    end = 192 + len(LONG)
    leader = s.peers[1]
    leader.lead(1, 0, *LEVEL, position=end)
    await leader.hears(CatchupPosition)
    s.network.set_pace("h1", f"h{ME}", Pace(bytes_per_second=end / (6 * TIMEOUT)), both=False)
    stream = await leader.open_catchup(192)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send, LogBatch(1, 0, batch(1, 192, end)))
        while s.member.store.append_position < end:
            leader.commit(1)
            await trio.sleep(0.2 * TIMEOUT)
            assert s.state is State.FOLLOWER_CATCHUP
    await s.enters(State.INIT, within=2 * TIMEOUT)  # nothing more came


@scripted(batches=LOG)
async def test_a_rest_is_no_want_of_progress_of_a_catch_up(s: Script) -> None:
    slow = catchup_rate.CatchupRate(s.member.applier, int(len(LONG) / (6 * TIMEOUT)))
    s.member.catchup_rate = slow
    middle, end = 192 + len(LONG), 192 + len(LONG) + 96
    leader = s.peers[1]
    leader.lead(1, 0, *LEVEL, position=end)
    await leader.hears(CatchupPosition)
    stream = await leader.open_catchup(192)
    await stream.send(LogBatch(1, 0, batch(1, 192, middle)))
    await stream.send(LogBatch(1, 0, batch(1, middle, end)))
    await s.until(lambda: s.member.store.append_position == middle)
    began = trio.current_time()
    while s.member.store.append_position < end:
        leader.commit(1)
        await trio.sleep(0.2 * TIMEOUT)
        assert s.state is State.FOLLOWER_CATCHUP
    assert trio.current_time() - began > 2 * TIMEOUT
    await s.enters(State.INIT, within=2 * TIMEOUT)  # nothing more came
