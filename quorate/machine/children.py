"""The members of a machine, each a child process that is started again when it ends.

A map starts members, and never stops one: a member ends when its group has removed it, and says so
by its exit status. So nothing is lost because of a map that is old or wrong.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ..errors import ConfigurationError, StorageError
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.folder import board_file, folder_of
from ..local.stores import has_store, was_removed
from ..log_events import log_event
from ..storage.log.readonly import open_readonly
from ..storage.rows.log_end import EMPTY_LOG
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
LONGEST_SEAT_SECONDS: Final = 300.0
"""How long a member without a seat waits for one; it doubles each time. Shorter, and it asks for
nothing; longer, and its group is one member short for longer."""

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
        self._kept = set[int]()
        self._newest: ClusterMap | None = None
        self._changed = trio.Event()

    def adopt(self, cluster_map: ClusterMap, *, guessed: bool = False) -> None:
        """Start the members that a map puts here, and those that have a store here.

        Args:
            cluster_map: the newest one. Later than the removal of a member, it may put it here
                again, with an empty store.
            guessed: nobody has sent the map, it is what this machine's file says. No partition
                begins by that, since it may have begun long ago, elsewhere.
        """
        self._newest = cluster_map
        for partition in (META, *range(len(cluster_map.partitions))):
            begins = self._is_wanted(partition) and (partition == META or not guessed)
            folder = folder_of(self._config.directory, partition)
            if partition not in self._kept and (begins or has_store(folder)):
                self._kept.add(partition)
                self._nursery.start_soon(self._keep, partition)
        self._changed.set()
        self._changed = trio.Event()

    def _is_wanted(self, partition: int) -> bool:
        assert self._newest is not None, "it was adopted"
        return self._config.machine_id in self._newest.replicas_of(partition)

    async def _keep(self, partition: int) -> None:
        """Run a member for ever; again with an empty store, if it is wanted after its removal."""
        folder, pause = folder_of(self._config.directory, partition), SEAT_SECONDS
        while True:
            while was_removed(folder) and not self._is_wanted(partition):
                await self._changed.wait()
            began = trio.current_time()
            await self._live(partition, folder)
            # The map is changed first, and the group's seats follow. So a member that is to come
            # back may find no seat yet; and one that was removed may not have the new map yet.
            if trio.current_time() - began >= STEADY_SECONDS:
                pause = SEAT_SECONDS
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_SEAT_SECONDS)

    async def _live(self, partition: int, folder: Path) -> None:
        """Run a member until it is removed from its group."""
        pause, child = FIRST_PAUSE_SECONDS, None
        while True:
            began = trio.current_time()
            try:
                file = self._prepare(partition, folder)
                child = child or self._make(file)
                status = await _run_once(child)
            except (ConfigurationError, OSError) as error:
                # Perhaps the disk is full, or the next map is a better one.
                _tell_it_waits(partition, pause, str(error))
            else:
                if status == REMOVED:
                    words = "the member of partition %(partition)d was removed, and is not started"
                    log_event(_LOG, logging.INFO, "child_removed", words, partition=partition)
                    return
                if status in NEEDS_OPERATOR:
                    _tell_it_failed(partition, status)
                    self._take_back_notice(partition)
                    await trio.sleep_forever()
                if trio.current_time() - began >= STEADY_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                _tell_it_ended(partition, pause, status)
            finally:
                self._take_back_notice(partition)
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _prepare(self, partition: int, folder: Path) -> Path:
        """Write a member's file, by the newest map; return it.

        Raises:
            ConfigurationError: the map does not say what the file needs.
            OSError: it cannot be written.
        """
        assert self._newest is not None, "it was adopted"
        if was_removed(folder):
            _set_aside(folder)
        self._take_back_notice(partition)
        return write_member(self._config, self._newest, partition)

    def _take_back_notice(self, partition: int) -> None:
        """Have nobody believe what a member has noted that does not run."""
        with suppress(OSError):  # it cannot be seen from here then either
            board_file(self._config.directory, partition).unlink(missing_ok=True)


def _tell_it_waits(partition: int, seconds: float, why: str) -> None:
    log_event(
        _LOG,
        logging.ERROR,
        "child_waits",
        "the member of partition %(partition)d cannot be started, and is tried again in "
        "%(seconds)g s: %(why)s",
        partition=partition,
        seconds=seconds,
        why=why,
    )


def _tell_it_failed(partition: int, status: int) -> None:
    log_event(
        _LOG,
        logging.ERROR,
        "child_failed",
        "the member of partition %(partition)d has ended with status %(status)d, and needs an "
        "operator; afterwards, start this machine again",
        partition=partition,
        status=status,
    )


def _tell_it_ended(partition: int, seconds: float, status: int) -> None:
    log_event(
        _LOG,
        logging.WARNING,
        "child_ended",
        "the member of partition %(partition)d has ended with status %(status)d",
        partition=partition,
        status=status,
        seconds=seconds,
    )


async def _run_once(child: Child) -> int:
    """Run a member to its end; stop it in order when cancelled."""
    try:
        await child.start()
        return await child.wait()
    finally:
        with trio.CancelScope(shield=True):
            await child.stop()


def _set_aside(folder: Path) -> None:
    """Keep the store of a member that was removed, unless it is empty; make room for a new one.

    Raises:
        OSError: it cannot be moved.
    """
    if _is_empty(folder):  # it has never got a seat
        shutil.rmtree(folder)
        return
    number = 1
    while (place := folder.with_name(f"{folder.name}{SET_ASIDE}{number}")).exists():
        number += 1
    folder.rename(place)


def _is_empty(folder: Path) -> bool:
    """Whether the log of a member has never had an entry, as far as can be said."""
    try:
        with open_readonly(folder / "log") as store:
            return store.recorded.append_position == EMPTY_LOG.position
    except StorageError:
        return False
