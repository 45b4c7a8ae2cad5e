"""A watch at each member, which goes on where it was."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import trio

from ...errors import TransportError
from ...etcd.messages import rpc_pb2 as rpc
from .connecting import Client, connected
from .records import END, PREFIX, Delivery, Progress, Records, Watched

__all__ = ["Urls", "Watches", "begin", "follow"]

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
            if member not in self.following or self.following[member].next <= revision
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
            with (
                suppress(TransportError, trio.TooSlowError),
                trio.move_on_after(BREAK_S * rng.random()),
            ):
                async with connected(self.urls()[member], rng) as call:
                    if start := await follow(call, self.following[member], self.records):
                        self._begin(member, start, cut=True)
            await trio.sleep(_PAUSE_S)

    def _begin(self, member: int, start: int, *, cut: bool = False) -> None:
        self.following[member] = begin(
            f"the watch at member {member}", start, self.records, cut=cut
        )


def begin(name: str, start: int, records: Records, *, cut: bool = False) -> Watched:
    """Note a new watch."""
    watched = Watched(name, start, began=trio.current_time(), cut=cut)
    records.watches.append(watched)
    return watched


async def follow(call: Client, watched: Watched, records: Records) -> int:
    """Go on with a watch until it ends, and ask once how far it is.

    Returns:
        From where it may be made anew if what it needs is compacted; 0 if it has ended otherwise.

    Raises:
        TransportError: the connection is lost, or the member ends the stream.
    """
    create = rpc.WatchCreateRequest(
        key=PREFIX, range_end=END, start_revision=watched.next, prev_kv=True, progress_notify=True
    )
    start = 0

    def take(reply: rpc.WatchResponse) -> bool:
        nonlocal start
        if reply.created:
            records.resumed += bool(watched.deliveries)
        if reply.canceled:
            start = reply.compact_revision
            if start <= create.start_revision:
                records.trouble.append(f"{watched.name} was cancelled: {reply!r:.200}")
        elif reply.events:
            _take_events(reply, watched, records)
        elif not reply.created:
            watched.progress.append(Progress(reply.header.revision, watched.next - 1))
        return not reply.canceled

    requests = [
        rpc.WatchRequest(create_request=create),
        rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()),
    ]
    await call.follow("/v3/watch", requests, rpc.WatchResponse, take)
    return start if start > create.start_revision else 0


def _take_events(reply: rpc.WatchResponse, watched: Watched, records: Records) -> None:
    watched.deliveries.append(Delivery(trio.current_time(), list(reply.events)))
    last = watched.next - 1
    records.known = max(records.known, last)
    if reply.header.revision < last:
        words = f"{last} in a reply as of {reply.header.revision}"
        records.trouble.append(f"{watched.name} showed revision {words}")
