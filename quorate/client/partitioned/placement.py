"""Where the keys are: the newest map of the cluster that a client has seen.

It is a hint. A partition that does not own a slot says so, and most times where it went. So the map
is only asked for again when a hint was wrong, or when a partition can't be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from ...errors import CrossSlotError, HandshakeError, KeyValueError, WireError
from ...keyvalue.slots.hashing import prefix_slot
from ...keyvalue.slots.ranges import parse_slots_untrusted
from ...transport import Address
from ..routing import ANSWER_SECONDS, moved_to_untrusted
from .map_reply import ASK_MAP, decode_reply_untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from ...keyvalue.slots.cluster_map import Machine
    from ...keyvalue.slots.ranges import Slots
    from ..dialling import Dialler, Wire
    from .map_reply import MapReply

__all__ = ["Placement", "ask_map"]

_ASK_SECONDS: Final = 1.0
"""For a member to send its map, with the connection. Smaller, and a busy one does not count.
Larger, and a dead one holds up the requests that need a newer map."""

_TRIED: Final = 3
"""Members that are asked for a map before the caller makes a pause. Fewer, and dead machines hold
up more; more, and a cluster that is down keeps its clients busy."""

_MOST_HINTS: Final = 16
"""Slots of which members have said that the map is wrong, before we ask for another one. Fewer, and
a single move makes each client ask. More, and each slot of a large move costs a redirection."""

_NOBODY: Final = -1


class Placement:
    """Which partition owns a slot, and where its members are.

    Args:
        dialler: opens connections, to ask for newer maps.
        given: addresses of members, which are asked if no other one answers.
        first: the map to begin with.
        rng: chooses whom to ask.

    Attributes:
        map: the newest map.
    """

    def __init__(
        self, dialler: Dialler, given: Sequence[Address], first: MapReply, rng: Random
    ) -> None:
        self._dialler, self._given, self._rng = dialler, tuple(given), rng
        self._leaders: dict[int, int] = {}
        self._hints: dict[int, int] = {}  # slots that went somewhere else than the map says
        self._asking = anyio.Lock()
        self._asked: int = 0
        self.map = first.map
        self._begin(first)

    def __str__(self) -> str:
        """Return the addresses that were given."""
        return ", ".join(map(str, self._given))

    def take(self, reply: MapReply) -> None:
        """Take over what a member knows, as far as it is not older."""
        if reply.map.epoch > self.map.epoch:
            self._begin(reply)
        elif reply.map.epoch == self.map.epoch:
            self._leaders.update(reply.leaders)

    def _begin(self, reply: MapReply) -> None:
        self.map, self._leaders = reply.map, {**self._leaders, **reply.leaders}
        self._hints.clear()
        self._most_hints = _MOST_HINTS
        self._owners = self.map.owners()
        self._slots = [
            parse_slots_untrusted(each.slots, what="slots") for each in self.map.partitions
        ]
        self._partitions = {
            address: each.partition
            for each in self.map.partitions
            for machine in self.map.machines
            if (address := self._address(machine, each.partition)) is not None
        }

    # --- slots

    def owner_of(self, slot: int) -> int | None:
        """Return the partition that owns a slot; None if nobody does, as far as we know."""
        owner = self._hints.get(slot, self._owners[slot])
        return None if owner == _NOBODY else owner

    def slots_of(self, partition: int) -> Slots:
        """Return the slots of a partition by the map."""
        return self._slots[partition]

    @property
    def is_old(self) -> bool:
        """Whether the map has been wrong so often that another one is worth a question."""
        return len(self._hints) >= self._most_hints

    def learn(self, slot: int, asked: int | None, text: str) -> bool:
        """Note where a slot is, by what a partition has answered.

        Args:
            slot: the slot.
            asked: the partition; None if nobody was asked.
            text: of its error reply; empty if it owns the slot.

        Returns:
            Whether we know now whom to ask.
        """
        if asked is not None and not text:
            return True
        moved = moved_to_untrusted(KeyValueError(text))
        partition = None if moved is None else self.partition_at(moved)
        if partition is None or partition == asked:
            self._hints.pop(slot, None)  # it may be where the map says
            return False
        self._hints[slot] = partition
        return True

    # --- members

    def members_of(self, partition: int) -> tuple[Address, ...]:
        """Return the addresses of a partition's members; the leader first, if it is known."""
        first = self._leaders.get(partition, self.map.partitions[partition].preferred)
        machines = sorted(self.map.members_of(partition), key=lambda each: each != first)
        found = [self.address_of(machine_id, partition) for machine_id in machines]
        return tuple(address for address in found if address is not None)

    def address_of(self, machine_id: int | None, partition: int) -> Address | None:
        """Return the address of a machine's member of a partition; None if the map has none."""
        machine = None if machine_id is None else self.map.machine(machine_id)
        return None if machine is None else self._address(machine, partition)

    def partition_at(self, address: Address) -> int | None:
        """Return the partition of the member at an address; None if the map has none there."""
        return self._partitions.get(address)

    def members_serving(self, prefix: bytes) -> tuple[Address, ...]:
        """Return the members that have the keys with a prefix now, as far as we know.

        It is empty while nobody owns their slot. After an answer that says otherwise call `learn`,
        or `refresh`, and ask again.

        Raises:
            CrossSlotError: the keys have several slots.
        """
        owner = self.owner_of(self.slot_of(prefix))
        return () if owner is None else self.members_of(owner)

    def slot_of(self, prefix: bytes) -> int:
        """Return the slot of all keys with a prefix.

        Raises:
            CrossSlotError: they have several.
        """
        slot = prefix_slot(prefix)
        if slot is None:
            raise CrossSlotError(
                f"CROSSSLOT the keys with the prefix {prefix!r:.60} have several slots, and may be "
                f"in any of {len(self.map.partitions)} partitions; nothing was done. Expected a "
                "prefix with text in braces, such as {order 7}: before all keys of this order"
            )
        return slot

    def _address(self, machine: Machine, partition: int) -> Address | None:
        tls = self._dialler.tls is not None
        port = machine.client_tls_port(partition) if tls else machine.client_port(partition)
        return Address(machine.host, port) if port else None

    # --- newer maps

    async def refresh(self) -> bool:
        """Ask members for a newer map, until one answers; return whether one did.

        Of those that ask at about the same time, one asks for all.
        """
        before = self._asked
        async with self._asking:
            if self._asked != before:
                return True
            if self.is_old:  # a newer map sets it back
                self._most_hints *= 2
            known = [*self._partitions]
            for address in [*self._rng.sample(known, min(_TRIED, len(known))), *self._given][
                : _TRIED + 1
            ]:
                if await self._asked_at(address):
                    self._asked += 1
                    return True
        return False

    async def _asked_at(self, address: Address) -> bool:
        with anyio.move_on_after(_ASK_SECONDS):
            try:
                wire = await self._dialler.open(address)
                try:
                    reply = await ask_map(wire)
                finally:
                    await wire.aclose()
            except (OSError, HandshakeError, KeyValueError, WireError):
                return False
            self.take(reply)
            return True
        return False


async def ask_map(wire: Wire) -> MapReply:
    """Ask a member for its map.

    Raises:
        OSError: the connection is lost.
        WireError: it answers something else.
    """
    await wire.send(ASK_MAP)
    reply = await wire.receive(ANSWER_SECONDS)
    if not isinstance(reply, bytes):
        raise WireError(f"expected the map of the cluster, found {reply!r:.60}")
    return decode_reply_untrusted(reply)
