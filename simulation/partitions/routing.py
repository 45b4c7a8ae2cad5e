"""A client of a cluster with partitions: it asks the group that it takes for a key's owner.

It has no map. A group that does not own the slot says so, and then the client asks the next one: as
with a map that is old, that costs a way, and nothing else. An operation is over when a group has
executed it, or when its outcome is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...errors import NoLeaderError, RequestError
from ...keyvalue.protocol.payload import PART, PayloadParser
from ...keyvalue.slots.hashing import key_slot
from ...node.requests.request import UNSTAMPED
from ..door import Door
from .groups import doors_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from ...node.requests.request import Stamp
    from .groups import Cluster

ELSEWHERE: Final = (b"-CLUSTERDOWN", b"-MOVED", b"-NOTHERE")
PATIENCE_TIMEOUTS: Final = 20.0
"""How long a client looks for the owner, in heartbeat timeouts. Shorter: less is done while slots
move. Longer: it spends the storm with one operation."""


class RoutingDoor(Door):
    """A client's access to all groups.

    Args:
        client: number of the client.
        cluster: the groups.
        rng: chooses members, delays and patience.
    """

    def __init__(self, client: int, cluster: Cluster, rng: Random) -> None:
        group = cluster.groups[cluster.partitions[0]]
        super().__init__(client, group.world, rng, group.observer.tell, group.storm.serials)
        self.cluster = cluster
        self.doors = doors_of(cluster, client, rng)
        self._owners: dict[int, int] = {}
        self._parse = PayloadParser().parse_untrusted

    @property
    def patience_s(self) -> float:
        """How long it looks for a slot's owner."""
        return PATIENCE_TIMEOUTS * self.cluster.unit

    def owner_of(self, key: bytes) -> int:
        """Return the group that it takes for a key's owner."""
        slot = key_slot(key)
        if slot not in self._owners:
            self._owners[slot] = self.rng.choice(self.cluster.partitions)
        return self._owners[slot]

    def not_there(self, key: bytes, partition: int) -> None:
        """A group has said that it does not own a key's slot."""
        others = [each for each in self.cluster.partitions if each != partition]
        self._owners[key_slot(key)] = self.rng.choice(others)

    async def command(
        self,
        payload: bytes,
        flags: int = 0,
        stamp: Stamp = UNSTAMPED,
        *,
        among: Sequence[int] = (),
    ) -> bytes:
        """See `Door`; the group that owns the slot executes it."""
        del stamp, among
        return await self._routed(payload, flags, query=False)

    async def query(self, payload: bytes, flags: int = 0, *, among: Sequence[int] = ()) -> bytes:
        """See `Door`; the group that owns the slot answers."""
        del among
        return await self._routed(payload, flags, query=True)

    async def _routed(self, payload: bytes, flags: int, *, query: bool) -> bytes:
        key = self._parse(payload)[0][1]
        deadline = trio.current_time() + self.patience_s
        while trio.current_time() < deadline:
            at, since = self.owner_of(key), trio.current_time()
            door = self.doors[at]
            try:
                reply = await (door.query if query else door.command)(payload, flags)
            except RequestError as error:
                self.counts["fail" if isinstance(error, NoLeaderError) else "unknown"] += 1
                raise
            if reply.startswith(ELSEWHERE):
                self.not_there(key, at)
            elif not reply.startswith(PART):
                self.counts["ok"] += 1
                if query and not reply.startswith(b"-"):
                    self.cluster.book.answered(at, payload, reply, since)
                return reply
            await trio.sleep(self.cluster.unit * 0.1 * self.rng.random())
        self.counts["fail"] += 1
        raise NoLeaderError("no group has executed it in time, and none will")
