"""A storm over a cluster: faults under load, then calm, again and again.

After every event everything in :mod:`.invariants` is checked. When a storm is over the cluster
heals, first any quorum, then all of it; within ten virtual seconds there must be one leader that
takes commands each time. Then every acknowledged command must have been applied exactly once, none
that was refused, and all members must hold the same.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import NoLeaderError, UnknownOutcomeError
from .clients import Clients
from .invariants import Invariants, ViolationError
from .nemesis import Nemesis
from .world import TIMEOUTS

if TYPE_CHECKING:
    from .ledger import Ledger
    from .world import World

STORM_SECONDS: Final = 20.0
HEAL_SECONDS: Final = 10.0
PATIENT: Final = attrs.evolve(TIMEOUTS, startup_canvass=4.0, leader_heartbeat_timeout=2.0)
PATIENT_SHARE: Final = 0.2


class Storm:
    """Storms over one cluster.

    Args:
        world: the cluster, not started.
        seed: of the faults and the load.
    """

    def __init__(self, world: World[Ledger], seed: int) -> None:
        self.world = world
        self.rng = random.Random(f"{seed}/storm")
        self.invariants = Invariants(world)
        self.nemesis = Nemesis(world, random.Random(f"{seed}/nemesis"))
        self.clients = Clients(world, random.Random(f"{seed}/clients"))
        self._ids = list(world.hosts)
        self._rounds = 0

    async def run(self, seconds: float) -> None:
        """Storm and heal for that long.

        Raises:
            ViolationError: something that must hold does not.
        """
        for host in self.world.hosts.values():
            if self.rng.random() < PATIENT_SHARE:
                host.config = attrs.evolve(host.config, timeouts=PATIENT)
        await self.world.start()
        end = trio.current_time() + seconds
        while (left := end - trio.current_time()) > 0:
            self._rounds += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.clients.run)
                await self.nemesis.run(min(STORM_SECONDS, left))
                nursery.cancel_scope.cancel()
            await self._heal_a_quorum()
            await self._heal()
            await self._finish()

    async def _heal_a_quorum(self) -> None:
        """Any quorum must do, whoever is in it: the others are dead, or unreachable."""
        world = self.world
        quorum = self.rng.sample(self._ids, len(self._ids) // 2 + 1)
        world.mend()
        if self.rng.random() < 0.5:
            await world.kill(*(i for i in world.running() if i not in quorum))
        else:
            for i in world.others(*quorum):
                world.isolate(i)
        await self._revive(quorum)
        await self._leader_among(quorum, b"quorum")

    async def _heal(self) -> None:
        self.world.mend()
        await self._revive(self._ids)
        await self._leader_among(self._ids, b"all")

    async def _revive(self, ids: list[int]) -> None:
        for i in ids:
            host = self.world.hosts[i]
            if host.member is None:
                await self.world.start(i)
            if host.disk is not None:
                host.disk.latency = host.fsync

    async def _leader_among(self, ids: list[int], name: bytes) -> None:
        """All of them lead or follow one leader before long, and it takes commands."""
        world = self.world

        def joined() -> bool:
            running = [world.hosts[i].running.status() for i in ids if world.hosts[i].member]
            leaders = {each.leader_id for each in running if each.state == "CLOSED"}
            closed = all(each.state == "CLOSED" for each in running) and len(running) == len(ids)
            return closed and len(leaders) == 1 and not leaders.isdisjoint(ids)

        try:
            await world.until(joined, within=HEAL_SECONDS)
            await self._command(ids[0], name)
        except (trio.TooSlowError, NoLeaderError, UnknownOutcomeError) as trouble:
            states = {i: host.state.name for i, host in world.hosts.items() if host.member}
            raise ViolationError(f"{name!r}: not healed in {HEAL_SECONDS} s: {states}") from trouble

    async def _command(self, at: int, name: bytes) -> bytes:
        payload = b"%s %d" % (name, self._rounds)
        with trio.fail_after(HEAL_SECONDS):
            await self.world.command(at, payload)
        self.world.acked.append(payload)
        return payload

    async def _finish(self) -> None:
        world = self.world
        leader = world.leaders()[0]

        def converged() -> bool:
            found = [host.service.payloads for host in world.hosts.values()]
            return all(last in payloads[-1:] and payloads == found[0] for payloads in found)

        try:
            last = await self._command(leader, b"last")
            await world.until(converged, within=HEAL_SECONDS)
        except trio.TooSlowError as slow:
            ends = {i: host.running.status() for i, host in world.hosts.items()}
            raise ViolationError(f"logs are not equal: {ends}") from slow
        self._compare(world.hosts[leader].service.payloads)

    def _compare(self, payloads: list[bytes]) -> None:
        """Compare what was applied with what the clients were told."""
        applied = set(payloads)
        if len(applied) != len(payloads):
            raise ViolationError("a command was applied twice")
        if lost := set(self.world.acked) - applied:
            raise ViolationError(f"acknowledged and lost: {sorted(lost)}")
        if ghosts := set(self.world.refused) & applied:
            raise ViolationError(f"refused and done: {sorted(ghosts)}")
        self.invariants.refresh()
