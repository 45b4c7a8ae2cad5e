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

__all__ = ["FAULTS", "Fault", "Nemesis", "NoProgressError"]

Fault = Literal["kill", "pause", "partition", "slow-disk", "full-disk", "members"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

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
    "members": {},
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

    Attributes:
        counts: number of members hit by each fault; of `members`, the orders.
        keeper: starts members again.
        members: changes the members, if that is among the faults.
    """

    cluster: LocalCluster
    clients: Clients
    rng: random.Random
    tell: Callable[[str], None]
    faults: Sequence[Fault]
    network: Namespaces | None = None
    machines: Machines | None = None
    counts: Counter[Fault] = attrs.field(factory=Counter["Fault"])
    keeper: Keeper = attrs.field(init=False)
    members: Members | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.keeper = Keeper(self.cluster, self.tell, self.clients.violations)
        self.keeper.on_change = self._refresh
        if "members" in self.faults:
            assert self.machines is not None
            rng = random.Random(self.rng.random())  # noqa: S311 - no secret
            self.members = Members(Picture(self.keeper, self.machines), rng, self.tell)

    def _refresh(self) -> None:
        """Let the clients use the members that there are now."""
        self.clients.addresses = self.cluster.addresses

    async def run(self, seconds: float, kills: int) -> None:
        """Inject faults for `seconds`; then go on with kills until there were at least `kills`.

        Raises:
            NoProgressError: the cluster did not recover from a fault.
            StuckError: changes of the members do not end.
        """
        async with trio.open_nursery() as nursery:
            if self.members is not None:
                nursery.start_soon(self.members.run)
            await self._run(nursery, seconds, kills)
            if self.members is not None:
                await self.members.settle()
            nursery.cancel_scope.cancel()

    async def _run(self, nursery: trio.Nursery, seconds: float, kills: int) -> None:
        end, faults = trio.current_time() + seconds, self.faults
        while trio.current_time() < end or ("kill" in faults and self.counts["kill"] < kills):
            if trio.current_time() >= end:
                faults = ("kill",)
            await self.progress()
            await trio.sleep(self.rng.uniform(0.0, CALM_SECONDS))
            await self._episode(nursery, faults)
        await self.progress()

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
        """Run one or two faults from beginning to end; the first fault of all hits the leader."""
        length = self.rng.choice(LENGTH_SECONDS)
        count = 2 if self.rng.random() < SECOND_FAULT else 1
        weights = [_ORDERS if fault == "members" else 1 for fault in faults]
        chosen = self.rng.choices(faults, weights, k=count) if self.counts else faults[:1]
        async with AsyncExitStack() as stack:
            for fault in chosen:
                if fault == "members":
                    assert self.members is not None
                    self.counts[fault] += self.members.strike(nursery)
                    continue
                victims = await self._victims(fault)
                self.counts[fault] += sum(victim.pid is not None for victim in victims)
                names = ", ".join(str(victim.member_id) for victim in victims)
                self.tell(f"{fault}: member {names}, for {length:g} s")
                await stack.enter_async_context(self._way(fault, victims))
            await trio.sleep(length)

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
            case "members":  # pragma: no cover - it has no victims
                raise AssertionError("an order goes to the cluster")

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
