"""The lives of directors: each is a process that may stand still, be cut off, and die at any await.

In production a director runs where the metadata group's leader runs, so there may be two for a
while, or none. Here there are two places for a director, and what happens to one does not depend on
the other.

Each place has a map in a file, which may be older than the newest one. A metadata group that has
lost its map gets that one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...errors import ConfigurationError, ConflictError, RequestError
from ...keyvalue.slots.cluster_map import META, Machine, decode_map_untrusted
from ...partitions.balance import first_map
from ...partitions.director import Director
from ...partitions.metadata import LOST_EPOCHS, again, found
from ..recipes.programs import Program
from .groups import DirectorsGroups, doors_of

if TYPE_CHECKING:
    from random import Random

    from ...keyvalue.slots.cluster_map import ClusterMap
    from ...partitions.groups import Groups
    from .groups import Cluster

DIRECTORS: Final = 2
DIRECTOR: Final = 800
"""Number of the first director as a client."""
LIFE_TIMEOUTS: Final = 40.0
"""Longest life of a director, in heartbeat timeouts."""
TROUBLE_TIMEOUTS: Final = 6.0
"""Longest time between two troubles of a director."""
LONGEST_TROUBLE_TIMEOUTS: Final = 8.0
TROUBLE: Final = {"pause": 2, "cut": 2, "die": 2}
CLUSTER: Final = "simulated"
MACHINES: Final = 3
"""Machines that have members at the beginning."""
SPARE_MACHINES: Final = 3
"""Further machines, for members that a plan puts elsewhere."""
NOTES: Final = 0.3
"""Part of the lives of directors before which their machine has noted the newest map."""


class Directors:
    """The directors of a cluster.

    Args:
        cluster: the groups.
        rng: chooses what happens to them.

    Attributes:
        lives: how many there were.
    """

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._numbers = itertools.count(1)
        self._doors = [doors_of(cluster, DIRECTOR + each, rng) for each in range(DIRECTORS)]
        self._maps = [first_of(cluster)] * DIRECTORS
        self.lives = 0

    async def run(self, *, troubled: bool) -> None:
        """Let directors live, one after another in each place, until cancelled."""
        async with trio.open_nursery() as nursery:
            for place in range(DIRECTORS):
                nursery.start_soon(self._live, place, troubled)

    async def _live(self, place: int, troubled: bool) -> None:  # noqa: FBT001 - of a task
        while True:
            async with trio.open_nursery() as nursery:
                doors = self._doors[place]
                program = Program(next(self._numbers), doors[META], self._cluster.pauses, nursery)
                self.lives += 1

                async def live(program: Program, nursery: trio.Nursery, place: int) -> None:
                    await program.run(lambda it: self._main(it, place))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(live, program, nursery, place)
                if troubled:
                    await self._trouble(program)
            await trio.sleep(self._cluster.unit * 2 * self._rng.random())

    async def _main(self, program: Program, place: int) -> None:
        groups = DirectorsGroups(self._cluster, program, self._doors[place])
        try:
            await direct(groups, self._first(place), program.rng)
        except* (RequestError, ConfigurationError, ConflictError):
            pass  # the machine begins again, a little later

    def _first(self, place: int) -> ClusterMap:
        """Return what a metadata group without a map gets from the machine of a director."""
        book = self._cluster.book
        if not book.newest:
            return self._maps[place]
        newest, noted = decode_map_untrusted(book.newest), self._maps[place]
        # An operator stores a newer one if there were splits, or more changes than `again` allows.
        too_old = newest.epoch - noted.epoch > LOST_EPOCHS // 2
        if too_old or len(newest.partitions) != len(noted.partitions) or self._rng.random() < NOTES:
            self._maps[place] = newest
        return again(self._maps[place])

    async def _trouble(self, program: Program) -> None:
        rng, unit = self._rng, self._cluster.unit
        try:
            while True:
                await trio.sleep(TROUBLE_TIMEOUTS * unit * rng.random())
                (trouble,) = rng.choices(list(TROUBLE), list(TROUBLE.values()))
                if trouble == "die":
                    program.die()
                    await trio.sleep_forever()
                elif trouble == "cut":
                    program.cut()
                    await trio.sleep(LONGEST_TROUBLE_TIMEOUTS * unit * rng.random())
                    program.mend()
                else:
                    program.pause()
                    await trio.sleep(LONGEST_TROUBLE_TIMEOUTS * unit * rng.random())
                    program.resume()
        finally:
            program.mend()
            program.resume()


def first_of(cluster: Cluster) -> ClusterMap:
    """Return the first map of a cluster."""
    machines = [Machine(i, f"h{i}", 7000, 6000) for i in range(MACHINES + SPARE_MACHINES)]
    first = first_map(CLUSTER, machines[:MACHINES], len(cluster.partitions), MACHINES)
    return msgspec.structs.replace(first, machines=tuple(machines))


async def direct(groups: Groups, first: ClusterMap, rng: Random) -> None:
    """Do what the supervisor does where the metadata group leads: found the cluster, and direct.

    Args:
        groups: of the cluster.
        first: what a metadata group without a map gets.
        rng: draws the director's pauses.

    Raises:
        RequestError: the metadata group does not answer.
    """
    await found(groups.group(META), first)
    await Director(groups, rng).run()
