"""A lease is not entered after its time, however late the replies come.

A renewal may be done after its lease has ended here, and before its block or its wait has come to
its end. The key is ours then, but what was cancelled does not count as done.
"""

from typing import Final

import anyio
import pytest

from quorate.errors import LeaseLostError
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.recipes import Lease, semaphore
from tests.support.recipes_world import Link, PolledWatch, Run, World

TTL_S = 3.0
LINGER_S = 0.5
CUT_SHORT: Final = (0, 2 * TTL_S, 0, TTL_S * 0.3)
"""Delays of replies: the first renewal has none in time; the second one asks for both values of the
key, and is answered after nine tenths of the lease, while what was cancelled comes to its end."""


class SlowReplies(Link):
    """A connection on which the first replies are late: the requests arrive in time.

    Attributes:
        delays: of the next replies, in seconds.
    """

    def __init__(self, world: World, delays: list[float]) -> None:
        super().__init__(world)
        self.delays = delays

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        reply = await super().command(payload, flags, stamp)
        await anyio.sleep(self.delays.pop(0) if self.delays else 0)
        return reply


def test_a_lease_is_not_ours_if_the_reply_to_its_renewal_comes_after_its_time(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = SlowReplies(world, [TTL_S / 2, 2 * TTL_S])
        lease = Lease(link.kv, b"job", ttl_s=TTL_S)
        assert not await lease.acquire()
        assert lease.lost
        assert await lease.acquire()
        assert not lease.lost
        await lease.release()

    run(scenario)


def test_a_block_does_not_begin_when_the_time_of_its_lease_is_over(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = Lease(world.store(), b"job", ttl_s=TTL_S)
        assert await lease.acquire()
        await anyio.sleep(TTL_S)
        with pytest.raises(LeaseLostError, match="was lost"):
            async with lease.held():
                pytest.fail("the block began")

    run(scenario)


class LingeringWatch(PolledWatch):
    """A watch that takes a while to close, as a connection may."""

    async def aclose(self) -> None:
        await anyio.sleep(LINGER_S)


def test_a_block_that_was_cut_short_has_lost_its_lease_although_it_is_renewed(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = Lease(SlowReplies(world, list(CUT_SHORT)).kv, b"job", ttl_s=TTL_S)
        assert await lease.acquire()

        async def block() -> None:
            async with lease.held():
                try:
                    await anyio.sleep(TTL_S)
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(LINGER_S)
                    assert lease.lost

        with pytest.raises(LeaseLostError, match="was not renewed in time"):
            await block()
        assert world.keys() == []

    run(scenario)


def test_a_waiter_whose_wait_was_cut_short_is_not_let_in(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.watch_class = LingeringWatch
        one, two = world.store(), world.store()
        late = SlowReplies(world, list(CUT_SHORT))
        async with semaphore(one, "pool", 2), semaphore(two, "pool", 2):
            with pytest.raises(TimeoutError):
                async with semaphore(late.kv, "pool", 2, ttl_s=TTL_S, wait_s=3 * TTL_S):
                    pytest.fail("three are inside")

    run(scenario)
