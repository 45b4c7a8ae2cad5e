"""The client of the JSON gateway: replies that are streams."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import TransportError, UsageError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.local.etcd_client import EtcdRefusedError, GatewayClient, TlsFiles
from tests.support.etcd_http import Gateway, open_gateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


def connected(gateway: Gateway) -> GatewayClient:
    client = GatewayClient("http://here:1")
    vars(client)["_stream"] = gateway.connect().stream
    return client


def watch(start: int) -> rpc.WatchRequest:
    create = rpc.WatchCreateRequest(key=b"a", range_end=b"\0", start_revision=start)
    return rpc.WatchRequest(create_request=create)


async def test_a_watch_is_followed_until_it_has_what_it_wants(autojump_clock: MockClock) -> None:
    taken: list[rpc.WatchResponse] = []

    def take(reply: rpc.WatchResponse) -> bool:
        taken.append(reply)
        return bool(reply.created or reply.events)

    progress = rpc.WatchRequest(progress_request=rpc.WatchProgressRequest())
    async with open_gateway() as gateway:
        await gateway.world.put(b"a", b"1")
        client = connected(gateway)
        await client.follow("/v3/watch", [watch(2), progress], rpc.WatchResponse, take)
        created, shown, told = taken
        assert created.created
        assert [event.kv.value for event in shown.events] == [b"1"]
        assert told.header.revision == 2


async def test_a_renewal_is_one_reply_of_a_stream(autojump_clock: MockClock) -> None:
    async with open_gateway() as gateway:
        lease, client = await gateway.world.grant(60), connected(gateway)
        for asked, ttl in ((lease, 60), (lease + 1, 0)):
            request = rpc.LeaseKeepAliveRequest(ID=asked)
            reply = await client("/v3/lease/keepalive", request, rpc.LeaseKeepAliveResponse)
            assert (asked, ttl) == (reply.ID, reply.TTL)


def test_options_that_do_nothing_are_refused() -> None:
    file = Path("one.pem")
    with pytest.raises(UsageError, match=r"--key-file one\.pem: expected --cert-file, too"):
        GatewayClient("https://here:1", TlsFiles(key_file=file))
    for option, files in {
        "--ca-file": TlsFiles(ca_file=file),
        "--cert-file": TlsFiles(cert_file=file),
        "--key-file": TlsFiles(key_file=file),
    }.items():
        with pytest.raises(UsageError, match=f"{option} one.pem: expected https in --endpoint"):
            GatewayClient("http://here:1", files)


class Answering:
    """A stream that receives given bytes, and then the end."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    async def send_all(self, _data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, _most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.answers.pop(0) if self.answers else b""


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LOST = b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def taking(taken: list[rpc.WatchResponse]) -> Callable[[rpc.WatchResponse], bool]:
    """Return what takes all replies."""

    def take(reply: rpc.WatchResponse) -> bool:
        taken.append(reply)
        return True

    return take


async def followed(*answers: bytes) -> list[rpc.WatchResponse]:
    client, taken = GatewayClient("http://here:1"), list[rpc.WatchResponse]()
    vars(client)["_stream"] = Answering(*answers)
    with suppress(EtcdRefusedError):
        await client.follow("/v3/watch", [watch(2)], rpc.WatchResponse, taking(taken))
    return taken


async def test_lines_that_arrive_in_pieces_are_put_together() -> None:
    line = b'{"result":{"watch_id":"7"}}\n'
    pieces = chunk(line + line[:9]), chunk(line[9:]), chunk(LOST)
    assert [reply.watch_id for reply in await followed(HEAD, *pieces)] == [7, 7]


async def test_an_error_in_a_stream_has_its_code() -> None:
    client = GatewayClient("http://here:1")
    vars(client)["_stream"] = Answering(HEAD, chunk(LOST))
    with pytest.raises(EtcdRefusedError, match="etcdserver: no leader") as caught:
        await client.follow("/v3/watch", [watch(2)], rpc.WatchResponse, taking([]))
    assert caught.value.code == 14


@pytest.mark.parametrize(
    "line", [b"[]\n", b'{"result":7}\n', b'{"result":{"events":7}}\n', b"\xff\n"]
)
async def test_what_is_no_reply_is_an_error(line: bytes) -> None:
    with pytest.raises(TransportError, match="/v3/watch"):
        await followed(HEAD, chunk(line))
    with pytest.raises(TransportError, match="http://here:1: expected"):
        await followed(HEAD)
