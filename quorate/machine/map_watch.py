"""The newest map that a machine has seen, in the file ``map.json`` of its folder.

The supervisor writes the file, and the machine's members read it. Its epoch never falls: a map is
dropped if a newer one was seen. So a metadata member that is behind, or a backup that was restored,
sends nobody back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from ..errors import ConfigurationError, QuorateError, RemovedError
from ..keyvalue.slots.cluster_map import MAP_KEY, decode_map_untrusted, encode_map
from ..keyvalue.slots.folder import MAP_FILE, replace_file
from ..log_events import log_event
from .reach import open_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..node.requests.status import MemberAddress

__all__ = ["KnownMap", "watch_map"]

_LOG: Final = logging.getLogger("quorate.machine")

PAUSE_SECONDS: Final = 0.5
"""Pause before the metadata group is asked again. Shorter: while it is down, machines ask it all
the time. Longer: a map arrives late after an election."""


class KnownMap:
    """The newest map that this machine has seen.

    Args:
        folder: of the machine.
        cluster: its name; a map of another one is dropped.
        machine_id: of the machine.

    Attributes:
        newest: the map; None if there is none yet.
    """

    def __init__(self, folder: Path, cluster: str, machine_id: int) -> None:
        self._file, self._cluster, self._machine_id = folder / MAP_FILE, cluster, machine_id
        self.newest: ClusterMap | None = self._read()

    def _read(self) -> ClusterMap | None:
        try:
            found = decode_map_untrusted(self._file.read_bytes(), what=str(self._file))
        except FileNotFoundError:
            return None
        except ConfigurationError as error:  # the metadata group has another
            log_event(_LOG, logging.WARNING, "map_refused", "%(why)s", why=str(error))
            return None
        self._check_cluster(found)
        return found

    def _check_cluster(self, found: ClusterMap) -> None:
        if found.cluster != self._cluster:
            raise ConfigurationError(
                f'{self._file}: it is of cluster "{found.cluster}": expected that of '
                f'"{self._cluster}": this folder belongs to another machine'
            )

    def _check_not_forgotten(self, before: ClusterMap, found: ClusterMap) -> None:
        if before.machine(self._machine_id) and not found.machine(self._machine_id):
            raise RemovedError(
                f'machine {self._machine_id} was removed from cluster "{self._cluster}" by map '
                f"{found.epoch} (quorate machine forget): no group has a member here, and "
                f"{self._file.parent} is not needed any more. To come back, the machine needs an "
                "empty folder, and join = true in its file"
            )

    def offer(self, data: bytes) -> bool:
        """Take a map if it is newer than all before; say whether it was.

        Args:
            data: of the metadata group.

        Raises:
            ConfigurationError: it is of another cluster, or no map.
            RemovedError: this machine was in a map, and is in this one no more. The map is not
                taken, so that it is found out again at the next start.
            OSError: the file cannot be written.
        """
        found = decode_map_untrusted(data)
        self._check_cluster(found)
        if self.newest is not None:
            if found.epoch <= self.newest.epoch:
                return False
            self._check_not_forgotten(self.newest, found)
        replace_file(self._file, encode_map(found))
        self.newest = found
        return True


async def watch_map(
    known: KnownMap,
    members: Callable[[], Sequence[MemberAddress]],
    changed: Callable[[ClusterMap], None],
) -> None:
    """Take each new map of the metadata group, for ever.

    Args:
        known: takes them.
        members: returns the client ports of the metadata group, as far as they are known.
        changed: is called with each map that is newer than all before.

    Raises:
        RemovedError: this machine was removed from the cluster.
    """

    def take(data: bytes | None) -> None:
        if data is not None and known.offer(data):
            assert known.newest is not None
            changed(known.newest)

    while True:
        try:
            await _watch_once(members(), take)
        except RemovedError as error:
            log_event(_LOG, logging.WARNING, "machine_removed", "%(why)s", why=str(error))
            raise
        except ConfigurationError as error:
            log_event(_LOG, logging.ERROR, "map_refused", "%(why)s", why=str(error))
        except QuorateError as error:
            words = "the metadata group does not answer: %(why)s"
            log_event(_LOG, logging.DEBUG, "map_unknown", words, why=str(error))
        except OSError as error:
            log_event(_LOG, logging.ERROR, "map_refused", "%(why)s", why=str(error))
        await trio.sleep(PAUSE_SECONDS)


async def _watch_once(
    members: Sequence[MemberAddress], take: Callable[[bytes | None], None]
) -> None:
    """Take each new map until an error.

    Raises:
        QuorateError: no member of the group answers.
    """
    # Not by `quorate.connect`, which goes by the map, and waits for one: we are to bring it.
    async with open_group(members) as kv, kv.watch(MAP_KEY) as changes:
        take(await kv.get(MAP_KEY))  # the watch has begun, so no change is missed in between
        async for change in changes:
            if change.key == MAP_KEY:
                take(change.value)
