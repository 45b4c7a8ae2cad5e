"""A lease is not entered after its time, however late the replies come."""

import anyio
import pytest

from quorate.errors import LeaseLostError
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.recipes import Lease
from tests.support.recipes_world import Link, Run, World

TTL_S = 3.0


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
