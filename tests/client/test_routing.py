"""Tasks that open connections at the same time agree on where to go next."""

from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from quorate.client.dialling import Wire
from quorate.client.routing import Routes
from quorate.simulation import run
from quorate.transport import Address
from tests.support.fake_cluster import FakeCluster, FakeDialler
from tests.support.service_world import Fed, open_service


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


class HeldDialler(FakeDialler):
    """Holds up the second connection to a follower, the one that passes requests on.

    Attributes:
        reached: set when there is a connection to the leader.
    """

    def __init__(self, cluster: FakeCluster, hold: Callable[[], Awaitable[None]]) -> None:
        super().__init__(cluster)
        self._hold = hold
        self._leader, self._follower, _ = cluster.addresses
        self.reached = anyio.Event()

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        wire = await super().open(address)
        if address == self._follower and self._cluster.dialled.count(address) == 2:
            await self._hold()
        if address == self._leader:
            self.reached.set()
        return wire


async def test_a_leader_that_another_task_reaches_meanwhile_is_looked_for_at_once(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    leader, follower, _ = cluster.addresses
    cluster.down.add(leader)
    routes = Routes(HeldDialler(cluster, lambda: anyio.sleep(1.0)), [follower])

    async def reach_it() -> None:
        await anyio.sleep(0.7)
        cluster.down.clear()
        assert (await routes.open()).address == leader

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reach_it)
        wire = await routes.open()
        assert wire.address == follower
        assert not routes.fits(wire)
    wire = await routes.open()
    assert wire.address == leader
    assert routes.fits(wire)


def test_a_member_that_passes_requests_on_is_left_again_whichever_task_is_first(
    cluster: FakeCluster,
) -> None:
    leader, follower, _ = cluster.addresses
    cluster.latency[leader] = 0.0

    async def open_both(turns: int) -> None:
        async def until_the_leader_is_dialled() -> None:
            await dialler.reached.wait()
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()

        async def reach_it() -> None:
            await anyio.sleep(0.7)
            cluster.down.clear()
            cluster.latency[follower] = 0.3  # both races wait for their last member then
            await routes.open()

        cluster.latency[follower] = 0.0
        cluster.down.add(leader)
        cluster.dialled.clear()
        dialler = HeldDialler(cluster, until_the_leader_is_dialled)
        routes = Routes(dialler, [follower])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reach_it)
            wire = await routes.open()
            await anyio.sleep(0.1)  # the other one has opened its connection, too
            assert wire.address == follower
            assert not routes.fits(wire)

    for seed in range(40):  # of the order of tasks that are ready at the same time
        run(open_both, 1 + seed % 4, seed=seed)
