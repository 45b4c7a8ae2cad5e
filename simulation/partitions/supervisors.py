"""What the supervisors of machines do: they start the members that there are to be.

Those of groups that a split has made begin once the map names them. A member that gets a seat has
its machine at once, or a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...keyvalue.slots.cluster_map import decode_map_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable

    from .groups import Cluster, SimulatedGroup

PERIOD_TIMEOUTS: Final = 0.2


class Supervisors:
    """The supervisors of all machines.

    Args:
        cluster: the groups.

    Attributes:
        started: how many members they have started.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.started = 0

    async def run(self, begun: Callable[[SimulatedGroup], None] | None = None) -> None:
        """Start members until cancelled; call `begun`, if any, with each group that begins."""
        while True:
            book = self._cluster.book
            named = decode_map_untrusted(book.newest).partitions if book.newest else ()
            for each in named:
                if each.partition not in self._cluster.begun:
                    group = self._cluster.groups[each.partition]
                    await group.storm.begin()
                    self._cluster.begun.add(each.partition)
                    if begun is not None:
                        begun(group)
            for group in self._cluster.running:
                await self._seat(group)
            await trio.sleep(self._cluster.unit * PERIOD_TIMEOUTS)

    async def _seat(self, group: SimulatedGroup) -> None:
        """Start the members of a group that have a seat, and no machine."""
        made = group.storm.make_machines()
        self.started += len(made)
        if made:
            await group.world.start(*made)
