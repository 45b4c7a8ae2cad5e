"""The map of a cluster with partitions: machines, partitions, and who is meant to own which slot.

The map is one value in the metadata group. It only changes by compare-and-set, and each change
raises its `epoch`, so every two maps are in one order. All who have a map keep the newest that they
have seen. It is a *hint*: what a partition owns is decided in its own log. So a map that is old
sends a client astray for one more redirection, and never makes a wrong answer.

Ports
    A machine has a range of ports for clients, and one for members. The first of each belongs to
    its member of the metadata group, the next to partition 0, and so on.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from ...errors import ConfigurationError
from ...node.protocol.hosts import is_host
from .ranges import ALL_SLOTS, parse_slots_untrusted

__all__ = [
    "MAP_KEY",
    "META",
    "MOST_MACHINES",
    "MOST_PARTITIONS",
    "ClusterMap",
    "Machine",
    "Move",
    "Partition",
    "decode_map_untrusted",
    "encode_map",
    "group_name",
    "partition_in",
]

META: Final = -1
"""In place of a partition's number: the metadata group."""

MOST_PARTITIONS: Final = 64
"""Partitions of a cluster. More, and a machine with few processors runs many idle processes; fewer,
and large machines are not used."""

MOST_MACHINES: Final = 64

MAP_KEY: Final = b"quorate/map"
"""The key of the map in the metadata group."""

_MOST_BYTES: Final = 1 << 20
_LAST_PORT: Final = 65_535 - MOST_PARTITIONS
"""The first port of a range is at most this."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine, and where its members listen.

    Attributes:
        machine_id: its number; the member id of all its members.
        host: where clients and members reach it.
        port: first of its ports for clients; 0 for none, if there is a `tls_port`.
        member_port: first of its ports for members.
        tls_port: first of its ports for clients with TLS; 0 for none.
        rack: replicas of one partition are spread over racks.
        draining: an operator wants no primaries here.
    """

    machine_id: int
    host: str
    port: int
    member_port: int
    tls_port: int = 0
    rack: str = ""
    draining: bool = False

    def client_port(self, partition: int) -> int:
        """Return the port for clients of its member of a partition, or of `META`; 0 for none."""
        return self.port and self.port + 1 + partition

    def port_of_member(self, partition: int) -> int:
        """Return the port for members of its member of a partition, or of `META`."""
        return self.member_port + 1 + partition

    def client_tls_port(self, partition: int) -> int:
        """Return the port for clients with TLS of its member of a partition; 0 for none."""
        return self.tls_port and self.tls_port + 1 + partition


class Partition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition.

    Attributes:
        partition: its number.
        replicas: ids of the machines that are to have a member of it.
        preferred: id of the machine that is to have its leader, if it can.
        slots: those that it owns, as far as the map knows; a text.
        founded: those that it owns from its beginning; a text. It never changes.
        founders: ids of the machines whose members founded it. They never change.
        members: ids of the machines that have a member of it, as the group has said last; empty
            until it has said that it is founded. It is not founded again then, whatever happens.
    """

    partition: int
    replicas: tuple[int, ...]
    preferred: int
    founders: tuple[int, ...]
    slots: str = ""
    founded: str = ""
    members: tuple[int, ...] = ()


MoveStep: TypeAlias = Literal["copying", "aborting", "ending"]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A move of slots from partition to partition that has not ended.

    Attributes:
        move: its number: the epoch of the map that began it. No two moves have the same. A move
            that begins again gets a new one.
        slots: what moves; a text.
        source: the partition that owns them.
        target: the partition that is to own them.
        step: "copying", until the target's log has decided who owns them. "aborting" instead, if
            an operator wants it to end undone. "ending" once the target owns them, until the source
            knows it, too.
        attempts: how often the copying has begun.
    """

    move: int
    slots: str
    source: int
    target: int
    step: MoveStep = "copying"
    attempts: int = 0


class ClusterMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machines, partitions and moves, as of one epoch.

    Attributes:
        cluster: its name.
        epoch: rises with each change; 1 is the first map.
        machines: in ascending order of their ids.
        partitions: in ascending order of their numbers, which begin at 0 and have no gaps.
        moves: those that have not ended.
        metadata: ids of the machines that are to have a member of the metadata group.
        metadata_members: ids of those that have one, as that group has said last.
    """

    cluster: str
    epoch: int
    machines: tuple[Machine, ...]
    partitions: tuple[Partition, ...]
    metadata: tuple[int, ...]
    moves: tuple[Move, ...] = ()
    metadata_members: tuple[int, ...] = ()

    def machine(self, machine_id: int) -> Machine | None:
        """Return a machine; None if there is none with this id."""
        return next((each for each in self.machines if each.machine_id == machine_id), None)

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """Return the machines of a partition's members, or of `META`'s."""
        return self.metadata if partition == META else self.partitions[partition].replicas

    def is_founded(self, partition: int) -> bool:
        """Whether a partition, or `META`, has said that it is founded, which it is only once."""
        there = self.metadata_members if partition == META else self.partitions[partition].members
        return bool(there)

    def present_in(self, partition: int) -> tuple[int, ...]:
        """Return the machines that have a member of a partition, or of `META`, as it has said last.

        Until it is founded, these are the ones that are to have a member.
        """
        there = self.metadata_members if partition == META else self.partitions[partition].members
        return there or self.replicas_of(partition)

    def members_of(self, partition: int) -> tuple[int, ...]:
        """Return the machines where members of a partition, or of `META`, are to be looked for.

        These are the ones that are to have a member, and those that have one until then.
        """
        replicas = self.replicas_of(partition)
        there = self.present_in(partition)
        return (*replicas, *(each for each in there if each not in replicas))

    def owners(self) -> list[int]:
        """Return for each slot the partition that owns it, as far as the map knows; -1 for none."""
        owners = [-1] * ALL_SLOTS.bit_length()
        for each in self.partitions:
            for part in each.slots.split(",") if each.slots else ():
                first, _, last = part.partition("-")
                for slot in range(int(first), int(last or first) + 1):
                    owners[slot] = each.partition
        return owners


def group_name(cluster: str, partition: int) -> str:
    """Return the cluster name of the group of members of a partition, or of `META`."""
    return f"{cluster}.meta" if partition == META else f"{cluster}.p{partition}"


def partition_in(group: str) -> int | None:
    """Return the partition whose group has this name, or `META`; None if it is of no partition."""
    _, dot, last = group.rpartition(".")
    if dot and last == "meta":
        return META
    number = last.removeprefix("p")
    is_one = bool(dot) and last != number and number.isascii() and number.isdigit()
    return int(number) if is_one and int(number) < MOST_PARTITIONS else None


def encode_map(cluster_map: ClusterMap) -> bytes:
    """Encode a map."""
    return msgspec.json.encode(cluster_map)


def decode_map_untrusted(data: bytes, *, what: str = "the map of the cluster") -> ClusterMap:
    """Decode and check a map.

    Args:
        data: of the metadata group, or of a file.
        what: where it is from, for the error.

    Raises:
        ConfigurationError: it is no map, or contradicts itself.
    """
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{what}: {len(data)} bytes: expected {_MOST_BYTES} at most")
    try:
        found = msgspec.json.decode(data, type=ClusterMap)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{what}: {error}: expected one that quorate wrote") from None
    if trouble := _trouble_in(found):
        raise ConfigurationError(f"{what}: {trouble}: expected one that quorate wrote")
    return found


def _trouble_in(found: ClusterMap) -> str | None:
    """Return what is wrong with a map, if anything is."""
    ids = [each.machine_id for each in found.machines]
    if trouble := _trouble_with_machines(found.machines, ids):
        return trouble
    numbers = [each.partition for each in found.partitions]
    if numbers != list(range(len(numbers))) or not 1 <= len(numbers) <= MOST_PARTITIONS:
        return f"partitions {numbers}"
    if not {*found.metadata, *found.metadata_members} <= {*ids} or not found.metadata:
        return f"metadata {found.metadata}, members {found.metadata_members}"
    owned = 0
    for each in found.partitions:
        if trouble := _trouble_with_members(each, ids):
            return f"partition {each.partition} has {trouble}"
        slots = parse_slots_untrusted(each.slots, what=f"slots of partition {each.partition}")
        parse_slots_untrusted(each.founded, what=f"founded of partition {each.partition}")
        if owned & slots:
            return f"partition {each.partition} has a slot of another one"
        owned |= slots
    for move in found.moves:
        parse_slots_untrusted(move.slots, what=f"slots of move {move.move}")
        if not {move.source, move.target} <= {*numbers} or move.move > found.epoch:
            return f"move {move.move}"
    return None


def _trouble_with_members(partition: Partition, ids: list[int]) -> str | None:
    if not {*partition.replicas, partition.preferred} <= {*ids} or not partition.replicas:
        return f"replicas {partition.replicas}"
    if not {*partition.members} <= {*ids}:
        return f"members {partition.members}"
    return None if partition.founders else "no founders"


def _trouble_with_machines(machines: tuple[Machine, ...], ids: list[int]) -> str | None:
    if ids != sorted(set(ids)) or not 1 <= len(ids) <= MOST_MACHINES or min(ids) < 0:
        return f"machines {ids}"
    for machine in machines:
        if trouble := _trouble_with_addresses(machine):
            return f"machine {machine.machine_id} has {trouble}"
    return None


def _trouble_with_addresses(machine: Machine) -> str | None:
    # Clients get them in replies, as they are.
    if not is_host(machine.host):
        return f"host {machine.host!r:.80}"
    ports = machine.port, machine.member_port, machine.tls_port
    if not all(0 <= port <= _LAST_PORT for port in ports) or not machine.member_port:
        return f"ports {ports}"
    if not (machine.port or machine.tls_port):
        return "no port for clients"
    return None if machine.rack.isprintable() else f"rack {machine.rack!r:.80}"
