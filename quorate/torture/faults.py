"""The faults of `quorate torture`: which faults hit which members, by a seeded choice.

Faults come in episodes, with one or two at the same time. An episode begins only when the cluster
has made progress after the previous one. So each fault hits a working cluster, and liveness is
checked after each fault. At the end of an episode all faults end: dead members start again, paused
members continue, links and disks work. Changes of the members are an exception: an order goes on
while the next episodes begin (:mod:`.members`).
"""

import math
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, Literal, get_args

import attrs
import trio

from ..local.cluster import LocalCluster, MemberProcess
from ..local.survey import survey
from . import disk
from .clients import Clients
from .keeper import Keeper
from .machines import Machines
from .members import Members
from .network import Namespaces
from .picture import Picture
from .rotations import Certifier, Rotation, Rotations
from .users import Users

__all__ = ["FAULTS", "TLS_FAULTS", "Fault", "Nemesis", "NoProgressError"]

Fault = Literal[
    "kill",
    "pause",
    "partition",
    "slow-disk",
    "full-disk",
    "members",
    "users",
    "certificates",
    "ca",
]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
TLS_FAULTS: Final[tuple[Fault, ...]] = get_args(Rotation)
"""Those that need certificates."""

CALM_SECONDS: Final = 0.3
LENGTH_SECONDS: Final = (0.05, 0.2, 0.5, 1.5, 4.0)
"""How long an episode lasts: too short to be noticed; into the election that follows; past the
election; until members are far behind; longer than requests are parked."""
SLOW_MS: Final = (20, 100, 400, 2000)
SECOND_FAULT: Final = 0.3
_ORDERS: Final = 2
"""The weight of orders about members among the faults. They last for many episodes, and a strike
during one does nothing."""
PROGRESS_OPERATIONS: Final = 50
PROGRESS_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.02

_VICTIMS: Final[dict[Fault, dict[str, int]]] = {
    "kill": {"leader": 5, "follower": 2, "majority": 1, "all": 1},
    "pause": {"leader": 3, "follower": 1},
    "partition": {"leader": 4, "follower": 1, "majority": 1},
    "slow-disk": {"leader": 3, "follower": 1, "all": 1},
    "full-disk": {"leader": 1, "follower": 1},
}
"""The weight of each kind of victim, for each fault."""


class NoProgressError(Exception):
    """All members run without faults, but the clients make no progress."""


