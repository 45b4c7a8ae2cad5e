"""What a client of gRPC sees of the server: calls, errors, streams, flow control, the end."""

from collections.abc import AsyncIterator

import pytest
import trio
from google.protobuf.message import Message
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, PingAckReceived
from h2.settings import SettingCodes
from trio.testing import MockClock

from quorate.etcd.backend.caller import LEADER_WAIT_S, Caller
from quorate.etcd.codes import USERS_CHANGED, Code, EtcdError
from quorate.etcd.grpc import connection
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.call import Call, Outlet
from quorate.etcd.services.context import Everybody
from quorate.etcd.services.table import STREAMS
from tests.support.grpc_world import GrpcWorld

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"

READS = rpc.TxnRequest(
    success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=b"k"))]
).SerializeToString()
PUTS = rpc.TxnRequest(
    success=[rpc.RequestOp(request_put=rpc.PutRequest(key=b"k"))]
).SerializeToString()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a method in the place of Watch that sends back each request."""

    async def method(_call: Call, requests: AsyncIterator[Message], outlet: Outlet) -> None:
        async for request in requests:
            await outlet.send(request.SerializeToString())

    monkeypatch.setitem(STREAMS, WATCH, method)


async def test_a_unary_call_gets_headers_one_message_and_trailers(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        answer = await world.client.call(PUT, b"\x0a\x01k")
        assert answer.headers == {b":status": b"200", b"content-type": b"application/grpc"}
        assert answer.messages == [b"\x0a\x01k"]
        assert answer.trailers == {b"grpc-status": b"0"}


async def test_many_calls_in_a_row_are_answered_on_one_connection(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        for number in range(150):
            answer = await world.client.call(PUT, b"\x0a\x02%02d" % (number % 100))
            assert answer.messages == [b"\x0a\x02%02d" % (number % 100)]


async def test_replies_of_one_turn_go_out_in_one_piece(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        for _ in range(20):
            world.client.send(world.client.begin(PUT), b"", end=True)
        await world.client.turn()
        world.sends.clear()
        for request in world.backend.requests:
            request.done(b"reply")
        await world.client.turn()
        assert len(world.sends) == 1
        assert all(answer.messages == [b"reply"] for answer in world.client.answers.values())


async def test_an_error_is_trailers_only_with_an_encoded_text(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = lambda _op, _message: EtcdError(Code.NOT_FOUND, "100 % ü\n")
        answer = await world.client.call(PUT)
        assert answer.headers == answer.trailers
        assert (answer.status, answer.text) == (5, "100 %25 %C3%BC%0A")
        assert answer.messages == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etcdserverpb.KV/RangeStream", "unknown method RangeStream for service etcdserverpb.KV"),
        ("/grpc.health.v1.Health/Check", "unknown service grpc.health.v1.Health"),
        ("KV", 'malformed method name: "KV"'),
    ],
)
async def test_an_unknown_method_is_unimplemented(
    autojump_clock: MockClock, path: str, text: str
) -> None:
    async with GrpcWorld.opened() as world:
        answer = await world.client.call(path)
        assert (answer.status, answer.text) == (12, text)


async def test_what_is_no_grpc_gets_a_status_of_http(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(PUT, content="application/json")
        await world.client.turn()
        assert world.client.answers[stream_id].headers == {b":status": b"415"}


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"\x01\0\0\0\x01k", 12, "grpc: compressed message: this server has no decompressor"),
        (b"\0\0\x30\0\0", 8, "grpc: received message larger than max (3145728 vs. 2097152)"),
        (b"\0\0", 13, "grpc: the call has ended without a whole request"),
        (b"", 13, "grpc: the call has ended without a whole request"),
    ],
)
async def test_a_malformed_message_ends_the_call(
    autojump_clock: MockClock, data: bytes, status: int, text: str
) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(PUT)
        world.client.h2.send_data(stream_id, data, end_stream=True)
        await world.client.turn()
        answer = world.client.answers[stream_id]
        assert answer.status == status
        assert answer.text.startswith(text)
        assert (await world.client.call(PUT)).status == 0


async def test_a_message_that_is_too_long_is_refused_at_its_beginning(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(PUT)
        world.client.h2.send_data(stream_id, b"\0\xff\0\0\0")
        await world.client.turn()
        answer = world.client.answers[stream_id]
        assert answer.status == 8
        assert answer.reset, "the client is asked not to send the rest"


async def test_a_compressed_call_is_refused_by_its_headers(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        answer = await world.client.call(PUT, b"", [("grpc-encoding", "gzip")])
        assert answer.status == 12
        assert answer.text == 'grpc: Decompressor is not installed for grpc-encoding "gzip"'


async def test_a_call_ends_when_its_time_is_over(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        begun = trio.current_time()
        answer = await world.client.call(PUT, b"", [("grpc-timeout", "1500m")])
        assert trio.current_time() - begun == pytest.approx(1.5)
        assert (answer.status, answer.text) == (4, "context deadline exceeded")
        assert world.backend.requests[0].cancelled
        answer = await world.client.call(PUT, b"", [("grpc-timeout", "1S")])
        assert answer.status == 4


async def test_a_malformed_timeout_is_an_error(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        answer = await world.client.call(PUT, b"", [("grpc-timeout", "soon")])
        assert (answer.status, answer.text) == (13, "malformed grpc-timeout: 'soon'")


async def test_a_call_that_is_given_up_is_cancelled(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        stream_id = world.client.begin(PUT)
        world.client.send(stream_id, b"", end=True)
        await world.client.turn()
        world.client.cancel(stream_id)
        await world.client.turn()
        assert world.backend.requests[0].cancelled
        world.backend.reply = lambda _op, message: message
        assert (await world.client.call(PUT)).status == 0


async def test_a_call_that_comes_with_its_end_in_one_piece_does_nothing(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(PUT)
        world.client.send(stream_id, b"", end=True)
        world.client.cancel(stream_id)
        await world.client.turn()
        assert not world.client.closed
        assert (await world.client.call(PUT)).status == 0


async def test_a_call_that_needs_a_leader_fails_at_once_without_one(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.has_leader = False
        answer = await world.client.call(PUT, b"", [("hasleader", "true")])
        assert (answer.status, answer.text) == (14, "etcdserver: no leader")
        assert (await world.client.call(PUT)).status == 0


async def test_a_large_reply_waits_for_the_windows_of_the_client(
    autojump_clock: MockClock,
) -> None:
    async with GrpcWorld.opened() as world:
        large = bytes(300_000)
        world.backend.reply = lambda _op, message: large if message else b""
        world.client.credits = False
        stream_id = world.client.begin(PUT)
        world.client.send(stream_id, b"\x0a\x01k", end=True)
        await world.client.turn()
        answer = world.client.answers[stream_id]
        assert len(answer.reader) == 65_535
        other = world.client.begin(PUT)
        world.client.send(other, b"\x0a\x01k", end=True)
        world.client.h2.increment_flow_control_window(300_000, stream_id)
        world.client.h2.increment_flow_control_window(600_000)
        await world.client.turn()
        assert answer.messages == [large]
        assert answer.status == 0
        assert len(world.client.answers[other].reader) == 65_535, "its own window holds it up"
        world.client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 400_000})
        await world.client.turn()
        assert world.client.answers[other].messages == [large]


async def test_replies_to_reads_that_the_client_does_not_take_are_left_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_WAITING_BYTES", 250_000)
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        world.client.credits = False
        asked = [world.client.begin(path) for path in (RANGE, RANGE, PUT, RANGE)]
        for stream_id in asked:
            world.client.send(stream_id, b"", end=True)
        await world.client.turn()
        for request in world.backend.requests:
            request.done(bytes(200_000))
        await world.client.turn()
        first, second, put, third = (world.client.answers[each] for each in asked)
        for answer in (second, third):
            assert (answer.status, answer.text) == (8, "etcdserver: too many requests")
        world.client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 400_000})
        world.client.h2.increment_flow_control_window(600_000)
        await world.client.turn()
        # What was done must not look as if it were not.
        assert (first.status, put.status, len(put.messages[0])) == (0, 0, 200_000)


@pytest.mark.parametrize(
    ("path", "request_", "most"), [(RANGE, b"", 1), (TXN, READS, 1), (TXN, b"", 1), (TXN, PUTS, 4)]
)
async def test_replies_that_tasks_have_waited_for_are_left_out_as_well(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    request_: bytes,
    most: int,
) -> None:
    class Unknown(Everybody):
        def knows(self, token: str) -> bool:
            del token
            return False

    async def call(_op: Op, _message: bytes, *, caller: Caller) -> bytes:
        del caller
        await trio.lowlevel.checkpoint()
        return bytes(200_000)

    monkeypatch.setattr(connection, "_WAITING_BYTES", 250_000)
    async with GrpcWorld.opened(Unknown()) as world:
        monkeypatch.setattr(world.backend, "call", call)
        world.client.credits = False
        world.client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 400_000})
        await world.client.flush()
        asked = [world.client.begin(path) for _ in range(4)]
        for stream_id in asked:
            world.client.send(stream_id, request_, end=True)
        await world.client.turn()
        world.client.h2.increment_flow_control_window(1_000_000)
        await world.client.turn()
        answers = [world.client.answers[each] for each in asked]
        assert [each.status for each in answers].count(0) == most


async def test_a_call_that_is_begun_anew_has_no_more_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []

    async def call(_op: Op, _message: bytes, *, caller: Caller) -> bytes:
        await trio.lowlevel.checkpoint()
        deadlines.append(caller.deadline)
        return b""

    async with GrpcWorld.opened() as world:
        monkeypatch.setattr(world.backend, "call", call)
        world.backend.reply = None
        stream_id = world.client.begin(PUT)
        await world.client.flush()
        await trio.sleep(3)  # its time begins when it is whole
        began = trio.current_time()
        world.client.send(stream_id, b"m", end=True)
        await world.client.turn()
        await trio.sleep(1)
        world.backend.requests[0].done(EtcdError(*USERS_CHANGED))
        await world.client.turn()
        assert deadlines == [began + LEADER_WAIT_S]


async def test_what_comes_for_a_call_that_is_over_does_no_harm(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        await world.client.call(PUT)
        window_update = b"\0\0\x04\x08\0\0\0\0\x01\0\0\x10\0"
        reset = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"
        await world.client.stream.send_all(window_update + reset)
        assert (await world.client.call(PUT)).status == 0


async def test_a_smaller_table_of_headers_is_respected(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        await world.client.call(PUT)
        world.client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
        await world.client.turn()
        for _ in range(2):
            assert (await world.client.call(PUT)).headers[b":status"] == b"200"


async def test_a_stream_answers_each_request_and_ends_with_them(
    autojump_clock: MockClock, echo: None
) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(WATCH)
        answer = world.client.answers[stream_id]
        one = rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=1))
        for number in range(1, 4):
            world.client.send(stream_id, one.SerializeToString())
            await world.client.turn()
            assert answer.messages == [one.SerializeToString()] * number
        assert not answer.over
        world.client.h2.end_stream(stream_id)
        await world.client.turn()
        assert answer.status == 0


async def test_a_stream_takes_no_more_requests_than_its_replies_are_read(
    autojump_clock: MockClock, echo: None
) -> None:
    async with GrpcWorld.opened() as world:
        world.client.credits = False
        stream_id = world.client.begin(WATCH)
        create = rpc.WatchCreateRequest(key=bytes(15_000))
        one = rpc.WatchRequest(create_request=create).SerializeToString()
        sent = 0
        for _ in range(100):
            if world.client.h2.local_flow_control_window(stream_id) < len(one) + 5:
                break
            world.client.send(stream_id, one)
            sent += 1
            await world.client.turn()
        assert sent < 15, "two windows, one of each direction"
        assert len(world.client.answers[stream_id].messages) == 4
        world.client.h2.increment_flow_control_window(1_000_000, stream_id)
        world.client.h2.increment_flow_control_window(1_000_000)
        await world.client.turn()
        assert len(world.client.answers[stream_id].messages) == sent


async def test_a_malformed_request_ends_a_stream(autojump_clock: MockClock, echo: None) -> None:
    async with GrpcWorld.opened() as world:
        stream_id = world.client.begin(WATCH)
        world.client.send(stream_id, b"\xff")
        await world.client.turn()
        assert world.client.answers[stream_id].status == 13


async def test_pings_are_answered(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.client.h2.ping(b"12345678")
        await world.client.turn()
        assert [event for event in world.client.events if isinstance(event, PingAckReceived)]


async def test_a_port_that_stops_ends_streams_and_answers_what_it_was_asked(
    autojump_clock: MockClock, echo: None
) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        watch, put = world.client.begin(WATCH), world.client.begin(PUT)
        world.client.send(put, b"", end=True)
        await world.client.turn()
        world.stopping.begin()
        await world.client.turn()
        answer = world.client.answers[watch]
        assert (answer.status, answer.text) == (14, "etcdserver: server stopped")
        assert not world.client.answers[put].over
        world.backend.requests[0].done(b"late")
        await world.client.turn()
        assert world.client.answers[put].messages == [b"late"]
        assert isinstance(world.client.events[-1], ConnectionTerminated)
        assert world.client.closed


@pytest.mark.parametrize("stopped", [False, True])
async def test_requests_are_withdrawn_when_the_connection_ends(
    autojump_clock: MockClock, *, stopped: bool
) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        world.client.send(world.client.begin(PUT), b"m", end=True)
        await world.client.turn()
        (request,) = world.backend.requests
        done = request.done
        if stopped:
            world.stop()
        else:
            await world.client.stream.aclose()
        await trio.sleep(5)
        assert request.cancelled
        # The users have changed: nothing is begun anew, and the caller, who is the member, goes on.
        done(EtcdError(*USERS_CHANGED))


async def test_a_server_that_is_cancelled_ends_calls_and_says_so(
    autojump_clock: MockClock, echo: None
) -> None:
    async with GrpcWorld.opened() as world:
        world.backend.reply = None
        calls = [world.client.begin(WATCH), world.client.begin(PUT)]
        world.client.send(calls[1], b"", end=True)
        await world.client.turn()
        world.stop()
        await world.client.turn()
        for stream_id in calls:
            answer = world.client.answers[stream_id]
            assert (answer.status, answer.text) == (14, "etcdserver: server stopped")
        assert isinstance(world.client.events[-1], ConnectionTerminated)
        assert world.client.closed


async def test_a_broken_protocol_ends_the_connection_with_a_reason(
    autojump_clock: MockClock, echo: None
) -> None:
    async with GrpcWorld.opened() as world:
        world.client.begin(WATCH)
        await world.client.turn()
        await world.client.stream.send_all(b"\0\0\x01\x00\x01\0\0\0\0x")  # HEADERS of no stream
        await world.client.turn()
        ends = [each for each in world.client.events if isinstance(each, ConnectionTerminated)]
        assert ends[0].error_code is ErrorCodes.PROTOCOL_ERROR
        assert world.client.closed


async def test_headers_that_are_too_long_end_the_connection(autojump_clock: MockClock) -> None:
    async with GrpcWorld.opened() as world:
        world.client.begin(PUT, [("token", "x" * 16_000), ("other", "x" * 16_000)])
        await world.client.turn()
        assert world.client.closed


async def test_the_principal_of_a_call_is_recorded_with_it(autojump_clock: MockClock) -> None:
    class OneUser(Everybody):
        enabled = True

        def identify(self, token: str) -> tuple[str | None, int]:
            return ("anna", 7) if token == "t" else (None, 0)

        def check(self, user: str | None, path: str, message: bytes | None) -> tuple[()]:
            if user is None:
                raise EtcdError(Code.INVALID_ARGUMENT, "etcdserver: user name is empty")
            return ()

    async with GrpcWorld.opened(OneUser()) as world:
        answer = await world.client.call(PUT)
        assert answer.text == "etcdserver: user name is empty"
        world.backend.reply = None
        stream_id = world.client.begin(PUT, [("token", "t")])
        world.client.send(stream_id, b"m", end=True)
        await world.client.turn()
        (request,) = world.backend.requests
        assert (request.op, request.message, request.principal) == (Op.PUT, b"m", 7)
        # The users have changed before it was sent: it is begun anew.
        request.done(EtcdError(*USERS_CHANGED))
        await world.client.turn()
        answer = world.client.answers[stream_id]
        assert answer.messages == [b"m of 7"]
