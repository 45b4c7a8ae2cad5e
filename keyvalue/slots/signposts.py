"""Where the keys are that are not here, as far as a member knows.

What a member owns, it knows from its own log. Everything else is a hint, and comes from files of
its machine (:mod:`.folder`): the map says which partition owns a slot, and the notice of this
machine's member of that partition says who leads it. A wrong hint costs a client one more
redirection.

Files are looked at when somebody asks, and then at most every :data:`FRESH_SECONDS`.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from ...errors import ConfigurationError
from ...log_events import log_event
from .cluster_map import META, ClusterMap, Machine, decode_map_untrusted
from .folder import MAP_FILE, Notice, board_file, decode_notice_untrusted
from .hashing import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["FRESH_SECONDS", "NOBODY", "NOT_SERVED", "Owned", "Signposts"]

FRESH_SECONDS: Final = 0.02
"""How long what a file said is believed. Shorter, and redirections cost more system calls; longer,
and more clients are sent astray after a move."""

_OWN_KEYS: Final = b"quorate/"  # of the metadata group

NOBODY: Final = -1
"""In place of a partition's number: nobody owns the slot, as far as is known."""

NOT_SERVED: Final = b"-CLUSTERDOWN Hash slot not served\r\n"

_log = logging.getLogger("quorate.keyvalue")


class Owned(Protocol):
    """What a partition owns, by its own log: `keyvalue.state.ownership.Ownership`."""

    states: bytearray
    version: int

    def went_to(self, slot: int) -> int | None:
        """Return the partition to which this one has handed a slot, if it has."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener after each change."""
        ...

    def facts(self) -> dict[str, object]:
        """Return everything for JSON."""
        ...


class OwnsNothing:
    """What a member of the metadata group owns of the slots; see `Owned`."""

    version = 0

    def __init__(self) -> None:
        self.states = bytearray(SLOTS)

    def went_to(self, _slot: int) -> int | None:
        """Return that nothing was handed over."""
        return None

    def facts(self) -> dict[str, object]:
        """Return nothing."""
        return {}

    def listen(self, _listener: Callable[[], None]) -> None:
        """Nothing ever changes."""


