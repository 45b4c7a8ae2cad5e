"""A watch of a client while the slot of its keys moves, in virtual time."""

import math
import random
from pathlib import Path

import anyio
import hiredis
import msgspec
import pytest
import trio
from trio.testing import MockClock

from quorate.client.dialling import Dialler, Push, Value, Wire
from quorate.client.group import StoreOptions
from quorate.client.partitioned.map_reply import ASK_MAP, MapReply
from quorate.client.partitioned.placement import Placement
from quorate.client.partitioned.watches import PartitionedWatches
from quorate.errors import CrossSlotError, KeyValueError, WatchLostError
from quorate.keyvalue.programs.watch import Watch
from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Partition
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.state.changes import Change
from quorate.keyvalue.state.pushes import encode_ended, encode_entries, encode_lost
from quorate.transport import Address
from tests.support.move_world import Moves, Side, moving_world

SLOT = key_slot(b"a")
KEYS = [f"{{a}}k{at}" for at in range(4)]
MACHINES = tuple(Machine(at, f"10.0.0.{at}", 7000, 8000) for at in range(3))
OPTIONS = StoreOptions(
    exactly_once=False, session_timeout_s=60.0, patience_s=60.0, rng=random.Random(1)
)


class WatchWire(Wire):
    """A connection to a member, which is cut now and then."""

    def __init__(self, address: Address, member: "Members", side: Side) -> None:
        self.address = address
        self._members, self._side = member, side
        self._watch: Watch | None = None
        self._ready: list[Value] = []

    async def send(self, data: bytes) -> None:
        if data == ASK_MAP:
            self._ready.append(self._members.map_reply())
            return
        reader = hiredis.Reader()
        reader.feed(data)
        match reader.gets():
            case [b"QUORATE.WATCH", bytes(prefix)]:
                self._watch = self._side.watches.watch(prefix, -1)
            case [b"QUORATE.WATCH", bytes(prefix), b"AFTER", bytes(after)]:
                self._watch = self._side.watches.watch(prefix, int(after))
            case other:
                raise AssertionError(f"{other!r}")

    async def receive(self, silence_s: float = math.inf) -> Value:
        await anyio.lowlevel.checkpoint()
        if self._ready:
            return self._ready.pop(0)
        assert self._watch is not None
        if self._members.rng.random() < self._members.cuts:
            raise ConnectionResetError("cut")
        watch = self._watch
        try:
            if not watch._begun:  # pyright: ignore[reportPrivateUsage]
                await watch.__aenter__()
                return [1, watch.position]
            with trio.move_on_after(silence_s):
                changes = await watch.entries()
                self._ready += [pushed(push) for _, push in encode_entries(1, changes)]
                return self._ready.pop(0)
        except KeyValueError as error:
            begun = watch._begun  # pyright: ignore[reportPrivateUsage]
            return pushed(encode_ended(1, watch.position, str(error))) if begun else error
        except WatchLostError as lost:
            self._ready.append(pushed(encode_lost(1, lost.after, lost.oldest, str(lost))))
            return [1, lost.after]
        raise TimeoutError("silent")

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()


def pushed(data: bytes) -> Push:
    reader = hiredis.Reader()
    reader.feed(data)
    return Push(reader.gets())


class Members(Dialler):
    """Three machines with a member of each partition.

    Attributes:
        rng: when connections are cut.
        cuts: how likely it is at each receive.
        dialled: the partitions, in order.
    """

    def __init__(self, moves: Moves) -> None:
        super().__init__()
        self.rng, self.cuts = random.Random(7), 0.0
        self.dialled: list[int] = []
        self._moves, self._epoch = moves, 0
        for side in moves.sides:
            side.kept.service.moved = self._moved

    def map(self) -> ClusterMap:
        self._epoch += 1
        owner = self._moves.owner_of(SLOT)
        partitions = tuple(
            Partition(at, (0, 1, 2), 0, (0, 1, 2), str(SLOT) if at == owner else "")
            for at in range(len(self._moves.sides))
        )
        return ClusterMap("orders", self._epoch, MACHINES, partitions, (0, 1, 2))

    def map_reply(self) -> bytes:
        return msgspec.json.encode({"map": self.map(), "leaders": {}, "partition": 0})

    def _moved(self, _slot: int) -> bytes:
        port = MACHINES[0].client_port(self._moves.owner_of(SLOT))
        return b"-MOVED %d %b:%d\r\n" % (SLOT, MACHINES[0].host.encode(), port)

    async def open(self, address: Address) -> Wire:
        await anyio.lowlevel.checkpoint()
        partition = address.port - MACHINES[0].port - 1
        self.dialled.append(partition)
        return WatchWire(address, self, self._moves.sides[partition])


def watches_of(members: Members) -> PartitionedWatches:
    first = MapReply(members.map(), {}, 0)
    return PartitionedWatches(
        members, Placement(members, [Address("10.0.0.0", 7001)], first, random.Random(2)), OPTIONS
    )


@pytest.mark.parametrize("cuts", [0.0, 0.2])
async def test_a_watch_follows_its_slot_and_returns_each_change_once(
    cuts: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves, trio.open_nursery() as nursery:
        members, found, values = Members(moves), list[Change](), list[bytes]()
        members.cuts = cuts
        watch = watches_of(members).watch(b"{a}", 0)

        async def read() -> None:
            async for change in watch:
                found.append(change)

        nursery.start_soon(read)
        for round_ in range(8):
            for number in range(5):
                values.append(b"%d" % (10 * round_ + number))
                kept = moves.sides[moves.owner_of(SLOT)].kept
                kept.batch(f"SET {KEYS[number % 4]} {values[-1].decode()}")
                await trio.sleep(0.1)
            target = 1 - moves.owner_of(SLOT)
            number = moves.begin(SLOT, target, KEYS)
            await trio.sleep(1)
            moves.end(SLOT, target, number)
            await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert [change.value for change in found] == values
    if not cuts:
        assert members.dialled == [0, 1, 0, 1, 0, 1, 0, 1, 0]


async def test_a_watch_that_was_away_while_its_slot_moved_is_lost_and_may_go_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        members = Members(moves)
        moves.sides[0].kept.batch(f"SET {KEYS[0]} 1")
        moves.end(SLOT, 1, moves.begin(SLOT, 1, KEYS))
        moves.sides[1].kept.batch(f"SET {KEYS[0]} 2")
        source = watches_of(members)
        with pytest.raises(WatchLostError, match="in another partition then") as lost:
            await anext(source.watch(b"{a}", 0))
        assert lost.value.oldest == moves.sides[1].ownership.since_of(SLOT)
        change = await anext(source.watch(b"{a}", lost.value.oldest))
        assert change.value == b"2"


async def test_a_watch_begins_at_the_present_of_the_partition_that_has_its_keys(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        members = Members(moves)
        source = watches_of(members)
        moves.end(SLOT, 1, moves.begin(SLOT, 1, KEYS))  # the client has not heard of it
        for _ in range(3):
            moves.sides[0].kept.batch("QUORATE.POSITION")
        async with source.watch(b"{a}", -1) as watch:
            assert watch.position == moves.sides[1].position
        assert members.dialled == [0, 1]


async def test_a_watch_of_several_slots_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        with pytest.raises(CrossSlotError, match="prefix with text in braces"):
            watches_of(Members(moves)).watch(b"app/", 0)
