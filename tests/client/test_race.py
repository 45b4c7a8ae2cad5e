"""Silent machines delay a client for a moment each, and no longer than it has patience."""

from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from quorate.client.connect import open_through
from quorate.client.dialling import DIAL_SECONDS, Wire
from quorate.client.race import STAGGER_SECONDS, Race
from quorate.errors import KeyValueError, NoLeaderError
from quorate.transport import Address
from tests.support.fake_cluster import LATENCY, FakeCluster, FakeDialler
from tests.support.service_world import Fed, open_service


class StoppedDialler(FakeDialler):
    """Opens connections to a fake cluster, some of whose machines stand still."""

    def __init__(self, cluster: FakeCluster, *stopped: Address) -> None:
        super().__init__(cluster)
        self._stopped = stopped
        self.opened: list[Wire] = []

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        if address in self._stopped:
            await anyio.sleep(DIAL_SECONDS)
            raise TimeoutError("no answer within 5 s")
        wire = await super().open(address)
        self.opened.append(wire)
        return wire


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


async def get_through(dialler: FakeDialler, cluster: FakeCluster, patience_s: float) -> float:
    """Read a key through a new client; return how long that took."""
    before = anyio.current_time()
    async with open_through(
        dialler,
        cluster.addresses,
        exactly_once=True,
        session_timeout_s=300.0,
        patience_s=patience_s,
    ) as kv:
        await kv.get("a")
        return anyio.current_time() - before


async def test_a_stopped_machine_delays_a_new_client_for_a_moment(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.leader = cluster.addresses[2]
    dialler = StoppedDialler(cluster, *cluster.addresses[:2])
    assert await get_through(dialler, cluster, 2.0) < 2 * STAGGER_SECONDS + 10 * LATENCY


async def test_a_stopped_leader_that_members_still_name_delays_a_client_for_a_second(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = StoppedDialler(cluster, cluster.leader)
    before = anyio.current_time()
    async with open_through(
        dialler, cluster.addresses, exactly_once=True, session_timeout_s=300.0, patience_s=5.0
    ):
        assert anyio.current_time() - before < 1.5


@pytest.mark.parametrize("patience_s", [1.0, 2.0, 7.0])
async def test_patience_is_kept_while_all_machines_stand_still(
    cluster: FakeCluster, autojump_clock: MockClock, patience_s: float
) -> None:
    before = anyio.current_time()
    with pytest.raises(NoLeaderError, match=r"10\.0\.0\.1:7000: no answer.*10\.0\.0\.3:7000: no"):
        await get_through(StoppedDialler(cluster, *cluster.addresses), cluster, patience_s)
    assert anyio.current_time() - before <= patience_s


async def test_the_second_of_two_that_win_in_one_moment_is_closed(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = StoppedDialler(cluster)

    async def dial(address: Address) -> Wire:
        late = 0.0 if address == cluster.addresses[1] else STAGGER_SECONDS
        await anyio.sleep(late)
        return await dialler.open(address)

    won = await Race(dial).run(cluster.addresses, 10.0)
    assert won is not None
    assert [wire.closed for wire in dialler.opened].count(False) == 1
    assert not won.closed


async def test_a_wrong_password_ends_the_race(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = FakeDialler(cluster)
    dialler.error = KeyValueError("WRONGPASS invalid username-password pair")
    with pytest.raises(KeyValueError, match="WRONGPASS"):
        await Race(dialler.open).run(cluster.addresses, 10.0)
    assert len(cluster.dialled) == 1
