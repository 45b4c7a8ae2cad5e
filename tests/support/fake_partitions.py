"""A cluster with partitions for clients, without sockets: real state machines behind fake ports.

Two machines, and on each a member of two partitions. A test moves slots step by step, and chooses
which machine has heard of the newest map.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import msgspec

from quorate.client.dialling import Dialler, Wire
from quorate.errors import UnknownOutcomeError
from quorate.keyvalue.commands.table import keys_of, resolve
from quorate.keyvalue.conversation.parking import TRY_AGAIN, rest_of
from quorate.keyvalue.conversation.request_command import parse_request_untrusted
from quorate.keyvalue.programs.encoding import list_of
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PART, RESP3
from quorate.keyvalue.protocol.resp import CommandError
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Partition
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import parse_slots_untrusted, slots_of, text_of
from quorate.node.requests.request import RequestKind
from quorate.node.state_machine.service import Command
from quorate.storage.testing import InlineExecutor
from quorate.transport import Address
from tests.support.fake_cluster import LATENCY, FakeCluster, FakeStream, Fault, Judge
from tests.support.service_world import Fed

MACHINES: Final = tuple(Machine(n, f"10.0.1.{n}", 7000, 8000) for n in range(2))
HALVES: Final = ("0-8191", "8192-16383")


class FakePartition(FakeCluster):
    """One partition, with a member on each machine."""

    def __init__(self, world: "FakePartitions", number: int, service: KeyValueService) -> None:
        super().__init__(Fed(service), len(MACHINES))
        self.world, self.number = world, number
        self.addresses = [Address(each.host, each.client_port(number)) for each in MACHINES]
        self.leader = self.addresses[number % len(MACHINES)]
        service.moved = self._moved

    def _moved(self, slot: int) -> bytes:
        ownership = self.fed.service.ownership
        assert ownership is not None
        owner = ownership.went_to(slot)
        if owner is None:
            owner = self.world.map.owners()[slot]
        if owner == self.number:
            return resp.error(f"TRYAGAIN slot {slot} is not here yet")
        if owner < 0 or not self.world.names_owners:
            return resp.error("CLUSTERDOWN Hash slot not served")
        return resp.error(f"MOVED {slot} {self.world.partitions[owner].leader}")

    def answer(self, stream: FakeStream, words: list[bytes]) -> bytes:
        if words == [b"QUORATE.MAP"]:
            return resp.bulk(self.world.map_of(stream.address.host, self.number))
        if words[0] in {b"QUORATE.WATCH", b"QUORATE.POSITION"}:
            return resp.error("NOPERM there are no watches here")
        stream.aware = True  # as all clients of a partition
        return super().answer(stream, words)

    def _execute(self, words: list[bytes]) -> bytes:
        try:
            request = parse_request_untrusted(words)
        except CommandError as error:
            return error.reply
        flags, fed = request.flags | RESP3, self.fed
        if request.kind is RequestKind.QUERY:
            result = fed.service.query(request.payload, flags)
        else:
            command = Command(request.payload, flags, *request.stamp, 1, fed.position, 0, fed.now)
            result = fed.replay(command)
        if result.startswith(PART):  # a frozen slot, and no time to wait
            return rest_of(request.payload, result, request.convert()).given_up()
        return request.convert()(result)

    def values(self) -> list[tuple[bytes, bytes]]:
        """Return the plain commands that arrived within requests: their names and first words."""
        found: list[tuple[bytes, bytes]] = []
        for words in self.requests:
            for command in parse_request_untrusted(words).commands:
                spec = resolve(command)
                keys = keys_of(spec, command) if spec is not None else ()
                found.append((command[0], keys[0] if keys else b""))
        return found


class FakePartitions:
    """The cluster.

    Attributes:
        map: the newest one.
        late: machines that know only the map of the beginning.
        names_owners: whether partitions say where slots went.
    """

    def __init__(self, services: Iterable[KeyValueService]) -> None:
        self.map = ClusterMap(
            "orders",
            1,
            MACHINES,
            tuple(
                Partition(n, (0, 1), n % 2, (0, 1), slots=slots, founded=slots)
                for n, slots in enumerate(HALVES)
            ),
            (0, 1),
        )
        self.first = self.map
        self.late: set[str] = set()
        self.names_owners = True
        self.partitions = [FakePartition(self, n, each) for n, each in enumerate(services)]
        self._moves = 0
        for partition, slots in zip(self.partitions, HALVES, strict=True):
            partition.fed.apply(["QUORATE.SLOTS", "FOUND", slots])
            partition.fed.position += 1_000_000 * partition.number  # each log is somewhere else
            partition.fed.pass_time(0)

    def swap(self) -> None:
        """Have the members of one partition listen where those of the other one did."""
        one, other = self.partitions
        one.addresses, other.addresses = other.addresses, one.addresses
        one.leader, other.leader = one.addresses[0], other.addresses[1]

    @property
    def addresses(self) -> list[Address]:
        return [address for each in self.partitions for address in each.addresses]

    def judge(self, judge: Judge) -> None:
        """Decide about the requests at all members."""
        for each in self.partitions:
            each.judge = judge

    def calm(self) -> None:
        """Let all requests pass."""
        self.judge(lambda _address, _words: None)

    def map_of(self, host: str, partition: int) -> bytes:
        """Return the reply of a machine to QUORATE.MAP."""
        known = self.first if host in self.late else self.map
        leaders = {str(each.number): each.addresses.index(each.leader) for each in self.partitions}
        return msgspec.json.encode({"map": known, "leaders": leaders, "partition": partition})

    def owner_of(self, key: bytes) -> FakePartition:
        return self.partitions[self.map.owners()[key_slot(key)]]

    # --- moves, step by step

    def freeze(self, keys: Iterable[bytes]) -> "FakeMove":
        """Begin to move the slots of some keys to the other partition, up to the freeze."""
        slots = slots_of((key_slot(key), key_slot(key)) for key in keys)
        self._moves += 1
        move = FakeMove(self, self._moves, slots, self.owner_of(next(iter(keys))).number)
        move.freeze()
        return move

    def move(self, *keys: bytes) -> None:
        """Move the slots of some keys to the other partition."""
        move = self.freeze(keys)
        move.own()
        move.release()
        move.publish()


class FakeMove:
    """A move of slots; see `quorate.partitions.move` for its steps."""

    def __init__(self, world: FakePartitions, number: int, slots: int, source: int) -> None:
        self.world, self.number, self.slots = world, str(number), slots
        self.source, self.target = world.partitions[source], world.partitions[1 - source]
        self._facts: list[str] = []
        self._keys: resp.Reply = 0

    def freeze(self) -> None:
        text = text_of(self.slots)
        self._expect(self.target, "PURGE", "10000")
        self._expect(self.target, "IMPORT", self.number, text)
        frozen = self._expect(self.source, "FREEZE", self.number, text, str(self.target.number))
        self._facts = list(map(str, frozen))
        _, *rows = self._expect(self.source, "ROWS", text, "", "1000")
        words = [
            word if isinstance(word, bytes) else str(word) for row in rows for word in list_of(row)
        ]
        self._expect(self.target, "CHUNK", self.number, "1", *words)

    def own(self) -> None:
        (self._keys,) = self._expect(self.target, "OWN", self.number, *self._facts)

    def release(self) -> None:
        self._expect(self.source, "RELEASE", self.number, str(self.target.number), str(self._keys))

    def thaw(self) -> None:
        self._expect(self.target, "DROP", self.number)
        self._expect(self.source, "THAW", self.number)

    def publish(self) -> None:
        """Write it into the map."""
        self.world.map = msgspec.structs.replace(
            self.world.map,
            epoch=self.world.map.epoch + 1,
            partitions=tuple(
                msgspec.structs.replace(each, slots=self._slots_after(each))
                for each in self.world.map.partitions
            ),
        )

    def _slots_after(self, partition: Partition) -> str:
        slots = parse_slots_untrusted(partition.slots) & ~self.slots
        return text_of(slots | self.slots if partition.partition == self.target.number else slots)

    def _expect(self, partition: FakePartition, *words: str | bytes) -> list[resp.Reply]:
        fed = partition.fed
        run = fed.query if words[0] == "ROWS" else fed.apply
        (reply,) = resp.parse_replies_untrusted(run(["QUORATE.SLOTS", *words]))
        assert not isinstance(reply, Exception), reply
        return reply if isinstance(reply, list) else [reply]


class PartitionsDialler(Dialler):
    """Opens connections to the members of all partitions."""

    def __init__(self, world: FakePartitions) -> None:
        super().__init__()
        self._world = world

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        await anyio.sleep(LATENCY)
        for each in self._world.partitions:
            if address in each.addresses and address not in each.down:
                each.dialled.append(address)
                return Wire(FakeStream(each, address), address)
        raise ConnectionRefusedError(111, "Connection refused")


@contextmanager
def fake_partitions(directory: Path) -> Generator[FakePartitions]:
    """A cluster of two partitions, for the length of the block."""
    services = [
        KeyValueService.open(
            directory / f"partition-{n}",
            cluster=f"orders.p{n}",
            member_id=1,
            executor=InlineExecutor,
            partition=True,
        )
        for n in range(2)
    ]
    try:
        yield FakePartitions(services)
    finally:
        for service in services:
            service.close()


__all__ = ["TRY_AGAIN", "FakePartitions", "Fault", "PartitionsDialler", "UnknownOutcomeError"]