class Signposts:
    """Where clients of a member are sent that belongs to a larger cluster.

    Args:
        machine: folder of the machine.
        partition: number of the member's partition, or `META`.
        ownership: what it owns; nothing in the metadata group.
        machine_id: of the machine; None if that is not known.
        clock: returns the time in seconds.

    Attributes:
        reaches: returns whether a machine can be reached, as far as is known here.
    """

    def __init__(
        self,
        machine: Path,
        partition: int,
        ownership: Owned | None = None,
        *,
        machine_id: int | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.partition = partition
        self.ownership = ownership or OwnsNothing()
        self.reaches: Callable[[int], bool] = _any
        self._machine, self._machine_id, self._clock = machine, machine_id, clock
        self._map: ClusterMap | None = None
        self._map_file = _File(machine / MAP_FILE)
        self._boards: dict[int, tuple[_File, Notice | None]] = {}
        self._owners: list[int] = [NOBODY] * SLOTS  # as the map has it
        self._ranges: tuple[int, int, dict[int, list[tuple[int, int]]]] | None = None

    @property
    def map(self) -> ClusterMap | None:
        """The newest map that was seen; None before the first."""
        if data := self._map_file.news(self._clock()):
            try:
                found = decode_map_untrusted(data, what=str(self._machine / MAP_FILE))
            except ConfigurationError as error:
                log_event(_log, logging.WARNING, "map_refused", "%(why)s", why=str(error))
                return self._map
            # A file that was brought back from a backup does not take us back.
            if self._map is None or found.epoch >= self._map.epoch:
                self._map, self._owners, self._ranges = found, found.owners(), None
        return self._map

    def has(self, keys: Sequence[bytes]) -> bool:
        """Whether these are keys of the metadata group, and this is a member of it."""
        return self.partition == META and all(key.startswith(_OWN_KEYS) for key in keys)

    def owner(self, slot: int) -> int:
        """Return the partition that owns a slot, as far as is known here; `NOBODY` for none."""
        found = self.map
        if self.ownership.states[slot]:
            return self.partition
        owner = self._owners[slot]
        if owner not in (self.partition, NOBODY) and found is not None:
            return owner
        # The map has not heard yet of what our own log has: the slot was handed over.
        went = self.ownership.went_to(slot)
        return owner if went is None else went

    def leader(self, partition: int) -> Machine | None:
        """Return the machine that leads a partition, as far as is known here.

        That is what the notice of this machine's member says. While that knows of no leader, it is
        this machine: its member keeps requests until there is one, and a leader that has died would
        refuse connections. Without a notice no member runs here: then it is where the leader is
        meant to be, or a replica that sends the client on.
        """
        found = self.map
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        notice, own = self._notice(partition), self._machine_id
        if notice is not None:
            leader = own if notice.leader is None else notice.leader
            if leader is not None and (machine := found.machine(leader)) is not None:
                return machine
        preferred = found.partitions[partition].preferred
        some = sorted(
            found.present_in(partition), key=lambda each: (each == own, each != preferred)
        )
        return found.machine(next(filter(self.reaches, some), some[0]))

    def noticed(self, partition: int) -> int | None:
        """Return the leader that this machine's member of a partition has noted; None for none."""
        notice = self._notice(partition)
        return None if notice is None else notice.leader

    def _notice(self, partition: int) -> Notice | None:
        """Return the newest notice of this machine's member of a partition; None for no member."""
        file, notice = self._boards.get(partition) or (
            _File(board_file(self._machine, partition)),
            None,
        )
        if (data := file.news(self._clock())) is not None:
            notice = decode_notice_untrusted(data)
        self._boards[partition] = file, notice
        return notice

    def moved(self, slot: int, *, tls: bool = False) -> bytes:
        """Return the error for a command whose keys are in a slot that is not owned here.

        Args:
            slot: of the keys.
            tls: the client came by TLS.
        """
        owner = self.owner(slot)
        if owner == self.partition != META:
            # The map is ahead of our log. To name ourselves would make a client ask without end.
            return b"-TRYAGAIN slot %d is not here yet\r\n" % slot
        machine = self.leader(owner)
        if machine is None:
            return NOT_SERVED
        port = machine.client_tls_port(owner) if tls else machine.client_port(owner)
        if not port:
            return b"-CLUSTERDOWN partition %d has no port for clients with TLS\r\n" % owner
        return b"-MOVED %d %b:%d\r\n" % (slot, machine.host.encode(), port)

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """Return for each partition the first and last slots of the ranges that it owns."""
        found = self.map
        epoch, version = (found.epoch if found else 0), self.ownership.version
        # Made anew only if either has changed: it is a walk over all slots.
        if self._ranges is None or self._ranges[:2] != (epoch, version):
            self._ranges = epoch, version, self._walk(found)
        return self._ranges[2]

    def _walk(self, found: ClusterMap | None) -> dict[int, list[tuple[int, int]]]:
        ranges: dict[int, list[tuple[int, int]]] = {
            each.partition: [] for each in (found.partitions if found else ())
        }
        states, owners, own = self.ownership.states, self._owners, self.partition
        last, first = NOBODY, 0
        for slot in range(SLOTS + 1):
            if slot == SLOTS:
                owner = NOBODY
            elif states[slot]:
                owner = own
            else:
                owner = owners[slot] if owners[slot] != own else self.owner(slot)
            if owner != last:
                if last != NOBODY:
                    ranges.setdefault(last, []).append((first, slot - 1))
                last, first = owner, slot
        return ranges


def _any(_machine: int) -> bool:
    return True


@attrs.define
class _File:
    """A file that others replace."""

    path: Path
    _looked: float = -math.inf
    _stamp: tuple[int, int, int] | None = None

    def news(self, now: float) -> bytes | None:
        """Return the content if it has changed since a look some time ago; empty if it is gone."""
        if now - self._looked < FRESH_SECONDS:
            return None
        self._looked = now
        try:
            # It is replaced as a whole, so another content is another file.
            status = self.path.stat()
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            if stamp == self._stamp:
                return None
            data = self.path.read_bytes()
        except FileNotFoundError:  # it was taken back
            had, self._stamp = self._stamp, None
            return None if had is None else b""
        except OSError:
            return None
        self._stamp = stamp
        return data
