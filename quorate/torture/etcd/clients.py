"""All clients of etcd while members are tortured."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from ...errors import TransportError
from ...etcd.messages import rpc_pb2 as rpc
from ...local.etcd_client import GatewayClient
from .calls import Calls
from .compacting import compact
from .judging import judge
from .keys import use_keys
from .leases import use_lease, use_lock
from .records import END, PREFIX, Read, Records
from .watching import Urls, Watches

__all__ = ["EtcdClients"]

WORKS: Final = (use_keys,) * 3 + (use_lease,) * 3 + (use_lock,) * 2 + (compact,)
FINISH_S: Final = 60.0
_PAUSE_S: Final = 0.05


class EtcdClients:
    """All clients of etcd.

    Args:
        urls: of the members' ports for etcd.
        seed: of the clients' choices.

    Attributes:
        records: what they were answered and shown.
    """

    def __init__(self, urls: Urls, seed: int) -> None:
        self.records = Records()
        self._urls, self._seed = urls, seed
        self._calls = Calls(urls, self.records)
        self._watches = Watches(urls, seed, self.records)
        self._finished = False

    async def run(self) -> None:
        """Work until cancelled."""
        began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watches.run)
                for i, work in enumerate(WORKS):
                    rng = random.Random(f"{self._seed}/etcd/{i}")  # noqa: S311 - no secret
                    nursery.start_soon(self._again, work, rng)
        finally:
            self.records.seconds = trio.current_time() - began

    async def _again(
        self, work: Callable[[Calls, random.Random], Awaitable[None]], rng: random.Random
    ) -> None:
        while True:
            with suppress(TransportError, trio.TooSlowError):
                await work(self._calls, rng)
            await trio.sleep(_PAUSE_S)

    async def finish(self) -> None:
        """Wait for all leases to end, and have all watches see everything; nothing fails any more.

        Each member's own state is read, too.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watches.run)
            with trio.move_on_after(FINISH_S) as waiting:
                await self._at_rest()
                for url in self._urls().values():
                    await self._read_at(url, serializable=True)
                await self._watches.until(self.records.known)
            nursery.cancel_scope.cancel()
        self._watches.end()
        self.records.at_rest = not waiting.cancelled_caught
        if waiting.cancelled_caught:
            behind = self._watches.behind(self.records.known)
            words = f"revision {self.records.known}, watches behind at members {behind}"
            self.records.trouble.append(f"not at rest within {FINISH_S:g} s: {words}")
        self._finished = True

    async def _at_rest(self) -> None:
        """Wait until there is no lease, with keys or without."""
        url = next(iter(self._urls().values()))
        request, kind = rpc.LeaseLeasesRequest(), rpc.LeaseLeasesResponse
        while True:
            with suppress(TransportError):
                async with GatewayClient(url) as client:
                    if not (await client("/v3/lease/leases", request, kind)).leases:
                        break
            await trio.sleep(_PAUSE_S)
        await self._read_at(url, serializable=False)

    async def _read_at(self, url: str, *, serializable: bool) -> rpc.RangeResponse:
        """Read all keys at a member, once it knows all that is known."""
        request = rpc.RangeRequest(key=PREFIX, range_end=END, serializable=serializable)
        low = self.records.known
        while True:
            with suppress(TransportError):
                async with GatewayClient(url) as client:
                    reply = await client("/v3/kv/range", request, rpc.RangeResponse)
                if reply.header.revision >= low or not serializable:
                    self._calls.read(Read(low, reply.header.revision, PREFIX, END, reply.kvs))
                    return reply
            await trio.sleep(_PAUSE_S)

    def judge(self) -> list[str]:
        """Return what does not hold, unless the end was never reached."""
        return judge(self.records) if self._finished else []
