"""The cluster as faults see it, and what they use to do their work."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import trio

from ...errors import PrunedError
from ...storage import decode_header_untrusted

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from ...node import Service
    from ..observer import Observer
    from ..watching.facts import Batch
    from ..world import World


class FaultContext:
    """The cluster that faults are done to.

    Args:
        world: the cluster.
        observer: what is known of it.
        rng: chooses which fault, when, and which member.

    Attributes:
        unit: seconds of a heartbeat timeout; everything that lasts is measured in it.
        counts: how often each fault was done.
        rotten: members whose recording is damaged.
        stranded: leaders that stay cut off, whatever other faults cut and mend.
        orders: how many orders of an operator about members are under way.
        nursery: runs what faults leave behind; None unless a storm is on.
    """

    def __init__(self, world: World[Service], observer: Observer, rng: random.Random) -> None:
        self.world = world
        self.observer = observer
        self.rng = rng
        self.unit = world.setting.timeouts.leader_heartbeat_timeout
        self.counts: Counter[str] = Counter()
        self.rotten: list[int] = []
        self.stranded: list[int] = []
        self.orders = 0
        self._machines = 0
        self.nursery: trio.Nursery | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """All members that were not removed."""
        return self.world.present

    def count(self, words: str) -> None:
        """Count something that was done."""
        self.counts[words] += 1

    def new_name(self) -> str:
        """Give the name of another machine in the network."""
        self._machines += 1
        return f"n{self._machines}"

    def anyone(self) -> int:
        """Choose a member."""
        return self.rng.choice(self.ids)

    def without_good_stores(self) -> list[int]:
        """Give the members whose recording is rotten, or which vote with a store that is lost."""
        lacking = {
            voter.member_id
            for membership in self.observer.known.open_configurations()
            for voter in membership.quorums.voters
            if not self.observer.known.is_there(voter)
        }
        return [i for i in self.ids if i in self.rotten or i in lacking]

    def may_spoil(self, member: int) -> bool:
        """Say whether only a minority is without a good store, in each set, if a member is."""
        spoilt = {*self.without_good_stores(), member}
        sets = [
            {voter.member_id for voter in voters}
            for membership in self.observer.known.open_configurations()
            for voters in membership.quorums.sets
        ]
        return all(len(spoilt & voters) <= (len(voters) - 1) // 2 for voters in sets)

    def pair(self) -> tuple[int, int]:
        """Choose two members."""
        one, other = self.rng.sample(self.ids, 2)
        return one, other

    def may_start(self, member: int) -> bool:
        """Say whether it makes sense to start a member: not before its machine has let go of it."""
        return self.world.hosts[member].stopped

    def heal(self, source: str, target: str) -> None:
        """Undo the cut of a way, unless it leads to or from a stranded leader."""
        if not {source, target} & {self.world.name(i) for i in self.stranded}:
            self.world.network.heal(source, target, both=False)

    def a_while(self) -> float:
        """Draw how long a fault lasts, in seconds: mostly short, at times for long."""
        return self.unit * self.rng.choice((0.1, 0.6, 2.0, 6.0)) * self.rng.random()

    def later(self, seconds: float, undo: Callable[[], None]) -> None:
        """Call `undo` after a while, unless the storm is over before."""

        async def wait() -> None:
            await trio.sleep(seconds)
            undo()

        self.spawn(wait)

    def spawn(self, what: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run `what` in the background until the storm is over."""
        assert self.nursery is not None
        self.nursery.start_soon(what, *arguments)

    def find_batch(self, member: int, batch: Batch) -> bytes | None:
        """Give the bytes of a recorded batch of a running member, None if it can't be had.

        It may have been pruned, or truncated, since it was known to be there.
        """
        host = self.world.hosts[member]
        if host.member is None or member in self.rotten:
            return None
        with contextlib.suppress(PrunedError):
            raw = next(iter(host.member.store.scan(batch.position)), None)
            if raw is not None and decode_header_untrusted(raw).end == batch.end:
                return raw
        return None
