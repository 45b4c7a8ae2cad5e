"""The etcd port: which protocol a connection speaks, its bounds, and its end."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from h2.settings import SettingCodes
from trio.testing import memory_stream_pair

from quorate.etcd.backend.backend import Backend
from quorate.etcd.gateway import server as gateway
from quorate.etcd.grpc import server as grpc
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.port import listener
from quorate.etcd.port.listener import GREETING_SECONDS, EtcdPort
from quorate.etcd.services.context import PortContext
from quorate.transport import Purpose
from quorate.transport.tls import load_material
from tests.support.certificates import authority, client_context, uri
from tests.support.etcd_http import Client
from tests.support.etcd_world import EtcdWorld
from tests.support.grpc_client import GrpcClient

Clock = trio.testing.MockClock


@attrs.frozen
class Listening:
    """A port that listens."""

    port: EtcdPort
    backend: Backend
    number: int
    stack: AsyncExitStack

    async def connect(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.number)
        return await self.stack.enter_async_context(stream)


@asynccontextmanager
async def listening(*, most: int = 100, protected: bool = False) -> AsyncGenerator[Listening]:
    async with EtcdWorld.opened() as world, AsyncExitStack() as stack, trio.open_nursery() as tasks:
        context = PortContext(world.backend, world.hub)
        port = EtcdPort(context, "127.0.0.1", 0, most=most, protected=protected)
        _, number = await tasks.start(port.run)
        yield Listening(port, world.backend, number, stack)
        tasks.cancel_scope.cancel()


async def test_the_first_bytes_say_which_protocol_it_is(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[tuple[str, bytes]] = []

    def note(name: str) -> object:
        async def serve(stream: trio.abc.Stream, _context: PortContext) -> None:
            received = b""
            while data := await stream.receive_some(3):
                received += data
            spoken.append((name, received))

        return serve

    monkeypatch.setattr(grpc, "serve", note("grpc"))
    monkeypatch.setattr(gateway, "serve", note("gateway"))
    async with listening() as here, trio.open_nursery() as nursery:
        for data in (b"PRI * HTTP/2.0\r\n\r\n", b"PROPFIND / HTTP/1.1", b"GET /version"):
            client, server = memory_stream_pair()
            nursery.start_soon(here.port.serve, server)
            for at in range(len(data)):
                await client.send_all(data[at : at + 1])
                await trio.testing.wait_all_tasks_blocked()
            await client.send_eof()
            await trio.testing.wait_all_tasks_blocked()
            assert spoken.pop()[1] == data
        silent, server = memory_stream_pair()
        with trio.fail_after(GREETING_SECONDS + 1):
            await here.port.serve(server)  # which gives up
        assert not spoken
        await silent.aclose()


async def test_a_client_of_redis_is_told_where_it_is(autojump_clock: Clock) -> None:
    async with listening() as here, trio.open_nursery() as nursery:
        client, server = memory_stream_pair()
        nursery.start_soon(here.port.serve, server)
        await client.send_all(b"*1\r\n$4\r\nPING\r\n")
        answer = await client.receive_some()
        assert answer == b"-ERR this is the port for clients of etcd: use the client port\r\n"
        assert not await client.receive_some()


async def test_one_connection_more_than_allowed_is_closed() -> None:
    async with listening(most=1) as here:
        first = Client(await here.connect())
        assert (await first.get("/version")).status == 200
        second = await here.connect()
        assert await second.receive_some() == b""
        assert here.port.refusals.counts == {"too_many": 1}
        assert (await first.get("/version")).status == 200


async def test_a_port_that_stops_answers_what_it_was_asked() -> None:
    async with listening() as here:
        idle = await here.connect()
        client = Client(await here.connect())
        await client.begin("/v3/watch", b'{"create_request":{"key":"Zm9v"}}')
        assert (await client.line())["result"]["created"]
        await here.port.drain()
        assert (await client.line())["error"]["message"] == "etcdserver: server stopped"
        assert await idle.receive_some() == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await here.connect()


async def test_a_client_that_reads_late_gets_whole_replies() -> None:
    async with listening() as here:
        client = GrpcClient(await here.connect())
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
        client.h2.increment_flow_control_window(1 << 30)
        put = rpc.PutRequest(key=b"k", value=bytes(1 << 20)).SerializeToString()
        await here.backend.call(Op.PUT, put)
        # What comes after the first bytes is read from the socket itself.
        await client.call("/etcdserverpb.KV/Range")
        wanted = [client.begin("/etcdserverpb.KV/Range") for _ in range(12)]
        for stream_id in wanted:
            client.send(stream_id, rpc.RangeRequest(key=b"k").SerializeToString(), end=True)
        await client.flush()
        await trio.testing.wait_all_tasks_blocked(0.01)  # more than the sockets take
        small = await client.call("/etcdserverpb.KV/Range")
        assert small.over
        for stream_id in wanted:
            (message,) = client.answers[stream_id].messages
            assert rpc.RangeResponse.FromString(message).kvs[0].value == bytes(1 << 20)


async def test_with_tls_both_protocols_are_offered(tmp_path: Path, autojump_clock: Clock) -> None:
    files = authority().write(tmp_path, uri(0))
    made = load_material(files, cluster="test", purposes=(Purpose.MEMBER,), etcd="none")
    assert made.web is None
    async with EtcdWorld.opened() as world, trio.open_nursery() as nursery:
        tls = made.etcd
        assert tls is not None
        port = EtcdPort(PortContext(world.backend, world.hub), "", 0, tls=lambda: tls)

        async def connected(*protocols: str) -> trio.SSLStream[trio.abc.Stream]:
            context = client_context()
            context.set_alpn_protocols(protocols)
            inner, server = memory_stream_pair()
            nursery.start_soon(port.serve, server)
            stream = trio.SSLStream[trio.abc.Stream](inner, context, https_compatible=True)
            await stream.do_handshake()
            assert stream.selected_alpn_protocol() == protocols[-1]
            return stream

        await connected("h2")
        # As curl and browsers do, which want no gRPC.
        assert (await Client(await connected("h2", "http/1.1")).get("/version")).status == 200
        plain, server = memory_stream_pair()
        nursery.start_soon(port.serve, server)
        await plain.send_all(b"GET /version HTTP/1.1\r\n\r\n")
        await trio.sleep(GREETING_SECONDS + 1)
        nursery.cancel_scope.cancel()


async def test_the_member_says_why_a_client_gets_no_tls(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority().write(tmp_path, uri(0))
    tls = load_material(files, cluster="test", purposes=(Purpose.MEMBER,), etcd="required").etcd
    assert tls is not None
    audited: list[str] = []

    def audit(_address: tuple[str, int], reason: str) -> None:
        audited.append(reason)

    async with EtcdWorld.opened() as world:
        context = PortContext(world.backend, world.hub)
        port = EtcdPort(context, "", 0, tls=lambda: tls, audited=audit)

        async def refused(tries: Callable[[trio.abc.Stream], Awaitable[None]]) -> None:
            client, server = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.serve, server, ("10.0.0.9", 55))
                await tries(client)

        async def without_certificate(client: trio.abc.Stream) -> None:
            stream = trio.SSLStream[trio.abc.Stream](client, client_context())
            await stream.do_handshake()

        async def silent(_client: trio.abc.Stream) -> None:
            await trio.sleep(GREETING_SECONDS)

        await refused(without_certificate)
        await refused(lambda client: client.send_all(b"GET /version HTTP/1.1\r\n\r\n"))
        await refused(lambda client: client.aclose())
        await refused(silent)
    assert audited == [
        "TLS: peer did not return a certificate",
        "TLS: http request",
        "TLS: it closed the connection during the handshake",
        "TLS: it sent no whole handshake in time",
    ]
    assert port.refusals.counts == {"tls": 4}
    assert f"no connection with a client of etcd at 10.0.0.9: {audited[0]}" in caplog.text


async def test_without_users_a_protected_port_serves_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(protected=True) as here:
        local = Client(await here.connect())
        assert (await local.get("/version")).status == 200

        def is_local(_host: object, _own: object) -> bool:
            return False

        monkeypatch.setattr(listener, "is_local", is_local)
        elsewhere = await here.connect()
        assert await elsewhere.receive_some() == b""
        assert (
            "no connection with a client of etcd at 127.0.0.1: require_users = true" in caplog.text
        )


def test_a_client_at_our_own_address_is_local() -> None:
    assert listener.is_local("::ffff:127.0.0.1", "::ffff:10.0.0.1")
    assert listener.is_local("10.0.0.1", "10.0.0.1")
    assert not listener.is_local("10.0.0.2", "10.0.0.1")
    assert not listener.is_local("fe80::1%eth0", "fe80::2%eth0")
