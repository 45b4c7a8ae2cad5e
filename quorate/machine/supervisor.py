"""The supervisor of a machine: it runs the machine's members, and tells them the newest map.

No request of a client passes through it. A machine whose supervisor has died goes on only until its
members notice that their standard input has ended; then they stop in order, so that no member is
left without one that starts it again.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ..errors import QuorateError
from ..keyvalue.slots.cluster_map import META, ClusterMap
from ..keyvalue.slots.folder import folder_of
from ..local.child import ChildProcess
from ..local.stores import has_store
from ..log_events import log_event
from ..partitions.metadata import again, change
from .children import Children
from .direction import direct_while_leading
from .finding import look_for_map
from .map_watch import KnownMap, watch_map
from .maps import map_of_file
from .reach import RemoteGroups, addresses_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..node.requests.status import MemberAddress
    from .config import MachineConfig

__all__ = ["LOG_FILE", "supervise"]

_LOG: Final = logging.getLogger("quorate.machine")

LOG_FILE: Final = "member.log"
"""Of a member's log lines, in its folder."""

LOOK_SECONDS: Final = 1.0


async def supervise(config: MachineConfig, *, own_logs: bool) -> None:
    """Run a machine until cancelled; then stop its members in order.

    Args:
        config: of the machine.
        own_logs: whether each member logs to a file in its folder, not to our standard error.

    Raises:
        ConfigurationError: the file of a member cannot be made, or the folder is of another
            cluster.
        RemovedError: the machine was removed from the cluster.
        OSError: a file cannot be written, or a process cannot be started.
    """

    def child(file: Path) -> ChildProcess:
        return ChildProcess(file, file.parent / LOG_FILE if own_logs else None, own_group=False)

    known = KnownMap(config.directory, config.cluster, config.machine_id)
    by_file = map_of_file(config)

    def newest() -> ClusterMap:
        return known.newest or by_file

    def first() -> ClusterMap | None:
        # A metadata group that has lost its map gets the one that was there last.
        if known.newest is not None:
            return again(known.newest)
        return None if config.join else by_file

    async with trio.open_nursery() as nursery:
        children = Children(config, nursery, child)
        if not (known.newest or config.join or has_store(folder_of(config.directory, META))):
            words = "a new folder: asks the other machines for the map of cluster %(cluster)s first"
            log_event(_LOG, logging.INFO, "map_looked_for", words, cluster=config.cluster)
            await look_for_map(config, known)
        if known.newest is not None or not config.join:
            children.adopt(newest(), guessed=known.newest is None)
        groups = RemoteGroups(nursery, newest)
        nursery.start_soon(watch_map, known, _meta_places(newest), children.adopt)
        nursery.start_soon(_keep_entry, config, known, groups)
        nursery.start_soon(direct_while_leading, config, groups, first)


def _meta_places(newest: Callable[[], ClusterMap]) -> Callable[[], list[MemberAddress]]:
    """Return what names the client ports of the metadata group.

    Every second time it names those that all machines would have: the group may have left all of
    its machines while this one was down.
    """
    turns = itertools.cycle((False, True))

    def members() -> list[MemberAddress]:
        now = newest()
        if next(turns):
            everywhere = tuple(each.machine_id for each in now.machines)
            now = msgspec.structs.replace(now, metadata=everywhere)
        return addresses_of(now, META)

    return members


async def _keep_entry(config: MachineConfig, known: KnownMap, groups: RemoteGroups) -> None:
    """Have the map say of this machine what its file says: that it is there, and where."""
    wanted = config.own.as_machine()

    def edit(now: ClusterMap) -> ClusterMap | None:
        before = now.machine(config.machine_id)
        draining = before is not None and before.draining  # only the map says that
        entry = msgspec.structs.replace(wanted, draining=draining)
        if before == entry:
            return None
        others = [each for each in now.machines if each.machine_id != entry.machine_id]
        machines = sorted([*others, entry], key=lambda each: each.machine_id)
        return msgspec.structs.replace(now, machines=tuple(machines))

    while True:
        found = known.newest
        if found is not None and edit(found) is not None:
            try:
                await change(groups.group(META), edit)
            except QuorateError as error:
                words = "the map does not have this machine yet: %(why)s"
                log_event(_LOG, logging.INFO, "map_unchanged", words, why=str(error))
        await trio.sleep(LOOK_SECONDS)
