"""The groups of a simulated cluster with partitions, and what a director sees of them."""

from __future__ import annotations

import json
import random
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from ...errors import NoLeaderError, RequestError, UnknownOutcomeError, UnsupportedError
from ...keyvalue.programs.client import KeyValue
from ...keyvalue.slots.cluster_map import META
from ..door import PATIENCE, Door
from ..machines.tasks import Pauses
from ..observer import Observer
from ..recipes.programs import PATIENCE_TIMEOUTS, Line, ProgramEndpoint
from ..store import stores
from ..storm import Storm
from ..watching.trace import Trace
from ..watching.watched import watch
from ..workloads.base import Workload
from ..world import open_world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

    from ...keyvalue.programs.client import Argument
    from ...keyvalue.protocol.resp import Reply
    from ...node import Member, Service
    from ..machines.host import Place, ServiceFactory
    from ..machines.setting import Setting
    from ..recipes.programs import Program
    from ..scenarios import Scenario
    from ..store import Store
    from ..world import World
    from .book import Book

T = TypeVar("T")

TWICE: Final = 0.2
"""Part of the commands about slots that a network delivers twice."""
TWICE_TIMEOUTS: Final = 0.6
"""Longest time between the two, in heartbeat timeouts: about that of a move."""

FIRST: Final = 0
"""The partition whose events a recording has."""


class Idle(Workload):
    """Nothing: what clients do is not done for each group."""

    async def act(self, door: Door) -> None:
        """Do nothing."""
        del door
        await trio.sleep_forever()


@attrs.frozen(eq=False)
class SimulatedGroup:
    """One group of members.

    Args:
        partition: its number, or `META`.
        world: its members.
        observer: checks what must hold in every group.
        storm: its faults, and its healing.
        trace: its events.
    """

    partition: int
    world: World[Service]
    observer: Observer
    storm: Storm
    trace: Trace


@attrs.frozen(eq=False)
class Cluster:
    """The groups of a cluster.

    Args:
        groups: by number, the metadata group too.
        book: of their logs.
        pauses: of all that stand still in it.
        unit: a heartbeat timeout, in seconds.
        begun: numbers of the groups whose members run; those of a split begin later.
        sent: commands about slots that directors have sent, with their partition.
    """

    groups: Mapping[int, SimulatedGroup]
    book: Book
    pauses: Pauses
    unit: float
    begun: set[int]
    sent: list[tuple[int, tuple[Argument, ...]]] = attrs.field(
        factory=list[tuple[int, "tuple[Argument, ...]"]]
    )

    @property
    def partitions(self) -> list[int]:
        """The numbers of all groups that run, and have keys of clients."""
        return [each for each in self.groups if each != META and each in self.begun]

    @property
    def running(self) -> list[SimulatedGroup]:
        """All groups that run."""
        return [group for number, group in self.groups.items() if number in self.begun]


@asynccontextmanager
async def open_cluster(
    directory: Path,
    setting: Setting,
    scenario: Scenario,
    book: Book,
    trace: Trace,
    *,
    first: int = 0,
) -> AsyncGenerator[Cluster]:
    """Open the groups of a cluster; no member runs yet.

    Args:
        directory: for the members' stores.
        setting: of each group's world; its seed is that of all.
        scenario: the faults of each group.
        book: sees what their members apply.
        trace: receives the events of the first partition; the other groups have their own.
        first: how many partitions there are at the beginning; 0 for all.
    """
    pauses, seed = Pauses(), setting.seed
    groups: dict[int, SimulatedGroup] = {}
    async with AsyncExitStack() as stack:
        for partition in book.groups:
            own = f"{seed}/group/{partition}"
            observer = Observer([*range(setting.members)])
            observer.known.ids_return = True
            events = trace if partition == FIRST else Trace()
            make = _stores(partition, random.Random(f"{own}/flushes"), book)
            world = await stack.enter_async_context(
                open_world(
                    directory / f"group-{partition}",
                    watch(make, observer.tell, observer),
                    attrs.evolve(setting, seed=own),
                    trace=events,
                    observer=observer,
                    pauses=pauses,
                )
            )
            storm = Storm(world, observer, [Idle()], scenario, own)
            world.after_every_event(partial(book.note_members, partition, observer.known))
            groups[partition] = SimulatedGroup(partition, world, observer, storm, events)
        unit = setting.timeouts.leader_heartbeat_timeout
        begun = [META, *range(first)] if first else [*groups]
        yield Cluster(groups, book, pauses, unit, {*begun})


