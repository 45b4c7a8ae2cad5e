"""Replicated objects on members: real ones on loopback, and simulated ones under faults."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
import trio

from quorate import ConfigurationError, NoLeaderError, Service, UnknownOutcomeError, local_configs
from quorate.objects import CallError, Counter, LockManager, ReplicatedQueue, open_objects
from quorate.objects.caller import Caller
from quorate.objects.machine import ObjectsMachine
from quorate.pytest_plugin import RunWorld
from quorate.simulation import Plan, World, simulate

from .bank import Bank


async def test_a_cluster_of_objects_calls_restarts_and_goes_on(tmp_path: Path) -> None:
    configs = local_configs(3, tmp_path, profile="test")
    for visit in (1, 2):
        banks = [Bank() for _ in configs]
        hits = [Counter("hits") for _ in configs]
        queues = [ReplicatedQueue("q", str) for _ in configs]
        locks = [LockManager("locks") for _ in configs]
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(open_objects(config, objects))
                for config, *objects in zip(configs, banks, hits, queues, locks, strict=True)
            ]
            async with trio.open_nursery() as nursery:
                for counter in hits:
                    for _ in range(10):
                        nursery.start_soon(counter.add, 1)
            assert [await counter.get() for counter in hits] == [30 * visit] * 3
            with pytest.raises(CallError, match="too little"):
                await banks[2].pay("ann", -100)
            await banks[0].pay("ann", 5)
            assert [await bank.balance("ann") for bank in banks] == [5 * visit] * 3
            async with locks[1].hold("l", ttl_s=2) as held:
                assert await locks[0].acquire("l", "other", 1000) == 0
                assert held.token > 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queues[1].put, "x")
                assert await queues[2].get() == "x"
            await nodes[1].snapshot()


async def test_a_program_without_an_object_of_the_log_says_so(tmp_path: Path) -> None:
    (config,) = local_configs(1, tmp_path, profile="test")
    counter = Counter("hits")
    async with open_objects(config, [counter]):
        await counter.add(1)
    with pytest.raises(ConfigurationError, match=r"version 1 of hits.add, which this program"):
        async with open_objects(config, [Counter("other")]):
            await trio.sleep(5)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_objects_pass_the_simulation(seed: int) -> None:
    """Members are compared by replies and states, with restarts and snapshots."""
    plan = Plan(seed, 3, 0.003, scenario="snapshots", service="tests.objects.bank:Machine")
    outcome = simulate(plan)
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 10


class Alive:
    """Sends to any member that runs; every third reply is lost."""

    def __init__(self, world: World[ObjectsMachine]) -> None:
        self._world = world
        self._replies = 0

    async def command(self, payload: bytes, flags: int = 0) -> bytes:
        running = self._world.running()
        if not running:
            raise NoLeaderError("no member runs")
        reply = await self._world.hosts[running[-1]].running.command(payload, flags)
        self._replies += 1
        if self._replies % 3 == 0:
            raise UnknownOutcomeError("the reply is lost")
        return reply

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        return await self._world.hosts[self._world.running()[-1]].running.query(payload, flags)


def test_every_call_is_done_once_whoever_dies(quorate_world: RunWorld) -> None:
    async def script(world: World[Service]) -> int:
        hits = Counter("hits")
        caller = Caller(60.0)
        ObjectsMachine([hits], caller)  # of the program alone: it has no member
        async with trio.open_nursery() as nursery:
            await nursery.start(caller.run, Alive(cast("World[ObjectsMachine]", world)))
            async with trio.open_nursery() as workers:
                for _ in range(20):
                    workers.start_soon(add, hits)
                for _ in range(4):
                    leader = await world.settled()
                    await trio.sleep(0.02)
                    await world.kill(leader)
                    await trio.sleep(0.3)
                    await world.start(leader)
            total = await hits.set(0)
            nursery.cancel_scope.cancel()
            return total

    async def add(hits: Counter) -> None:
        for _ in range(20):
            await hits.add(1)
            await trio.sleep(0.05)

    def machine() -> Service:
        return ObjectsMachine([Counter("hits")], Caller(60.0))

    assert quorate_world(script, machine) == 400
