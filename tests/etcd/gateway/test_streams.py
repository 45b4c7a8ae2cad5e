"""Calls whose replies are a stream, through the gateway."""

from collections.abc import AsyncIterator
from typing import Any

import h11
import pytest
import trio
import trio.testing

from quorate.etcd.backend.contact import LOST_S
from quorate.etcd.codes import NO_LEADER, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.services import table
from quorate.etcd.services.call import Call, Outlet
from tests.support.etcd_http import Gateway, open_gateway

Clock = trio.testing.MockClock

WATCH = "/v3/watch"
CREATE = b'{"create_request":{"key":"Zm9v"}}'


async def test_each_reply_is_a_line_in_a_chunk_of_its_own(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        for lease in (5, 7):
            await gateway.world.grant(30, lease)
        reply = await gateway.post("/v3/lease/keepalive", '{"ID":"5"}{"ID":"6"} {"ID":7}')
        assert (reply.status, reply.headers["transfer-encoding"]) == (200, "chunked")
        results = [line["result"] for line in reply.lines]
        assert all(chunk.endswith(b"\n") for chunk in reply.chunks)
        assert [result["ID"] for result in results] == ["5", "6", "7"]
        assert [result.get("TTL") for result in results] == ["30", None, "30"]
        assert all(int(result["header"]["raft_term"]) for result in results)


async def test_a_watch_outlives_the_end_of_its_request(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        await client.begin(WATCH, CREATE)
        created = await client.line()
        assert created["result"]["created"] is True
        await trio.sleep(100)
        await gateway.world.put(b"foo", b"bar")
        await gateway.world.delete(b"foo")
        put, delete = await client.line(), await client.line()
        assert put["result"]["events"][0]["kv"]["value"] == "YmFy"
        assert delete["result"]["events"] == [
            {"type": "DELETE", "kv": {"key": "Zm9v", "mod_revision": "3"}}
        ]
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not gateway.open
        assert not gateway.world.hub.count


async def test_requests_may_come_in_pieces(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        head = [("host", "x"), ("transfer-encoding", "chunked")]
        await client.send(h11.Request(method="POST", target=WATCH, headers=head))
        for at in range(len(CREATE)):
            await client.send(h11.Data(data=CREATE[at : at + 1]))
        assert (await client.line())["result"]["created"] is True
        await client.send(h11.Data(data=b'{"progress_request":{}}'))
        assert (await client.line())["result"]["watch_id"] == "-1"


async def test_the_response_ends_when_all_its_watches_are_cancelled(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        reply = await client.post(
            WATCH, (CREATE * 2).decode() + '{"cancel_request":{"watch_id":0}}'
            '{"cancel_request":{"watch_id":1}}'
        )  # fmt: skip
        kinds = [(line["result"].get("created"), line["result"].get("canceled"))
                 for line in reply.lines]  # fmt: skip
        assert kinds == [(True, None)] * 2 + [(None, True)] * 2
        empty = await client.post(WATCH, {"create_request": {"key": "Zm9v", "range_end": "Zm8="}})
        (line,) = empty.lines
        assert line["result"]["cancel_reason"] == "mvcc: watcher range is empty"
        assert (await client.get("/version")).status == 200


async def test_a_watch_of_what_is_compacted_ends_its_response(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        for _ in range(4):
            await gateway.world.put(b"foo")
        await gateway.world.compact(4)
        reply = await gateway.post(
            WATCH, {"create_request": {"key": "Zm9v", "start_revision": "2"}}
        )
        assert reply.lines[-1]["result"]["canceled"] is True
        assert reply.lines[-1]["result"]["compact_revision"] == "4"


async def test_the_first_request_may_be_wrong_and_later_ones_end_the_requests(
    autojump_clock: Clock,
) -> None:
    async with open_gateway() as gateway:
        text = "invalid character 'g' looking for beginning of value"
        reply = await gateway.post(WATCH, "garbage")
        assert (reply.status, reply.json) == (500, {"error": text, "code": 2, "message": text})
        wrong = await gateway.post("/v3/lease/keepalive", '{"ID":"x"}')
        assert (wrong.status, wrong.json["code"]) == (500, 2)
        assert len((await gateway.post("/v3/lease/keepalive", '{"ID":5} zzz')).chunks) == 1
        nothing = await gateway.post("/v3/lease/keepalive", "")
        assert (nothing.status, nothing.body) == (200, b"")
        large = await gateway.post(WATCH, '{"create_request":{"key":"' + "A" * (300 << 10) + '"}}')
        assert large.status == 400


async def test_without_a_leader_a_watch_ends_with_a_line(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        await client.begin(WATCH, CREATE)
        await client.line()
        gateway.world.member.lose_leader()
        with trio.fail_after(60):
            last = await client.line()
        assert last == {"error": {
            "grpc_code": 14, "http_code": 503, "message": NO_LEADER[1],
            "http_status": "Service Unavailable",
        }}  # fmt: skip
        assert await client.line() is None


async def test_a_connection_goes_on_after_a_stream_that_is_refused_at_once(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_call: Call, _requests: AsyncIterator[Any], _outlet: Outlet) -> None:
        raise EtcdError(*NO_LEADER)

    monkeypatch.setitem(table.STREAMS, "/etcdserverpb.Watch/Watch", refuse)
    async with open_gateway() as gateway:
        client = gateway.connect()
        for _ in range(20):
            assert (await client.post(WATCH, CREATE.decode())).status == 503


async def test_each_watch_without_a_leader_gets_an_answer(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        gateway.world.member.lose_leader()
        await trio.sleep(2 * LOST_S)
        client = gateway.connect()
        for _ in range(20):
            assert (await client.post(WATCH, CREATE.decode())).status == 503


async def test_an_error_before_the_first_reply_is_the_status(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_call: Call, requests: AsyncIterator[Any], _outlet: Outlet) -> None:
        assert [request.name async for request in requests] == [b"el"]
        raise EtcdError(*NO_LEADER)

    monkeypatch.setitem(table.STREAMS, "/v3electionpb.Election/Observe", refuse)
    async with open_gateway() as gateway:
        reply = await gateway.post("/v3/election/observe", {"name": "ZWw="})
        assert (reply.status, reply.lines[0]["error"]["grpc_code"]) == (503, 14)


async def open_watch(gateway: Gateway) -> Any:
    client = gateway.connect()
    await client.begin(WATCH, CREATE)
    await client.line()
    return client


async def test_a_stop_ends_streams_with_a_line_and_idle_connections(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        watcher = await open_watch(gateway)
        gateway.connect()
        await trio.testing.wait_all_tasks_blocked()
        gateway.context.stopping.begin()
        assert (await watcher.line())["error"]["message"] == "etcdserver: server stopped"
        assert await watcher.line() is None
        await trio.testing.wait_all_tasks_blocked()
        assert not gateway.open


async def test_a_stop_does_not_write_into_the_middle_of_a_piece(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flood(_call: Call, _requests: AsyncIterator[Any], outlet: Outlet) -> None:
        while True:
            await outlet.send(rpc.SnapshotResponse(blob=b"x" * 10_000).SerializeToString())

    monkeypatch.setitem(table.STREAMS, "/etcdserverpb.Maintenance/Snapshot", flood)
    async with open_gateway() as gateway:
        client = gateway.connect(bounded=True)
        await client.begin("/v3/maintenance/snapshot", b"{}")
        received = bytes(await client.stream.receive_some(5000))
        await trio.testing.wait_all_tasks_blocked()
        gateway.context.stopping.begin()
        while data := await client.stream.receive_some():
            received += data
        assert b"error" not in received
        assert [type(error) for error in gateway.lost] == [trio.BrokenResourceError]