def _stores(partition: int, rng: random.Random, book: Book) -> ServiceFactory[Store]:
    """Return what makes the stores of a group, and shows the book what they apply."""
    make: Callable[[Place], Store] = stores(rng, partition=partition != META)

    def made(place: Place) -> Store:
        store = make(place)
        book.attend(partition, store)
        return store

    return made


class PlainGroup:
    """A group as an operator's tool sees it, which runs commands only.

    Args:
        door: to the group.
    """

    def __init__(self, door: Door) -> None:
        self._store = KeyValue(door)

    async def execute(self, *words: Argument) -> Reply:
        """See `partitions.groups.Group`."""
        return await self._store.execute(*words)

    async def control(self, words: str) -> str:
        """Refuse that."""
        raise UnsupportedError(words)

    async def status(self) -> Mapping[str, Any]:
        """Refuse that."""
        raise UnsupportedError("status")


class DirectorsGroup:
    """A group as a director sees it; see `partitions.groups.Group`.

    Args:
        group: the group.
        line: the director's access to it.
        program: the director's process.
        sent: receives the commands about slots.
    """

    def __init__(
        self,
        group: SimulatedGroup,
        line: Line,
        program: Program,
        sent: list[tuple[int, tuple[Argument, ...]]],
    ) -> None:
        self._group = group
        self._line = line
        self._program = program
        self._sent = sent
        patience_s = PATIENCE_TIMEOUTS * program.unit
        self._store = KeyValue(ProgramEndpoint(line, patience_s))

    async def execute(self, *words: Argument) -> Reply:
        """See `Group`."""
        if words[0] == "QUORATE.SLOTS":
            self._sent.append((self._group.partition, words))
            if self._program.rng.random() < TWICE:
                self._program.network.start_soon(self._arrive_again, words)
        return await self._store.execute(*words)

    async def _arrive_again(self, words: tuple[Argument, ...]) -> None:
        """Deliver a command a second time, a little later."""
        await trio.sleep(self._program.unit * TWICE_TIMEOUTS * self._program.rng.random())
        with suppress(RequestError):
            await self._store.execute(*words)

    async def control(self, words: str) -> str:
        """See `Group`."""
        return await self._ask(lambda member: member.control(words))

    async def status(self) -> Mapping[str, Any]:
        """See `Group`."""

        async def ask(member: Member) -> Mapping[str, Any]:
            status = member.status()
            if status.leader_id != member.config.member_id:
                raise NoLeaderError(f"the leader is {status.leader_id}")
            return _plain(status)

        return await self._ask(ask)

    async def _ask(self, ask: Callable[[Member], Awaitable[T]]) -> T:
        """Ask the leader, or whoever is taken for it."""
        world, rng = self._group.world, self._program.rng
        at = rng.choice(world.leaders() or world.present)
        with trio.move_on_after(self._program.unit * rng.choice(PATIENCE)):
            await trio.sleep(world.setting.latency * rng.random())
            answer = await self._line.at_member(at, ask)
            await trio.sleep(world.setting.latency * rng.random())
            return answer
        raise UnknownOutcomeError("the director gave up waiting")


def _plain(status: Any) -> Mapping[str, Any]:
    """Return a status as a client has it: from JSON."""
    found: Mapping[str, Any] = json.loads(json.dumps(attrs.asdict(status)))
    return found


class DirectorsGroups:
    """All groups, as one life of a director sees them; see `partitions.groups.Groups`.

    Args:
        cluster: the groups.
        program: the director's process.
        doors: of the director, one for each group.
    """

    def __init__(self, cluster: Cluster, program: Program, doors: Mapping[int, Door]) -> None:
        self._groups = {
            number: DirectorsGroup(group, Line(doors[number], program), program, cluster.sent)
            for number, group in cluster.groups.items()
        }

    def group(self, partition: int) -> DirectorsGroup:
        """See `Groups`."""
        return self._groups[partition]


def doors_of(cluster: Cluster, client: int, rng: random.Random) -> dict[int, Door]:
    """Return a client's doors to all groups."""
    return {
        number: Door(client, group.world, rng, group.observer.tell, group.storm.serials)
        for number, group in cluster.groups.items()
    }