@attrs.define(eq=False)
class Nemesis:
    """Injects the faults.

    Args:
        cluster: the members.
        clients: the clients; they show progress, and collect violations.
        rng: random numbers for the nemesis alone.
        tell: called with a line about each fault.
        faults: the kinds of faults to inject.
        network: makes partitions; needed for these only.
        machines: where members run; needed if they come and go.
        certifier: makes certificates; needed if these are replaced.
        on_fault: called with the name of each fault that has victims, these, and the seconds.

    Attributes:
        counts: number of members hit by each fault; of those without victims, of their beginnings.
        keeper: starts members again.
        members: changes the members, if that is among the faults.
        users: makes and revokes users.
        rotations: replaces certificates, if there are any.
    """

    cluster: LocalCluster
    clients: Clients
    rng: random.Random
    tell: Callable[[str], None]
    faults: Sequence[Fault]
    network: Namespaces | None = None
    machines: Machines | None = None
    certifier: Certifier | None = None
    on_fault: Callable[[str, Sequence[int], float], None] = lambda _what, _targets, _seconds: None
    counts: Counter[Fault] = attrs.field(factory=Counter["Fault"])
    keeper: Keeper = attrs.field(init=False)
    members: Members | None = attrs.field(init=False, default=None)
    users: Users = attrs.field(init=False)
    rotations: Rotations | None = attrs.field(init=False, default=None)
    _tried: set[Fault] = attrs.field(init=False, factory=set["Fault"])

    def __attrs_post_init__(self) -> None:
        self.keeper = Keeper(self.cluster, self.tell, self.clients.violations)
        self.keeper.on_change = self._refresh
        if "members" in self.faults:
            assert self.machines is not None
            rng = random.Random(self.rng.random())  # noqa: S311 - no secret
            self.members = Members(Picture(self.keeper, self.machines), rng, self.tell)
        rng, violations = random.Random("users"), self.clients.violations  # noqa: S311 - no secret
        self.users = Users(lambda: self.cluster.addresses, rng, self.tell, violations)
        if self.certifier is not None:
            self.rotations = Rotations(
                self.certifier,
                lambda: self.cluster.members,
                random.Random("rotations"),  # noqa: S311 - no secret
                self.tell,
                violations,
            )

    def _refresh(self) -> None:
        """Let the clients use the members that there are now."""
        self.clients.addresses = self.cluster.addresses

    async def run(self, seconds: float, kills: int) -> None:
        """Inject faults for `seconds`, each kind at least once; then kills, up to `kills` of them.

        Raises:
            NoProgressError: the cluster did not recover from a fault.
            StuckError: changes of the members do not end.
        """
        async with trio.open_nursery() as nursery:
            if self.members is not None:
                nursery.start_soon(self.members.run)
            await self._run(nursery, seconds, kills)
            await self.users.settle()
            if self.rotations is not None:
                await self.rotations.settle()
            if self.members is not None:
                await self.members.settle()
            nursery.cancel_scope.cancel()

    async def _run(self, nursery: trio.Nursery, seconds: float, kills: int) -> None:
        end, faults = trio.current_time() + seconds, self.faults
        while True:
            if trio.current_time() >= end and not self._untried(faults):
                if "kill" not in self.faults or self.counts["kill"] >= kills:
                    break
                faults = ("kill",)
            await self.progress()
            await trio.sleep(self.rng.uniform(0.0, CALM_SECONDS))
            await self._episode(nursery, faults)
        await self.progress()

    def _untried(self, faults: Sequence[Fault]) -> list[Fault]:
        return [fault for fault in faults if fault not in self._tried]

    async def progress(self) -> None:
        """Wait until the cluster makes progress; check that no member has ended by itself.

        Raises:
            NoProgressError: the cluster makes no progress in time.
        """
        goal = self.clients.outcomes["ok"] + PROGRESS_OPERATIONS
        with trio.move_on_after(PROGRESS_SECONDS) as waiting:
            while self.clients.outcomes["ok"] < goal:
                await self.keeper.look_after()
                await trio.sleep(LOOK_SECONDS)
        if waiting.cancelled_caught:
            seen = await survey(self.cluster.addresses)
            told = [f"member {one.member_id} {one.state} term {one.term}" for one in seen.said]
            raise NoProgressError(
                f"no {PROGRESS_OPERATIONS} operations in {PROGRESS_SECONDS:g} s: {', '.join(told)}"
            )

    async def _episode(self, nursery: trio.Nursery, faults: Sequence[Fault]) -> None:
        """Run one or two faults from beginning to end; the first fault of all hits the leader.

        At first each kind comes once, in their order, so that even a short run has all of them.
        """
        length = self.rng.choice(LENGTH_SECONDS)
        count = 2 if self.rng.random() < SECOND_FAULT else 1
        weights = [_ORDERS if fault == "members" else 1 for fault in faults]
        chosen = self._untried(faults)[:1] or self.rng.choices(faults, weights, k=count)
        self._tried.update(chosen)
        async with AsyncExitStack() as stack:
            for fault in chosen:
                if fault not in _VICTIMS:
                    self.counts[fault] += await self._strike(fault, nursery, len(chosen))
                    continue
                victims = await self._victims(fault)
                self.counts[fault] += sum(victim.pid is not None for victim in victims)
                names = ", ".join(str(victim.member_id) for victim in victims)
                self.tell(f"{fault}: member {names}, for {length:g} s")
                self.on_fault(fault, [victim.member_id for victim in victims], length)
                await stack.enter_async_context(self._way(fault, victims))
            await trio.sleep(length)

    async def _strike(self, fault: Fault, nursery: trio.Nursery, count: int) -> bool:
        """Begin with a fault that has no victims; return whether it has begun.

        Args:
            fault: the kind of fault.
            nursery: for what goes on while further episodes begin.
            count: number of faults in this episode.
        """
        match fault:
            case "users":
                return self.users.strike(nursery)
            case "certificates" | "ca":
                assert self.rotations is not None
                return await self.rotations.strike(fault, nursery, alone=count == 1)
            case _:
                assert self.members is not None
                return self.members.strike(nursery)

    async def _victims(self, fault: Fault) -> list[MemberProcess]:
        weights = _VICTIMS[fault]
        (whom,) = self.rng.choices(list(weights), list(weights.values()))
        if not self.counts:
            whom = "leader"  # so that even a short run has an election
        members = list(self.cluster.members)
        leading = (await survey(self.cluster.addresses)).leader
        leader = self.keeper.find(leading.member_id) if leading else None
        leader = leader or self.rng.choice(members)
        followers = [member for member in members if member is not leader]
        match whom:
            case "leader":
                return [leader]
            case "follower":
                return [self.rng.choice(followers)] if followers else [leader]
            case "majority":
                return [leader, *self.rng.sample(followers, len(members) // 2)]
            case _:
                return members

    def _way(
        self, fault: Fault, victims: Sequence[MemberProcess]
    ) -> AbstractAsyncContextManager[None]:
        match fault:
            case "kill":
                return self._kill(victims)
            case "pause":
                return self._pause(victims)
            case "partition":
                return self._partition(victims)
            case "slow-disk":
                return self._slow_disk(victims)
            case "full-disk":
                return self._full_disk(victims)
            case _:  # pragma: no cover - it has no victims
                raise AssertionError(f"{fault} goes to the cluster")

    @asynccontextmanager
    async def _kill(self, victims: Sequence[MemberProcess]) -> AsyncGenerator[None]:
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        for victim in victims:
            await victim.kill()
        yield
        for victim in victims:
            await self.keeper.start(victim)

    @asynccontextmanager
    async def _pause(self, victims: Sequence[MemberProcess]) -> AsyncGenerator[None]:
        for victim in victims:
            victim.send_signal(signal.SIGSTOP)
        yield
        for victim in victims:
            victim.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def _partition(self, victims: Sequence[MemberProcess]) -> AsyncGenerator[None]:
        """Cut the victims off from the other members, mostly in both directions."""
        assert self.network is not None
        inside = {self._machine(victim) for victim in victims}
        outside = [m for each in self.cluster.members if (m := self._machine(each)) not in inside]
        sends, hears = self.rng.choice([(True, True), (True, True), (True, False), (False, True)])
        cuts = [(i, o) for i in sorted(inside) for o in outside if sends]
        cuts += [(o, i) for i in sorted(inside) for o in outside if hears]
        for sender, receiver in cuts:
            await self.network.cut(sender, receiver)
        yield
        for sender, receiver in cuts:
            await self.network.heal(sender, receiver)

    def _machine(self, process: MemberProcess) -> int:
        return self.machines.of(process).machine if self.machines else process.member_id

    @asynccontextmanager
    async def _slow_disk(self, victims: Sequence[MemberProcess]) -> AsyncGenerator[None]:
        milliseconds = self.rng.choice(SLOW_MS)
        for victim in victims:
            disk.slow_down(victim, milliseconds)
        yield
        for victim in victims:
            disk.speed_up(victim)

    @asynccontextmanager
    async def _full_disk(self, victims: Sequence[MemberProcess]) -> AsyncGenerator[None]:
        for victim in victims:
            disk.fill(victim)
            self.keeper.full[victim.member_id] = math.inf
        yield
        for victim in victims:
            disk.empty(victim)
            self.keeper.full[victim.member_id] = trio.current_time()
