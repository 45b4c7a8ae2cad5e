"""The members of a machine, each a child process that is started again when it ends.

A map starts members, and never stops one: a member ends when its group has removed it, and says so
by its exit status. So nothing is lost because of a map that is old or wrong.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.folder import folder_of
from ..local.stores import has_store, was_removed
from ..log_events import log_event
from .files import SET_ASIDE, write_member

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..keyvalue.slots.cluster_map import ClusterMap
    from .config import MachineConfig

__all__ = ["Child", "Children"]

_LOG: Final = logging.getLogger("quorate.machine")

REMOVED: Final = 77
"""Exit status of a member that was removed from its group."""

NEEDS_OPERATOR: Final = frozenset((64, 66, 76, 78))
"""Exit statuses of a member that does not come back by itself: a wrong call, a lost disk, a stop
rather than a loss of data, a wrong configuration. Started again, it might do harm."""

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 15.0
"""Pauses before a member is started again. They double while it ends at once. Shorter, and a member
that cannot start takes the processor from others. Longer, and its group is without it for longer
than needed."""

SEAT_SECONDS: Final = 5.0
"""How long a member without a seat waits for one. Shorter, and it asks for nothing; longer, and its
group is one member short for longer."""

STEADY_SECONDS: Final = 30.0
"""A member that has run for so long starts again after the first pause."""


class Child(Protocol):
    """What runs a member; see `ChildProcess`."""

    async def start(self) -> None:
        """Start it."""
        ...

    async def wait(self) -> int:
        """Wait for its end; return the exit status."""
        ...

    async def stop(self) -> None:
        """Stop it in order."""
        ...


class Children:
    """The members of a machine.

    Args:
        config: of the machine.
        nursery: runs a task for each member. Its end stops them in order.
        make: returns what runs the member of a file.
    """

    def __init__(
        self, config: MachineConfig, nursery: trio.Nursery, make: Callable[[Path], Child]
    ) -> None:
        self._config, self._nursery, self._make = config, nursery, make
        self._running = set[int]()
        self._newest: ClusterMap | None = None

    def adopt(self, cluster_map: ClusterMap) -> None:
        """Start the members that a map puts here, and those that have a store here.

        Args:
            cluster_map: the newest one. Later than the removal of a member, it may put it here
                again, with an empty store.

        Raises:
            ConfigurationError: a file cannot be made.
            OSError: a file cannot be written.
        """
        own, self._newest = self._config.machine_id, cluster_map
        for partition in (META, *range(len(cluster_map.partitions))):
            if partition in self._running:
                continue
            folder = folder_of(self._config.directory, partition)
            is_wanted = own in cluster_map.replicas_of(partition)
            if was_removed(folder):
                if not is_wanted:
                    continue
                _set_aside(folder)
            elif not (is_wanted or has_store(folder)):
                continue
            self._running.add(partition)
            file = write_member(self._config, cluster_map, partition)
            self._nursery.start_soon(self._keep, partition, self._make(file))

    async def _keep(self, partition: int, child: Child) -> None:
        """Run a member until it is removed from its group."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = trio.current_time()
            status = await _run_once(child)
            if status == REMOVED:
                words = "the member of partition %(partition)d was removed, and is not started"
                log_event(_LOG, logging.INFO, "child_removed", words, partition=partition)
                await self._come_back(partition)
                return
            if status in NEEDS_OPERATOR:
                words = (
                    "the member of partition %(partition)d has ended with status %(status)d, and "
                    "needs an operator; afterwards, start this machine again"
                )
                log_event(
                    _LOG, logging.ERROR, "child_failed", words, partition=partition, status=status
                )
                return
            if trio.current_time() - began >= STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            words = "the member of partition %(partition)d has ended with status %(status)d"
            log_event(
                _LOG,
                logging.WARNING,
                "child_ended",
                words,
                partition=partition,
                status=status,
                seconds=pause,
            )
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _come_back(self, partition: int) -> None:
        """After a removal: begin again, if the map wants the member here all the same."""
        self._running.discard(partition)
        # The map is changed first, and the group's seats follow. So a member that is to come back
        # may find no seat yet; and one that was removed may not have the new map yet.
        await trio.sleep(SEAT_SECONDS)
        newest = self._newest
        if newest is not None and self._config.machine_id in newest.replicas_of(partition):
            self.adopt(newest)


async def _run_once(child: Child) -> int:
    """Run a member to its end; stop it in order when cancelled."""
    try:
        await child.start()
        return await child.wait()
    finally:
        with trio.CancelScope(shield=True):
            await child.stop()


def _set_aside(folder: Path) -> None:
    """Keep the store of a member that was removed, and make room for a new one.

    Raises:
        OSError: it cannot be moved.
    """
    number = 1
    while (place := folder.with_name(f"{folder.name}{SET_ASIDE}{number}")).exists():
        number += 1
    folder.rename(place)
