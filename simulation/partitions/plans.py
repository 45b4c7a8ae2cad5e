"""Operators' plans: a split, replicas elsewhere, and a metadata group that loses its map.

A run has some of these, by its seed. Each is an order like those of `operators.py`: it may be lost,
and nobody waits for what comes of it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...errors import ConfigurationError, ConflictError, RequestError
from ...keyvalue.slots.cluster_map import MAP_KEY, META
from ...partitions.balance import split, with_replicas
from ...partitions.metadata import change, load
from .directors import MACHINES
from .groups import PlainGroup, doors_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from random import Random

    from ...keyvalue.slots.cluster_map import ClusterMap
    from .groups import Cluster

PLANNER: Final = 901
KINDS: Final = ("split", "replicas", "older map")
LIKELY: Final = 0.4
"""Probability of each kind in a run. Larger: fewer runs have moves alone, which end more often."""
PAUSE_TIMEOUTS: Final = 16.0
"""Longest time between two plans, in heartbeat timeouts: two or three in a storm."""
PATIENCE_TIMEOUTS: Final = 20.0


def kinds_of(rng: Random) -> list[str]:
    """Draw what a run has."""
    return [each for each in KINDS if rng.random() < LIKELY]


class Plans:
    """Operators with plans.

    Args:
        cluster: the groups.
        rng: chooses when, and which.
        kinds: some of `KINDS`.

    Attributes:
        counts: what they did.
    """

    def __init__(self, cluster: Cluster, rng: Random, kinds: Collection[str]) -> None:
        self._cluster = cluster
        self._rng = rng
        self._kinds = [*kinds]
        self._meta = PlainGroup(doors_of(cluster, PLANNER, rng)[META])
        self.counts = dict.fromkeys((f"plan: {each}" for each in KINDS), 0)

    async def run(self) -> None:
        """Give one order after the other, until cancelled."""
        orders: dict[str, Callable[[], Awaitable[object]]] = {
            "split": self._split,
            "replicas": self._replicas,
            "older map": self._lose_map,
        }
        while self._kinds:
            await trio.sleep(self._cluster.unit * PAUSE_TIMEOUTS * self._rng.random())
            kind = self._rng.choice(self._kinds)
            with (
                contextlib.suppress(RequestError, ConfigurationError, ConflictError),
                trio.move_on_after(self._cluster.unit * PATIENCE_TIMEOUTS),
            ):
                if self._cluster.book.cluster_map and await load(self._meta):
                    self.counts[f"plan: {kind}"] += 1
                    await orders[kind]()

    async def _split(self) -> None:
        """Have twice as many partitions, once in a run."""
        self._kinds.remove("split")
        most = len(self._cluster.groups) - 1

        def edit(now: ClusterMap) -> ClusterMap | None:
            if len(now.partitions) == most:
                return None
            # Where the members of the new groups are.
            fewer = msgspec.structs.replace(now, machines=now.machines[:MACHINES])
            return msgspec.structs.replace(split(fewer), machines=now.machines)

        try:
            await change(self._meta, edit)
        except BaseException:
            self._kinds.append("split")  # it repeats what has had no answer
            raise

    async def _replicas(self) -> None:
        """Have the replicas of a partition on other machines, some of them or all."""
        partition = self._rng.choice(self._cluster.partitions)

        def edit(now: ClusterMap) -> ClusterMap | None:
            if partition >= len(now.partitions):
                return None
            machines = [each.machine_id for each in now.machines]
            return with_replicas(now, partition, self._rng.sample(machines, MACHINES))

        await change(self._meta, edit)

    async def _lose_map(self) -> None:
        """Delete the map. It comes back from the file of a machine, as it was some time ago."""
        await self._meta.execute("DEL", MAP_KEY)
