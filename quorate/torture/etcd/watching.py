"""A watch at each member, which goes on where it was."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import trio

from ...errors import TransportError
from ...etcd.messages import rpc_pb2 as rpc
from ...local.etcd_client import GatewayClient
from .records import END, PREFIX, Delivery, Records, Watched

__all__ = ["Urls", "Watches"]

Urls = Callable[[], Mapping[int, str]]
"""Returns the URL of each member that has one."""

BREAK_S: Final = 15.0
"""A client closes its connection after up to this long. Shorter, and watches that lag are hardly
ever served; longer, and few watches go on from a revision of the past."""
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 0.2


@attrs.define(eq=False)
class Watches:
    """All watches.

    Args:
        urls: of the members.
        seed: of when they break by themselves.
        records: for what they see.

    Attributes:
        following: members that are watched.
    """

    urls: Urls
    seed: int
    records: Records
    following: dict[int, Watched] = attrs.field(factory=dict[int, Watched])

    async def run(self) -> None:
        """Watch at each member that there is, until cancelled."""
        running: set[int] = set()

        async def follow(member: int) -> None:
            await self._follow(member)
            running.discard(member)

        async with trio.open_nursery() as nursery:
            while True:
                for member in set(self.urls()) - running:
                    running.add(member)
                    nursery.start_soon(follow, member)
                await trio.sleep(_LOOK_S)

    def behind(self, revision: int) -> list[int]:
        """Return the members whose watches have not shown a revision."""
        return [
            member
            for member in self.urls()
            if member not in self.following or _next(self.following[member]) <= revision
        ]

    async def until(self, revision: int) -> None:
        """Wait until the watches at all members have shown a revision."""
        while self.behind(revision):  # noqa: ASYNC110 - members come and go
            await trio.sleep(_PAUSE_S)

    def end(self) -> None:
        """Note that the watches at the present members should have seen everything."""
        for member in self.urls():
            if member in self.following:
                self.following[member].whole = True

    async def _follow(self, member: int) -> None:
        if member not in self.following:
            self._begin(member, 2)
        rng = random.Random(f"{self.seed}/etcd/watch/{member}")  # noqa: S311 - no secret
        while member in self.urls():
            with suppress(TransportError), trio.move_on_after(BREAK_S * rng.random()):
                async with GatewayClient(self.urls()[member]) as call:
                    await self._watch(call, member)
            await trio.sleep(_PAUSE_S)

    def _begin(self, member: int, start: int) -> None:
        watched = Watched(f"the watch at member {member}", start, began=trio.current_time())
        self.following[member] = watched
        self.records.watches.append(watched)

    async def _watch(self, call: GatewayClient, member: int) -> None:
        watched = self.following[member]
        create = rpc.WatchCreateRequest(
            key=PREFIX, range_end=END, start_revision=_next(watched), prev_kv=True
        )

        def take(reply: rpc.WatchResponse) -> None:
            if reply.created:
                self.records.resumed += bool(watched.deliveries)
            if reply.canceled:
                if reply.compact_revision > create.start_revision:
                    self._begin(member, reply.compact_revision)
                else:
                    self.records.trouble.append(f"{watched.name} was cancelled: {reply!r:.200}")
            elif reply.events:
                watched.deliveries.append(Delivery(trio.current_time(), list(reply.events)))
                last = reply.events[-1].kv.mod_revision
                self.records.known = max(self.records.known, last)
                if reply.header.revision < last:
                    words = f"{last} in a reply as of {reply.header.revision}"
                    self.records.trouble.append(f"{watched.name} showed revision {words}")

        request = rpc.WatchRequest(create_request=create)
        await call.follow("/v3/watch", request, rpc.WatchResponse, take)


def _next(watched: Watched) -> int:
    if not watched.deliveries:
        return watched.start
    return watched.deliveries[-1].events[-1].kv.mod_revision + 1
