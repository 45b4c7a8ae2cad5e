"""A client of etcd that puts, deletes, swaps and reads few keys."""

import math
import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...etcd.messages import rpc_pb2 as rpc
from .calls import Calls, put_message
from .connecting import Client
from .records import END, PREFIX, Read, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["User", "use_keys"]

KEYS: Final = tuple(b"torture:%d" % i for i in range(8))
PAIR: Final = b"torture:pair"
"""A swap puts this, too, so that revisions have several events."""
STAY: Final = 240
"""Most requests over one connection. Smaller: mostly new connections are tested, and few last for
`CONTACT_S`. Larger: clients gather at few members."""
QUICK_S: Final = 1.0
"""A member holds the answer to a write for 2 s until it has applied it. If larger, answers count
that were not held for as long as they had to; if smaller, few are judged on a slow machine."""
CONTACT_S: Final = 3.0
"""A member that has lost its leader holds no answers, until it finds that it has one again. If
smaller than the time for that, right reads count as wrong; if larger, few writes are judged."""
PAUSE_S: Final = 0.05


async def use_keys(calls: Calls, rng: random.Random) -> None:
    """Send some requests to one member.

    Raises:
        TransportError, trio.TooSlowError: one has no answer, or is refused.
    """
    async with calls.connection(rng) as client:
        user = User(calls, client)
        acts: list[Callable[[bytes], Awaitable[object]]]
        acts = [user.put, user.delete, user.swap, user.read, user.read_all, user.read_here]
        for _ in range(rng.randrange(1, STAY)):
            (act,) = rng.choices(acts, (6, 1, 4, 2, 1, 2))
            await act(rng.choice(KEYS))
            await trio.sleep(PAUSE_S * rng.random())


@attrs.define
class User:
    """A client with a connection.

    `_low` is what its serializable reads must show: what they have shown, and its own writes.
    """

    _calls: Calls
    _client: Client
    _low: int = 1
    _heard_at: float = -math.inf
    _steady_since: float = math.inf

    async def put(self, key: bytes) -> None:
        """Put a new value."""
        self._heard(await self._calls.put(self._client, key))

    async def delete(self, key: bytes) -> None:
        """Delete a key."""
        write = Write(self._calls.records.known, deletes=[key])
        request = rpc.DeleteRangeRequest(key=key)
        reply = await self._calls.write(
            self._client, "/v3/kv/deleterange", request, rpc.DeleteRangeResponse, write
        )
        if reply.deleted:
            self._calls.done(write, reply.header.revision)
            self._heard(write.revision)
        else:
            self._heard()
            write.status = "fail"
            self._calls.read(Read(write.known, reply.header.revision, key, b"", ()))

    async def swap(self, key: bytes) -> None:
        """Put a key if it has not changed since it was read."""
        before = (await self.read(key)).kvs
        revision, value = before[0].mod_revision if before else 0, self._calls.value()
        write = Write(self._calls.records.known, [(key, value), (PAIR, value)], compared=revision)
        compare = rpc.Compare(key=key, target=rpc.Compare.MOD, mod_revision=revision)
        puts = [put_message(write), rpc.PutRequest(key=PAIR, value=value)]
        request = rpc.TxnRequest(
            compare=[compare],
            success=[rpc.RequestOp(request_put=put) for put in puts],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key))],
        )
        reply = await self._calls.write(self._client, "/v3/kv/txn", request, rpc.TxnResponse, write)
        if reply.succeeded:
            self._calls.done(write, reply.header.revision)
            self._heard(write.revision)
            return
        self._heard()
        write.status = "fail"
        found = reply.responses[0].response_range.kvs
        self._calls.read(Read(write.known, reply.header.revision, key, b"", found, revision))

    async def read(self, key: bytes, end: bytes = b"") -> rpc.RangeResponse:
        """Read a key, or a range of them."""
        low = self._calls.records.known
        reply = await self._range(rpc.RangeRequest(key=key, range_end=end))
        self._calls.read(Read(low, reply.header.revision, key, end, reply.kvs))
        self._heard()
        return reply

    async def read_all(self, _key: bytes) -> None:
        """Read all keys at once."""
        await self.read(PREFIX, END)

    async def read_here(self, _key: bytes) -> None:
        """Read what this member has."""
        request = rpc.RangeRequest(key=PREFIX, range_end=END, serializable=True)
        low, reply = self._low, await self._range(request)
        self._calls.read(Read(low, reply.header.revision, PREFIX, END, reply.kvs))
        self._low = reply.header.revision

    def _heard(self, own: int = 1) -> None:
        """Note an answer that needs a leader, and the revision of a write."""
        now = trio.current_time()
        if now - self._heard_at > QUICK_S:
            self._steady_since = now
        self._heard_at = now
        if now - self._steady_since >= CONTACT_S:
            self._low = max(self._low, own)

    async def _range(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        return await self._calls.ask(self._client, "/v3/kv/range", request, rpc.RangeResponse)
