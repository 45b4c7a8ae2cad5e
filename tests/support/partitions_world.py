"""Groups of partitions in virtual time: services without members, and directors that may die.

A `PartitionGroup` applies a command at once, to one service. What may happen to a request on its
way is drawn by the world's `fate`; see `FATES`.
"""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from quorate.errors import KeyValueError, NoLeaderError, RefusedError, UnknownOutcomeError
from quorate.keyvalue.commands.table import Kind, resolve
from quorate.keyvalue.programs.encoding import decoded
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.resp import Reply
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.cluster_map import META, ClusterMap, Machine, decode_map_untrusted
from quorate.keyvalue.slots.ranges import Slots, parse_slots_untrusted, slots_of
from quorate.keyvalue.state.ownership import FROZEN_SLOT, OWNED
from quorate.node.state_machine.service import Command
from quorate.partitions.balance import first_map
from quorate.partitions.groups import Group
from quorate.partitions.metadata import found
from quorate.storage.testing import InlineExecutor

from .service_world import BATCH_BYTES, START_MS

LATENCY_S: Final = 0.002
LATE_S: Final = 0.7

FATES: Final = ("refused", "lost", "unheard", "late", "twice", "elects", "dies", "dies unheard")
"""``refused``: not done, and the sender knows. ``lost``: not done, ``unheard``: done; the
sender hears nothing. ``late``: it hears nothing, and it is done later. ``twice``: done twice.
``elects``: another member leads from then on. ``dies``: the sender dies before, ``dies unheard``:
after it is done."""

Fate = str | None


class PartitionGroup:
    """A group without members: a service, and the log that it is fed with."""

    def __init__(self, directory: Path, *, partition: bool, position: int) -> None:
        self.service = KeyValueService.open(
            directory, cluster="test", member_id=1, executor=InlineExecutor, partition=partition
        )
        # Each log is somewhere else, so revisions of one are none of the other.
        self.position = position
        self.answers = True
        self.ahead_ms = 0

    def run(self, words: tuple[bytes, ...]) -> bytes:
        """Apply a command, or answer a query; return the encoded reply."""
        payload = resp.pack(words)
        spec = resolve(words)
        assert spec is not None, words
        if spec.kind is Kind.READ:
            return self.service.query(payload, 0)
        now = START_MS + round(trio.current_time() * 1000) + self.ahead_ms
        reply = self.service.apply(Command(payload, 0, 0, 0, 1, self.position, 0, now))
        self.position += BATCH_BYTES
        self.service.advance(self.position, now)
        return reply

    def elect(self) -> None:
        """Have another member lead, which has kept no changes."""
        self.service.changes.restart(self.service.changes.position)

    def slots_in(self, *states: int) -> Slots:
        """Return the slots that are in one of some states."""
        assert self.service.ownership is not None
        there = re.finditer(b"[%b]+" % bytes(states), self.service.ownership.states)
        return slots_of((each.start(), each.end() - 1) for each in there)


class World:
    """Groups, and what happens to requests.

    Attributes:
        fate: called with the number of each request and its words.
        calls: how many requests were sent, by all directors.
        latency_s: of a request, and of a reply.
    """

    def __init__(self, groups: dict[int, PartitionGroup], nursery: trio.Nursery) -> None:
        self.groups = groups
        self.nursery = nursery
        self.fate: Callable[[int, tuple[bytes, ...]], Fate] = lambda _number, _words: None
        self.calls = 0
        self.latency_s = LATENCY_S
        self.words: list[tuple[int, tuple[bytes, ...]]] = []

    def apply(self, partition: int, words: tuple[bytes, ...]) -> bytes:
        """Run a command at a group now, and see that no slot has two owners."""
        reply = self.groups[partition].run(words)
        if words[0] == b"QUORATE.SLOTS":
            self.check_owners()
        return reply

    def check_owners(self) -> Slots:
        """See that no slot is served by two groups; return those that are served by one."""
        served = 0
        for group in self.partitions:
            own = group.slots_in(OWNED)
            assert not own & served
            served |= own
        return served

    @property
    def partitions(self) -> list[PartitionGroup]:
        return [group for number, group in sorted(self.groups.items()) if number != META]

    def map(self) -> ClusterMap:
        """Return the newest map."""
        data = decoded(self.groups[META].run((b"GET", b"quorate/map")))
        assert isinstance(data, bytes)
        return decode_map_untrusted(data)

    def owned(self, partition: int) -> Slots:
        """Return what a partition owns as the map says, and see that it does."""
        by_map = parse_slots_untrusted(self.map().partitions[partition].slots)
        assert by_map == self.groups[partition].slots_in(OWNED, FROZEN_SLOT)
        return by_map


