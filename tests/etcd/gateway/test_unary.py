"""Calls with one reply through the gateway, and its pages."""

from typing import Any

import attrs
import h11
import pytest
import trio
import trio.testing

from quorate.etcd.backend import pages
from quorate.etcd.backend.caller import LEADER_WAIT_S, UsersChangedError
from quorate.etcd.codes import AUTH_FAILED, INVALID_TOKEN, USER_EMPTY, EtcdError
from quorate.etcd.gateway import server, talk, unary
from quorate.etcd.services import table
from quorate.etcd.services.call import Call
from quorate.etcd.services.context import Everybody
from quorate.node.requests.request import COMMAND, Request
from tests.support.etcd_http import Gateway, open_gateway

Clock = trio.testing.MockClock

FOO = {"key": "Zm9v", "value": "YmFy"}
HASH = "unknown method Hash for service etcdserverpb.Maintenance"
LOCK = "/v3lockpb.Lock/Lock"


async def test_a_put_and_a_range_on_one_connection(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        put = await client.post("/v3/kv/put", FOO)
        assert (put.status, put.json["header"]["revision"]) == (200, "2")
        assert put.headers == {
            "content-type": "application/json",
            "grpc-metadata-content-type": "application/grpc",
            "content-length": str(len(put.body)),
        }
        found = await client.post("/v3beta/kv/range", FOO, ("content-type", "text/plain"))
        assert found.json["kvs"] == [
            FOO | {"create_revision": "2", "mod_revision": "2", "version": "1"}
        ]
        assert found.json["count"] == "1"
        assert set(found.json["header"]) == {"cluster_id", "member_id", "revision", "raft_term"}


async def test_a_range_of_many_keys_is_read_in_pages(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_KEYS", 2)
    async with open_gateway() as gateway:
        for number in range(5):
            await gateway.world.put(b"%d" % number)
        found = await gateway.post("/v3/kv/range", {"key": "AA==", "range_end": "AA=="})
        assert (found.json["count"], len(found.json["kvs"])) == ("5", 5)
        assert len(gateway.world.member.queries) == 3


@pytest.mark.parametrize(
    "call",
    [
        ("kv/put", {"value": "YmFy"}, 400, 3, "etcdserver: key is not provided"),
        ("kv/put", {"key": "!!"}, 400, 3, "illegal base64 data at input byte 0"),
        ("kv/put", FOO | {"lease": "777"}, 404, 5, "etcdserver: requested lease not found"),
        (
            "kv/range",
            {"key": "Zm9v", "revision": 99},
            400,
            11,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        ("maintenance/hash", {}, 501, 12, HASH),
    ],
)  # fmt: skip
async def test_errors_have_the_form_of_etcd_3_5(
    call: tuple[str, object, int, int, str],
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, body, status, code, text = call
    monkeypatch.delitem(table.UNARY, "/etcdserverpb.Maintenance/Hash", raising=False)
    async with open_gateway() as gateway:
        reply = await gateway.post(f"/v3/{path}", body)
        assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
        assert reply.json == {"error": text, "code": code, "message": text}


async def test_without_a_leader_a_call_ends_after_two_seconds(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        gateway.world.member.lose_leader()
        reply = await gateway.post("/v3/kv/put", FOO)
        assert (reply.status, reply.json["code"]) == (503, 14)
        assert reply.json["error"] == "etcdserver: no leader"
        health = await gateway.connect().get("/health")
        assert (health.status, health.json) == (
            503, {"health": "false", "reason": "RAFT NO LEADER"}
        )  # fmt: skip
        assert (await gateway.connect().get("/health?serializable=true")).status == 200
        assert (await gateway.connect().get("/livez")).status == 200
        ready = await gateway.connect().get("/readyz")
        assert ready.status == 503
        assert ready.body == (
            b"[+]data_corruption ok\n[+]serializable_read ok\n"
            b"[-]linearizable_read failed: etcdserver: no leader\n"
        )


@pytest.mark.parametrize(
    ("change", "alarm", "ready"),
    [({"disk_full": True}, "NOSPACE", 200), ({"damage": "a segment"}, "CORRUPT", 503)],
)
async def test_a_member_with_an_alarm_is_not_healthy(
    change: dict[str, Any], alarm: str, ready: int, autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async with open_gateway() as gateway:
        member = gateway.world.member
        status = attrs.evolve(member.status(), **change)
        monkeypatch.setattr(member, "status", lambda: status)
        health = await gateway.connect().get("/health")
        assert (health.status, health.json["reason"]) == (503, f"ALARM {alarm}")
        assert (await gateway.connect().get(f"/health?exclude={alarm}")).status == 200
        assert (await gateway.connect().get("/livez")).status == 200
        assert (await gateway.connect().get("/readyz")).status == ready


async def test_pages_are_asked_for_with_get(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        version = (await client.get("/version")).json
        assert all(part.isdigit() for text in version.values() for part in text.split("."))
        assert (await client.get("/health")).json == {"health": "true", "reason": ""}
        assert (await client.get("/livez")).body == b"ok\n"
        assert b"[+]linearizable_read ok\n" in (await client.get("/readyz?verbose")).body
        assert (await client.get("/metrics")).body == b"up 1\n"
        refused = await client.post("/version", {})
        assert (refused.status, refused.headers["allow"]) == (405, "GET")
        assert (await client.get("/version", method="HEAD")).status == 405
        wrong = await client.get("/v3/kv/range")
        assert (wrong.status, wrong.body) == (405, b"Method Not Allowed\n")
        assert (await client.post("/v3/kv/nothing", {})).body == b"Not Found\n"
        assert (await client.post("/v2/keys", {})).body == b"404 page not found\n"


async def test_a_page_of_a_browser_is_refused(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        reply = await gateway.post("/v3/kv/put", FOO, ("origin", "http://elsewhere.example"))
        assert reply.status == 403
        assert await gateway.world.get(b"foo") is None


async def test_large_requests_are_refused_as_by_etcd(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unary, "MESSAGE_BYTES", 20_000)
    for module in (server, talk):
        monkeypatch.setattr(module, "BODY_BYTES", 40_000)
    async with open_gateway() as gateway:
        reply = await gateway.post("/v3/kv/put", {"key": "Zm9v", "value": "AAAA" * 7000})
        text = "grpc: received message larger than max (21009 vs. 20000)"
        assert (reply.status, reply.json["code"], reply.json["error"]) == (429, 8, text)
        client = gateway.connect()
        head = [("host", "x"), ("content-length", str(talk.BODY_BYTES + 1))]
        await client.send(h11.Request(method="POST", target="/v3/kv/put", headers=head))
        assert (await client.rest()).status == 429
        endless = gateway.connect()
        head = [("host", "x"), ("transfer-encoding", "chunked")]
        await endless.send(h11.Request(method="POST", target="/v3/kv/put", headers=head))
        await endless.send(*[h11.Data(data=b" " * 10_000)] * 5)
        assert (await endless.rest()).status == 429


@pytest.mark.parametrize("depth", [17, 60, 200])
async def test_transactions_in_each_other_are_too_many_as_in_etcd(
    autojump_clock: Clock, depth: int
) -> None:
    request: dict[str, Any] = {"requestPut": FOO}
    for _ in range(depth - 1):
        request = {"requestTxn": {"success": [request]}}
    async with open_gateway() as gateway:
        reply = await gateway.post("/v3/kv/txn", {"success": [request]})
        text = "etcdserver: too many operations in txn request"
        assert (reply.status, reply.json["code"], reply.json["error"]) == (400, 3, text)


async def test_what_is_no_request_ends_its_connection(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        for data in (b"\x16\x03\x01\r\n\r\n", b"GET /" + b"x" * talk.HEAD_BYTES * 2):
            client = gateway.connect()
            await client.stream.send_all(data)
            assert (await client.rest()).status in {400, 431}
        after_head = gateway.connect()
        assert (await after_head.get("/nothing", method="HEAD")).status == 404
        await after_head.stream.send_all(b"nonsense\r\n\r\n")
        assert b"Bad Request" in bytes(await after_head.stream.receive_some())
        await trio.testing.wait_all_tasks_blocked()
        assert not gateway.open


async def test_a_client_that_is_silent_or_slow_loses_its_connection(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        gateway.connect()
        slow = gateway.connect()
        head = [("host", "x"), ("content-length", "5")]
        await slow.send(h11.Request(method="POST", target="/v3/kv/put", headers=head))
        await trio.sleep(talk.BODY_SECONDS + 1)
        assert gateway.open == 1
        assert [type(error) for error in gateway.lost] == [trio.TooSlowError]
        await trio.sleep(server.IDLE_SECONDS)
        assert not gateway.open


async def test_a_client_that_asks_first_may_send_its_body(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        head = [("host", "x"), ("content-length", "2"), ("expect", "100-continue")]
        await client.send(h11.Request(method="POST", target="/v3/lease/leases", headers=head))
        assert (await client.next()).status_code == 100
        await client.send(h11.Data(data=b"{}"), h11.EndOfMessage())
        assert (await client.rest()).status == 200


async def test_requests_may_follow_each_other_at_once(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        client = gateway.connect()
        request = b"POST /v3/kv/put HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n"
        await client.stream.send_all((request + b'{"key":"Zm9v"}') * 3)
        received = b""
        while received.count(b"HTTP/1.1 200") < 3:
            received += await client.stream.receive_some()
        assert b'"revision":"4"' in received


async def test_many_requests_of_one_client_leave_others_their_turns() -> None:
    requests = 100
    near, far = map(trio.SocketStream, trio.socket.socketpair())
    turns = 0
    async with open_gateway() as gateway, trio.open_nursery() as nursery:
        await near.send_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" * requests)
        await near.send_eof()

        async def serve() -> None:
            await server.serve(far, gateway.context)
            nursery.cancel_scope.cancel()

        nursery.start_soon(serve)
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1
    assert turns >= requests - 1
    replies = await near.receive_some()
    assert replies.startswith(b"HTTP/1.1 200 ")
    await near.aclose()
    await far.aclose()


def forever(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, ended: trio.Event) -> None:
    async def wait(call: Call, request: Any) -> bytes:
        assert call.backend is gateway.world.backend
        assert request.name == b"lock"
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setitem(table.UNARY, LOCK, wait)


async def test_a_call_that_waits_ends_with_its_client(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway() as gateway:
        ended = trio.Event()
        forever(gateway, monkeypatch, ended)
        client = gateway.connect()
        await client.begin("/v3/lock/lock", b'{"name":"bG9jaw=="}')
        await trio.sleep(100)
        assert not ended.is_set()
        await client.stream.aclose()
        await ended.wait()


async def test_a_request_that_waits_ends_with_its_client(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway:
        parked = gateway.world.member.parked = []
        client = gateway.connect()
        await client.begin("/v3/kv/put", b'{"key":"Zm9v","value":"YmFy"}')
        await trio.sleep(0.1)
        await client.stream.aclose()
        await trio.sleep(0.1)
        assert [each.cancelled for each in parked if each.kind is COMMAND] == [True]
        gateway.world.member.release()
        assert await gateway.world.get(b"foo") is None


async def test_a_client_that_is_lost_while_it_waits_is_no_mistake_of_the_member(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_gateway() as gateway:
        parked = gateway.world.member.parked = []
        client, stream = trio.testing.memory_stream_pair()
        received = 0

        async def receive() -> None:
            nonlocal received
            received += 1
            if received > 1:
                await trio.sleep(1)
                raise trio.BrokenResourceError("connection reset by peer")

        stream.receive_stream.receive_some_hook = receive
        await client.send_all(
            b'POST /v3/kv/put HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{"key":"Zm9v"}'
        )
        with pytest.raises(trio.BrokenResourceError):
            await server.serve(stream, gateway.context)
        assert [each.cancelled for each in parked if each.kind is COMMAND] == [True]
        assert not caplog.records


async def test_an_error_of_a_method_is_the_answer(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_call: Call, _request: Any) -> bytes:
        raise EtcdError(*AUTH_FAILED)

    async def fail(_call: Call, _request: Any) -> bytes:
        raise RuntimeError("a mistake")

    monkeypatch.setitem(table.UNARY, LOCK, refuse)
    async with open_gateway() as gateway:
        assert (await gateway.post("/v3/lock/lock", {})).json["code"] == 3
        monkeypatch.setitem(table.UNARY, LOCK, fail)
        assert (await gateway.post("/v3/lock/lock", {})).status == 500
        assert (await gateway.post("/v3/kv/put", FOO)).status == 200


class OneUser(Everybody):
    """A single user, whose token is ``secret``."""

    enabled = True

    def identify(self, token: str) -> tuple[str | None, int]:
        if token not in {"", "secret"}:
            raise EtcdError(*INVALID_TOKEN)
        return ("app", 7) if token else (None, 0)

    def check(self, user: str | None, path: str, message: bytes | None) -> tuple[()]:
        if user is None and not path.endswith("Authenticate"):
            raise EtcdError(*USER_EMPTY)
        return ()


async def test_the_token_is_the_whole_authorization_header(autojump_clock: Clock) -> None:
    async with open_gateway(OneUser()) as gateway:
        assert (await gateway.post("/v3/kv/put", FOO)).json["code"] == 3
        wrong = await gateway.post("/v3/kv/put", FOO, ("authorization", "other"))
        assert (wrong.status, wrong.json["error"]) == (401, "etcdserver: invalid auth token")
        good = await gateway.post("/v3/kv/put", FOO, ("authorization", "secret"))
        assert good.status == 200
        assert gateway.world.member.principals == [7]
        assert (await gateway.connect().get("/metrics")).status == 400


async def test_a_call_that_is_begun_anew_has_no_more_time(autojump_clock: Clock) -> None:
    async with open_gateway() as gateway, trio.open_nursery() as nursery:
        parked = gateway.world.member.parked = list[Request]()
        began = trio.current_time()
        nursery.start_soon(gateway.post, "/v3/kv/range", FOO)
        await trio.sleep(1)
        first = parked[-1]
        first.done(UsersChangedError("they have changed"))
        await trio.testing.wait_all_tasks_blocked()
        assert parked[-1] is not first
        assert parked[-1].deadline - began == pytest.approx(LEADER_WAIT_S, abs=0.1)
        gateway.world.member.release()


async def test_a_stream_is_refused_in_chunks(autojump_clock: Clock) -> None:
    async with open_gateway(OneUser()) as gateway:
        create = {"create_request": {"key": "Zm9v"}}
        reply = await gateway.post("/v3/watch", create, ("authorization", "other"))
        assert (reply.status, reply.headers["transfer-encoding"]) == (401, "chunked")
        assert reply.lines[0]["error"]["grpc_code"] == 16
