"""A request gets its own reply or none, and in time, whatever its member does."""

from collections import deque
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream
from trio.testing import MockClock

from quorate.client.dialling import DIAL_SECONDS, Wire
from quorate.client.lanes import Lanes, LostReplyError
from quorate.client.routing import Routes
from quorate.errors import NoLeaderError, RefusedError, RequestError, UnknownOutcomeError
from quorate.recipes.lease import Lease
from quorate.transport import Address
from tests.client.test_connect import connected
from tests.support.fake_cluster import FakeCluster, FakeDialler, Fault
from tests.support.service_world import Fed, open_service


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


class SilentDialler(FakeDialler):
    """Opens connections to a fake cluster; some of its machines lose their power."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self._off: set[Address] = set()

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        if address in self._off:
            await anyio.sleep(DIAL_SECONDS)
            raise TimeoutError("no answer")
        return await super().open(address)

    def turn_off(self, address: Address) -> None:
        """Have a machine say nothing from now on, and the next member lead."""
        self._off.add(address)
        members = self._cluster.addresses
        self._cluster.judge = lambda there, _words: b"" if there == address else None
        self._cluster.leader = members[(members.index(address) + 1) % len(members)]


async def test_a_leader_without_power_is_left_once_another_one_leads(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = SilentDialler(cluster)
    async with connected(cluster, dialler) as kv:
        await kv.set("a", "1")
        dialler.turn_off(cluster.leader)
        before, dials = anyio.current_time(), len(cluster.dialled)
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(kv.compare_and_set, f"k{n}", None, "1")
        assert anyio.current_time() - before < 2.5
        assert len(cluster.dialled) - dials < 10, "one asks for all"


async def test_a_leader_that_is_slow_is_waited_for(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster, exactly_once=False) as kv:
        await kv.increment("n")
        cluster.latency = {cluster.leader: 4.0}
        assert await kv.increment("n") == 2
        assert cluster.dialled[-1] != cluster.leader, "another one was asked"
        cluster.latency = {}
        dials = len(cluster.dialled)
        assert await kv.increment("n") == 3
        assert len(cluster.dialled) == dials


async def test_a_member_that_passes_requests_on_is_not_replaced_by_the_leader(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.leader = Address("192.168.0.7", 7000)
    async with connected(cluster, exactly_once=False) as kv:
        await kv.increment("n")
        cluster.latency = dict.fromkeys(cluster.addresses[:1], 4.0)
        assert await kv.increment("n") == 2


async def test_a_lone_member_that_is_silent_loses_the_reply(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    del cluster.addresses[1:]
    async with connected(cluster, exactly_once=False) as kv:
        await kv.increment("n")
        cluster.judge = lambda _address, _words: Fault.SILENT
        before = anyio.current_time()
        with pytest.raises(UnknownOutcomeError, match="no answer for 6 s"):
            await kv.increment("n")
        assert anyio.current_time() - before < 6.1


@pytest.mark.parametrize("ttl_s", [3.0, 10.0])
async def test_a_lease_outlives_a_leader_without_power(
    cluster: FakeCluster, autojump_clock: MockClock, ttl_s: float
) -> None:
    """With 3 s, no renewal waits long enough to see that the leader is silent."""
    dialler = SilentDialler(cluster)
    async with connected(cluster, dialler) as kv:
        lease = Lease(kv, b"k", ttl_s=ttl_s)
        assert await lease.acquire()
        async with lease.held():
            await anyio.sleep(0.5)
            dialler.turn_off(cluster.leader)
            await anyio.sleep(30)


async def test_calls_that_queue_share_no_patience(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """Each has a deadline of its own, which covers waiting for a connection."""
    took: list[float] = []

    async def read(n: int) -> None:
        before = anyio.current_time()
        with pytest.raises(NoLeaderError):
            await kv.mget(f"k{n}")
        took.append(anyio.current_time() - before)

    async def write(n: int) -> None:
        before = anyio.current_time()
        with pytest.raises(RequestError):
            await kv.compare_and_set(f"k{n}", None, "1")
        took.append(anyio.current_time() - before)

    async with connected(cluster, patience_s=5, exactly_once=False) as kv:
        cluster.judge = lambda _address, _words: Fault.SILENT
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(read, n)
                tasks.start_soon(write, n)
    assert len(took) == 40
    assert max(took) < 5 + 8


async def test_a_closed_client_refuses_and_opens_nothing(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
    dials = len(cluster.dialled)
    with pytest.raises(RequestError, match="closed; nothing was done"):
        await kv.compare_and_set("a", "1", "2")
    with pytest.raises(RefusedError, match="closed; nothing was done"):
        await kv.mget("a")
    assert len(cluster.dialled) == dials


async def test_a_connection_in_use_is_closed_after_its_reply_when_the_client_is(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    found: list[object] = []

    async def read() -> None:
        try:
            found.append(await kv.mget("a"))
        except RefusedError as error:
            found.append(str(error))

    opened: list[Wire] = []

    class Noting(FakeDialler):
        async def open(self, address: Address) -> Wire:
            opened.append(await super().open(address))
            return opened[-1]

    async with (
        anyio.create_task_group() as tasks,
        connected(cluster, Noting(cluster), exactly_once=False) as kv,
    ):
        tasks.start_soon(read)  # through the connection that is open
        tasks.start_soon(read)  # opens one
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    assert all(wire.closed for wire in opened)
    assert [None] in found
    assert "the client is closed; nothing was done" in found


# --- replies


class Canned(ByteStream):
    """A connection on which bytes arrive that nobody has thought of."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = deque(chunks)

    async def send(self, item: bytes) -> None:
        """Take anything."""
        await anyio.lowlevel.checkpoint()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes."""
        await anyio.lowlevel.checkpoint()
        return self._chunks.popleft()

    async def send_eof(self) -> None:
        """Nobody calls this."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close it."""
        await anyio.lowlevel.checkpoint()


