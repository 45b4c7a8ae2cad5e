"""A pytest plugin with two fixtures: a cluster in virtual time, and one on loopback.

pytest loads it in every environment that has quorate. It imports quorate's rooms only when a test
asks for one of its fixtures.

`quorate_world` runs a script on simulated machines and a simulated network, in virtual time. No
timeout is waited for, and a test does the same in each run::

    def test_a_counter_survives_its_leader(quorate_world):
        async def script(world):
            leader = await world.settled()
            await world.command(leader, b"5")
            await world.kill(leader)
            other = await world.settled()
            assert await world.command(other, b"5") == b"10"

        quorate_world(script, Counter)

`quorate_cluster` runs real members on 127.0.0.1, in the process of the test. It needs trio, but no
plugin for it; with pytest-trio and its setting ``trio_mode = true`` a test reads::

    async def test_a_cluster(quorate_cluster):
        async with quorate_cluster(3) as nodes:
            await nodes[0].kv.set("a", "b")
            assert await nodes[1].kv.get("a") == b"b"
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from . import Node, Service
    from .node.config.config import Profile
    from .simulation import ServiceFactory, Setting, World

__all__ = ["OpenCluster", "RunWorld", "quorate_cluster", "quorate_world"]

T = TypeVar("T")


class RunWorld:
    """Runs a script on a cluster in virtual time; the value of `quorate_world`.

    Args:
        directory: where the members' stores lie.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = 0

    def __call__(
        self,
        script: Callable[[World[Service]], Awaitable[T]],
        machine: Callable[[], Service] | None = None,
        *,
        setting: Setting | None = None,
    ) -> T:
        """Start all members, and run a script; return what it returns.

        Each call has a new cluster. The script gets a :class:`quorate.simulation.World`, which can
        kill, pause, isolate and start members. ``world.hosts[i].running`` is a member while it
        runs: ``KeyValue(world.hosts[0].running)`` is the key-value store there.

        Args:
            script: an async function of the world.
            machine: makes each member's state machine, at each of its starts; the key-value store
                if left out.
            setting: number of members, seed, latencies and so on; three members if left out.

        Raises:
            Exception: what the script raises, or what ended a member.
        """
        from .simulation import Setting  # noqa: PLC0415 - only if it is used
        from .simulation.machines.scheduler import run  # noqa: PLC0415 - only if it is used

        self._runs += 1
        chosen = setting or Setting()
        place = self._directory / f"world-{self._runs}"
        return run(self._run, script, machine, chosen, place, seed=chosen.seed)

    async def _run(
        self,
        script: Callable[[World[Service]], Awaitable[T]],
        machine: Callable[[], Service] | None,
        setting: Setting,
        place: Path,
    ) -> T:
        from .simulation import open_world  # noqa: PLC0415 - only if it is used

        async with open_world(place, _factory(machine, setting.seed), setting) as world:
            await world.start()
            return await script(world)


def _factory(machine: Callable[[], Service] | None, seed: object) -> ServiceFactory[Service]:
    from random import Random  # noqa: PLC0415 - only if it is used

    from .simulation.store import stores  # noqa: PLC0415 - only if it is used

    if machine is None:
        return stores(Random(f"{seed}/flushes"))  # noqa: S311 - no secret
    return lambda _place: machine()


class OpenCluster:
    """Opens a cluster on loopback; the value of `quorate_cluster`.

    Args:
        directory: where the members' stores lie.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @asynccontextmanager
    async def __call__(
        self,
        members: int = 3,
        machine: Callable[[], Service] | None = None,
        *,
        cluster: str = "test",
        profile: Profile = "lan",
    ) -> AsyncGenerator[list[Node]]:
        """Run members in this process for the length of the block.

        There is a leader when the block begins.

        A second call in the same test with the same name goes on with the same stores.

        Args:
            members: number of members, 1 to 9.
            machine: makes the state machine of each member; the key-value store if left out.
            cluster: name of the cluster.
            profile: how patient the members are. "test" is faster than "lan", but a busy machine
                makes such members hold elections for nothing.
        """
        from . import local_configs, open_node  # noqa: PLC0415 - only if it is used

        configs = local_configs(
            members, self._directory / cluster, cluster=cluster, profile=profile
        )
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(open_node(config, machine and machine()))
                for config in configs
            ]
            for node in nodes:
                await node.wait_for_leader()
            yield nodes


@pytest.fixture
def quorate_world(tmp_path: Path) -> RunWorld:
    """Run a script on a simulated cluster in virtual time; see :class:`RunWorld`."""
    return RunWorld(tmp_path)


@pytest.fixture
def quorate_cluster(tmp_path: Path) -> OpenCluster:
    """Open a cluster of real members on loopback; see :class:`OpenCluster`."""
    return OpenCluster(tmp_path)
