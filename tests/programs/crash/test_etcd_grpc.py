"""The torture's client of gRPC, against the port's own side; no process runs here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import TransportError
from quorate.etcd.codes import Code
from quorate.etcd.grpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from quorate.etcd.grpc.framing import framed
from quorate.etcd.grpc.server import serve
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.local.etcd_client import EtcdRefusedError
from quorate.torture.etcd.grpc_client import AGAIN_S, GrpcClient
from quorate.torture.etcd.records import END, PREFIX, Records, Watched
from quorate.torture.etcd.watching import follow
from tests.support.etcd_http import Gateway, open_gateway

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from trio.testing import MockClock

KEY = PREFIX + b"a"


@asynccontextmanager
async def opened(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[Gateway, GrpcClient]]:
    near, far = trio.testing.memory_stream_pair()

    async def open_stream(*_: object) -> trio.abc.Stream:
        return near

    monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
    async with open_gateway() as gateway:
        gateway.nursery.start_soon(serve, far, gateway.context)
        async with GrpcClient("http://here:1") as client:
            yield gateway, client


async def test_calls_over_one_connection_are_answered(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with opened(monkeypatch) as (gateway, client):
        for value in (b"1", b"2"):
            put = rpc.PutRequest(key=KEY, value=value)
            await client("/v3/kv/put", put, rpc.PutResponse)
        found = await client("/v3/kv/range", rpc.RangeRequest(key=KEY), rpc.RangeResponse)
        assert (found.kvs[0].value, found.header.revision) == (b"2", 3)
        renewal = rpc.LeaseKeepAliveRequest(ID=await gateway.world.grant(60))
        reply = await client("/v3/lease/keepalive", renewal, rpc.LeaseKeepAliveResponse)
        assert reply.TTL == 60


async def test_a_refusal_has_its_code(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with opened(monkeypatch) as (_, client):
        request = rpc.LeaseRevokeRequest(ID=7)
        with pytest.raises(EtcdRefusedError, match="requested lease not found") as caught:
            await client("/v3/lease/revoke", request, rpc.LeaseRevokeResponse)
        assert caught.value.code == Code.NOT_FOUND


async def test_a_watch_shows_events_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    watched, records = Watched("watch", 2), Records()
    async with opened(monkeypatch) as (gateway, client):
        await gateway.world.put(KEY, b"1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, client, watched, records)
            for value in (b"2", b"3"):
                await trio.sleep(AGAIN_S)
                await gateway.world.put(KEY, value)
            await trio.sleep(AGAIN_S)
            nursery.cancel_scope.cancel()
    assert watched.next == 5
    told = [(each.revision, each.shown) for each in watched.progress]
    assert told[0] == (2, 2)
    assert told[-1] in {(3, 3), (4, 4)}
    assert (records.known, records.trouble) == (4, [])


async def test_a_watch_of_what_is_compacted_returns_from_where_it_can_go_on(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with opened(monkeypatch) as (_, client):
        for value in (b"1", b"2", b"3"):
            put = rpc.PutRequest(key=KEY, value=value)
            await client("/v3/kv/put", put, rpc.PutResponse)
        compaction = rpc.CompactionRequest(revision=3)
        await client("/v3/kv/compaction", compaction, rpc.CompactionResponse)
        assert await follow(client, Watched("watch", 2), records := Records()) == 3
        assert records.trouble == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="HTTP 1"),
        pytest.param(frame(HEADERS, END_HEADERS, 1, b"\xff" * 4), id="malformed headers"),
        pytest.param(frame(DATA, END_STREAM, 1, framed(b"\xff")), id="malformed message"),
    ],
)
async def test_what_is_no_grpc_is_an_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = trio.testing.memory_stream_pair()

    async def open_stream(*_: object) -> trio.abc.Stream:
        return near

    monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
    await far.send_all(answer)
    await far.send_eof()
    async with GrpcClient("http://here:1") as client:
        request = rpc.RangeRequest(key=PREFIX, range_end=END)
        with pytest.raises(TransportError, match="http://here:1: "):
            await client("/v3/kv/range", request, rpc.RangeResponse)