class CannedDialler(FakeDialler):
    """Opens a connection for each list of chunks."""

    def __init__(self, cluster: FakeCluster, *connections: list[bytes]) -> None:
        super().__init__(cluster)
        self._connections = deque(connections)

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        await anyio.lowlevel.checkpoint()
        # The first reply is the one to CLUSTER SLOTS.
        return Wire(Canned(b"-NOPERM\r\n", *self._connections.popleft()), address)


async def test_what_comes_with_a_reply_is_not_the_next_reply(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = CannedDialler(
        cluster,
        [b"$1\r\n1\r\n$5\r\nSTALE\r\n"],
        [b"$1\r\n2\r\n>1\r\n", b"$1\r\nx\r\n"],
        [b"$1\r\n3\r\n"],
    )
    lanes = Lanes(Routes(dialler, cluster.addresses))
    assert [await lanes.call(b"") for _ in range(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("value", [b">1\r\n$1\r\nx\r\n", b"*0\r\n"])
async def test_a_value_that_is_not_single_is_no_reply(
    cluster: FakeCluster, autojump_clock: MockClock, value: bytes
) -> None:
    dialler = CannedDialler(cluster, [value, b"$1\r\n1\r\n"], [b"$1\r\n2\r\n"])
    lanes = Lanes(Routes(dialler, cluster.addresses))
    with pytest.raises(LostReplyError, match="expected a single value"):
        await lanes.call(b"")
    assert await lanes.call(b"") == b"2"


async def test_a_list_that_does_not_fit_into_memory_is_no_reply(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader:
        def feed(self, data: bytes) -> None:
            pass

        def gets(self) -> object:
            raise MemoryError

    wire = Wire(Canned(b"*2147483000\r\n" * 5), Address("10.0.0.1", 7000))
    monkeypatch.setattr(wire, "_reader", Reader())
    with pytest.raises(ConnectionAbortedError, match="not a RESP reply"):
        await wire.receive()