class Link:
    """What one director sees of the groups. Once it is dead, nothing answers it any more."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self.died = trio.Event()

    def group(self, partition: int) -> Group:
        return LinkedGroup(self, partition)

    def die(self) -> None:
        self.dead = True
        self.died.set()


class LinkedGroup:
    """A group, as one director sees it."""

    def __init__(self, link: Link, partition: int) -> None:
        self._link = link
        self._partition = partition

    async def execute(self, *words: bytes | str | float) -> Reply:
        link, world = self._link, self._link.world
        sent = resp.words_of(words)
        await self._pass()
        number, world.calls = world.calls, world.calls + 1
        world.words.append((self._partition, sent))
        fate = world.fate(number, sent)
        if not world.groups[self._partition].answers:
            fate = "refused"
        if fate == "dies":
            link.die()
            await self._pass()
        if fate in {"refused", "lost", "late"}:
            if fate == "late":
                world.nursery.start_soon(self._apply_late, sent)
            await trio.sleep(LATENCY_S)
            error = NoLeaderError if fate == "refused" else UnknownOutcomeError
            raise error(fate)
        if fate == "elects":
            world.groups[self._partition].elect()
        if fate == "twice":
            world.apply(self._partition, sent)
        reply = world.apply(self._partition, sent)
        if fate == "dies unheard":
            link.die()
        await self._pass()
        if fate == "unheard":
            raise UnknownOutcomeError(fate)
        return decoded(reply)

    async def _pass(self) -> None:
        await trio.sleep(self._link.world.latency_s)
        if self._link.dead:
            await trio.sleep_forever()

    async def _apply_late(self, words: tuple[bytes, ...]) -> None:
        await trio.sleep(LATE_S)
        self._link.world.apply(self._partition, words)

    async def control(self, words: str) -> str:
        raise RefusedError(words)

    async def status(self) -> Mapping[str, Any]:
        raise NoLeaderError("no status")


def machines(count: int, racks: int = 0) -> list[Machine]:
    """Return some machines, in the racks in turn."""
    return [
        Machine(
            at,
            f"10.0.0.{at}",
            7000,
            8000,
            rack=f"rack-{at % racks}" if racks else "",
        )
        for at in range(count)
    ]


@asynccontextmanager
async def opened(
    directory: Path, partitions: int = 2, *, first: ClusterMap | None = None
) -> AsyncGenerator[World]:
    """A world with a founded map, and partitions that are not founded."""
    groups = {
        number: PartitionGroup(
            directory / f"group-{number}",
            partition=number != META,
            position=(number + 1) * 1_000_000,
        )
        for number in range(META, partitions)
    }
    try:
        async with trio.open_nursery() as nursery:
            world = World(groups, nursery)
            await found(
                Link(world).group(META), first or first_map("orders", machines(3), partitions, 3)
            )
            world.calls = 0
            yield world
            nursery.cancel_scope.cancel()
    finally:
        for group in groups.values():
            group.service.close()


def error_of(reply: bytes) -> str:
    """Return the code of an error; empty for any other reply."""
    try:
        decoded(reply)
    except KeyValueError as error:
        return str(error).partition(" ")[0]
    return ""
