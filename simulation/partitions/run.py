"""A run of a cluster with partitions, from its seed: rounds of storm, healing and calm.

1. In a storm, clients write and read keys of many slots, directors move slots, operators ask for
   moves, and old commands come again. Meanwhile faults hit some of the groups. Some runs have
   splits, members that go elsewhere, and maps that get lost (`plans.py`).
2. Each group is healed by itself, as a cluster without partitions is (:mod:`..storm`).
3. The metadata group is dead, and there is no director: all slots with an owner must be served.
4. In the calm, all clocks are set to the same time, since groups whose log times differ move no
   slots. Then directors must end all moves: every slot has one owner, which the map names.
5. The clients' histories are checked, over all groups.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import RequestError
from ...keyvalue.limits import MOST_SKEW_MS
from ...keyvalue.slots.cluster_map import META, decode_map_untrusted
from ...keyvalue.slots.hashing import key_slot
from ...keyvalue.slots.ranges import ALL_SLOTS, parse_slots_untrusted
from ..invariants import ViolationError
from ..workloads import Bank, Expiry, Strings
from ..workloads.base import encode
from ..workloads.expiry import KEYS as LEASES
from .book import Book
from .directors import Directors
from .groups import open_cluster
from .operators import Operators
from .plans import Plans, kinds_of
from .routing import RoutingDoor
from .sessions import MovingLists
from .supervisors import Supervisors

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ..machines.setting import Setting
    from ..scenarios import Scenario
    from ..watching.trace import Trace
    from .groups import Cluster, SimulatedGroup
    from .sessions import Stamped

PARTITIONS: Final = 2
CLIENTS: Final = 3
LISTS: Final = 2
FLUSHES: Final = 0.2
"""Part of the rounds in which all keys are deleted from time to time."""
MANY: Final = tuple(word for n in range(2200) for word in (b"{bank}:%d" % n, b"%d" % n))
"""Keys and values: more than a page of a move has, in the slot of the accounts."""
ACCOUNTS: Final = tuple(b"{bank}-%d" % n for n in range(5))
"""In one slot, since a transfer is one transaction."""
STORM_TIMEOUTS: Final = 30.0
"""Duration of a storm, in heartbeat timeouts."""
CALM_TIMEOUTS: Final = 120.0
"""So long may directors take to end all moves, in heartbeat timeouts, when nothing fails."""
CLOCKS_TIMEOUTS: Final = 300.0
"""The same, for log times to meet: longer than a jump of a clock must last until it is believed."""
SERVED_TIMEOUTS: Final = 20.0
THINKING: Final = (0.0, 0.05, 0.2)
"""Longest pauses of a client, in heartbeat timeouts; one is drawn for each round."""
RAGES: Final = 0.6
"""Probability that faults hit a group in a storm."""


@attrs.define
class Run:
    """One run.

    In some rounds clients delete all keys of a group, again and again. No history explains that, so
    there are none then.

    Args:
        cluster: the groups.
        seed: of the run.
        kinds: of plans that operators have; see `plans.KINDS`.

    Attributes:
        rounds: how many there were.
    """

    cluster: Cluster
    seed: object
    kinds: Collection[str] = ()
    rounds: int = 0
    strings: Strings = attrs.field(factory=Strings)
    expiry: Expiry = attrs.field(factory=Expiry)
    bank: Bank = attrs.field(factory=lambda: Bank(ACCOUNTS))
    stamped: list[Stamped] = attrs.field(factory=list["Stamped"])
    rng: random.Random = attrs.field(init=False)
    doors: list[RoutingDoor] = attrs.field(init=False)
    lists: list[MovingLists] = attrs.field(init=False)
    directors: Directors = attrs.field(init=False)
    operators: Operators = attrs.field(init=False)
    plans: Plans = attrs.field(init=False)
    supervisors: Supervisors = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make clients, directors and operators, each with chances of their own."""
        self.rng = self._chance("run")
        self.doors = [
            RoutingDoor(i, self.cluster, self._chance(f"client/{i}"))
            for i in range(CLIENTS + LISTS)
        ]
        self.lists = [MovingLists(door, self.stamped) for door in self.doors[CLIENTS:]]
        self.directors = Directors(self.cluster, self._chance("directors"))
        self.operators = Operators(self.cluster, self._chance("operators"), self.stamped)
        self.plans = Plans(self.cluster, self._chance("plans"), self.kinds)
        self.supervisors = Supervisors(self.cluster)

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    async def run(self, seconds: float) -> None:
        """Run rounds until so many seconds are over.

        Raises:
            ViolationError: something does not hold.
        """
        end = trio.current_time() + seconds
        for group in self.cluster.running:
            await group.storm.begin()
        while trio.current_time() < end:
            self.strings.round = self.rounds
            flushing = self.rng.random() < FLUSHES
            seconds = min(STORM_TIMEOUTS * self.cluster.unit, end - trio.current_time())
            await self._storm(seconds, flushing=flushing)
            await self._heal()
            await self._serves_without_metadata()
            await self._settles()
            await self._judge()
            self.rounds += 1

    async def _storm(self, seconds: float, *, flushing: bool) -> None:
        async with trio.open_nursery() as nursery:
            for door in self.doors[:CLIENTS]:
                nursery.start_soon(self._client, door, not flushing)
            if flushing:
                nursery.start_soon(self._flush, self.doors[0])
            for each in self.lists if not flushing else ():
                nursery.start_soon(self._list_client, each)
            nursery.start_soon(lambda: self.directors.run(troubled=self.rng.random() < 0.8))
            nursery.start_soon(self.operators.run)
            nursery.start_soon(self.plans.run)
            await self._rage(seconds)
            nursery.cancel_scope.cancel()

    async def _rage(self, seconds: float) -> None:
        """Have faults hit some of the groups; those that begin meanwhile in any case."""
        end = trio.current_time() + seconds
        async with trio.open_nursery() as raging:

            def begun(group: SimulatedGroup) -> None:
                raging.start_soon(group.storm.rage, max(end - trio.current_time(), 0.0))

            for group in self.cluster.running:
                if self.rng.random() < RAGES:
                    raging.start_soon(group.storm.rage, seconds)
            with trio.move_on_at(end):
                await self.supervisors.run(begun)

    async def _client(self, door: RoutingDoor, history: bool) -> None:  # noqa: FBT001 - of a task
        think = door.rng.choice(THINKING)
        while True:
            workloads = (self.strings, self.bank, self.expiry)
            (workload,) = door.rng.choices(workloads, (7 * history, 2, 1))
            await workload.act(door)
            keys = self.operators.keys
            seen = [each.key for each in self.strings.history[-50:]]
            keys[:] = sorted({ACCOUNTS[0], *LEASES, *seen})
            await trio.sleep(self.cluster.unit * think * door.rng.random())

    async def _flush(self, door: RoutingDoor) -> None:
        """Delete all keys of a group, one after the other, and write many that move together."""
        for each in self.lists:
            each.leave()
        while True:
            await trio.sleep(self.cluster.unit * 2 * self.rng.random())
            with suppress(RequestError):
                if self.rng.random() < 0.5:
                    await door.command(encode(b"MSET", *MANY))
                else:
                    at = self.rng.choice(self.cluster.partitions)
                    await door.doors[at].command(encode(b"FLUSHALL"))

    async def _list_client(self, each: MovingLists) -> None:
        while True:
            await each.act()
            await trio.sleep(self.cluster.unit * 0.2 * self.rng.random())

    async def _heal(self) -> None:
        async with trio.open_nursery() as nursery:
            for group in self.cluster.running:
                group.storm.make_machines()
                nursery.start_soon(group.storm.heal)
        for group in self.cluster.running:
            group.storm.rounds += 1

    # --- the calm

    async def _serves_without_metadata(self) -> None:
        """See that slots with an owner are served while the metadata group is dead."""
        world = self.cluster.groups[META].world
        await world.kill(*world.running())
        book, door = self.cluster.book, self.doors[0]
        for partition in self.cluster.partitions:
            key = self._key_of(book.groups[partition].owned)
            if key is None:
                continue
            with trio.move_on_after(SERVED_TIMEOUTS * self.cluster.unit) as scope:
                await self._served(door, key)
            if scope.cancelled_caught:
                raise ViolationError(
                    f"Served: partition {partition} does not serve {key!r} without metadata"
                )
        await world.start(*(i for i in world.present if world.hosts[i].stopped))

    def _key_of(self, slots: int) -> bytes | None:
        """Return a key of one of some slots."""
        found = (b"served-%d" % n for n in range(2000))
        return next((key for key in found if slots >> key_slot(key) & 1), None)

    async def _served(self, door: RoutingDoor, key: bytes) -> None:
        while True:
            try:
                if await door.command(encode(b"SET", key, b"1")) == b"+OK\r\n":
                    return
            except RequestError:
                await trio.sleep(self.cluster.unit / 10)

    async def _settles(self) -> None:
        """See that directors end all moves, and that each slot has the owner that the map names."""
        ahead_ms = await self._agree_on_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: self.directors.run(troubled=False))
            nursery.start_soon(self.supervisors.run)
            nursery.start_soon(self._keep_time, ahead_ms)
            with trio.move_on_after(CALM_TIMEOUTS * self.cluster.unit) as scope:
                while self._unsettled():  # noqa: ASYNC110 - any entry of any log may change it
                    await trio.sleep(self.cluster.unit / 10)
            if scope.cancelled_caught:
                raise ViolationError(f"Settled: not in time: {self._unsettled()}")
            nursery.cancel_scope.cancel()

    async def _agree_on_time(self) -> int:
        """Have an operator set all clocks, until no group's log time keeps it from moving slots.

        They are set to the latest log time, since one that is ahead stays so for long. A member
        believes a long jump of its clock only after a minute.

        Returns:
            By how much the clocks are ahead of the world's, in milliseconds.
        """
        logs = [self.cluster.book.groups[at].log_ms for at in self.cluster.partitions]
        ahead_ms = max(logs) - int(trio.current_time() * 1000)
        with trio.move_on_after(CLOCKS_TIMEOUTS * self.cluster.unit) as scope:
            while not await self._set_clocks(ahead_ms):  # noqa: ASYNC110 - there is nothing else to wait for
                await trio.sleep(self.cluster.unit)
        if scope.cancelled_caught:
            raise ViolationError("Settled: log times do not meet, although the clocks are right")
        return ahead_ms

    async def _set_clocks(self, ahead_ms: int) -> bool:
        """Set all clocks; return whether members believe them, and all groups follow them."""
        for at in self.cluster.partitions:
            # Log time is that of the last entry.
            with suppress(RequestError):
                await self.doors[0].doors[at].command(encode(b"QUORATE.SLOTS", b"TIME"))
        logs = [self.cluster.book.groups[at].log_ms for at in self.cluster.partitions]
        right, times = ahead_ms + int(trio.current_time() * 1000), logs
        for group in self.cluster.running:
            for host in group.world.hosts.values():
                host.clock.jump(right - host.clock.now_ms())
                if host.member is not None and group.partition != META:
                    times.append(host.member.clocks.own_ms())
        return max(abs(right - each) for each in times) <= MOST_SKEW_MS // 2

    async def _keep_time(self, ahead_ms: int) -> None:
        """Keep clocks together that run at different rates."""
        while True:
            await trio.sleep(self.cluster.unit * 4)
            await self._set_clocks(ahead_ms)

    def _unsettled(self) -> str:
        """Say what is not as it is to be when nothing moves; empty if it is."""
        book = self.cluster.book
        if not book.cluster_map:
            return "there is no map"
        now, everything = decode_map_untrusted(book.cluster_map), 0
        if now.moves:
            return f"moves {now.moves}"
        for each in now.partitions:
            group = book.groups[each.partition]
            if group.frozen or group.importing:
                return f"partition {each.partition}: frozen {group.frozen}, {group.importing}"
            if group.owned != parse_slots_untrusted(each.slots):
                return f"partition {each.partition} does not own what the map says"
            everything |= group.owned
            latest = self.cluster.groups[each.partition].observer.known.latest
            if ({*each.replicas} != {*latest.ids} and latest.version) or latest.joint:
                return f"partition {each.partition} has members {latest.ids}, not {each.replicas}"
        return "" if everything == ALL_SLOTS else "slots without an owner"

    async def _judge(self) -> None:
        self.operators.keys.clear()
        await self.strings.finish(self.doors[0])
        await self.bank.finish(self.doors[0])
        for each in self.lists:
            with trio.move_on_after(CALM_TIMEOUTS * self.cluster.unit) as scope:
                await each.finish()
            if scope.cancelled_caught:
                raise ViolationError("Settled: a command of a session has no answer")

    # --- what was done

    @property
    def counts(self) -> Counter[str]:
        """How often what was done."""
        book = self.cluster.book
        counts = Counter(self.operators.counts | self.plans.counts)
        for group in self.cluster.groups.values():
            counts.update(group.storm.nemesis.context.counts)
        counts["moved"] += len(book.moved)
        counts["aborted"] += len(book.dropped)
        counts["lost maps"] += book.lost
        counts["new members"] += self.supervisors.started
        counts["directors"] += self.directors.lives
        return counts


async def run_partitions(
    seconds: float,
    directory: Path,
    setting: Setting,
    scenario: Scenario,
    *,
    trace: Trace,
    runs: list[Run],
) -> None:
    """Run a cluster with partitions.

    Args:
        seconds: of virtual time, at least.
        directory: for the members' stores.
        setting: of each group's world; its seed is the run's.
        scenario: the faults of each group.
        trace: receives the events of the first partition.
        runs: gets the run at once, for a look at it when it has failed.

    Raises:
        ViolationError: something does not hold.
    """
    kinds = kinds_of(random.Random(f"{setting.seed}/kinds"))
    book = Book([*range(PARTITIONS * (2 if "split" in kinds else 1))])
    async with open_cluster(directory, setting, scenario, book, trace, first=PARTITIONS) as cluster:
        run = Run(cluster, setting.seed, kinds)
        runs.append(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(book.watch)
            await run.run(seconds)
            nursery.cancel_scope.cancel()
        trace.close()
