"""HTTP of the web port: its bounds, and whatever strangers send."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.transport import Connection
from quorate.transport.streams import send_all
from quorate.web.answers import Answer, Asked, Stream, as_json, text
from quorate.web.places import Places
from quorate.web.server import HEAD_BYTES, MOST_CONNECTIONS, MOST_STREAMS, PATIENCE_SECONDS
from tests.support.web_world import Browser, Reply, open_web, parsed

Clock = trio.testing.MockClock

POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSE = b"\r\nconnection: close\r\n\r\n"


async def echo(asked: Asked) -> Answer | Stream:
    """Answer with what was asked; endlessly for one path, wrongly for another."""
    await trio.lowlevel.checkpoint()
    if asked.path == "/endless":
        return Stream("text/plain", endless)
    if asked.path == "/wrong":
        raise RuntimeError("a mistake")
    if asked.path == "/torn":
        return Stream("text/plain", torn)
    if asked.path == "/header":
        return Answer(200, headers=(("no header", "\n"),))
    if asked.path == "/refused":
        raise ValueError("no such thing")
    return as_json(200, {"path": asked.path, "query": asked.query})


async def endless(send: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        await send(b"x" * 10_000)
        await trio.sleep(0.1)


async def torn(send: Callable[[bytes], Awaitable[None]]) -> None:
    await send(b"begun")
    raise RecursionError("a mistake")


async def test_a_mistake_in_an_answer_ends_its_connection_alone(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_web(echo) as browser:
        assert (await browser.ask("/torn")).status == 200
        assert await browser.raw(GET.replace(b"/x", b"/header")) == b""
        assert (await browser.ask("/x")).status == 200
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [
        "no answer to b'/torn'",
        "no answer to b'/header'",
    ]


async def test_requests_are_answered(autojump_clock: Clock) -> None:
    async with open_web(echo) as browser:
        reply = await browser.ask("/a%20b?c=d&e=")
        assert (reply.status, reply.body) == (
            200,
            b'{"path":"/a b","query":{"c":"d","e":""}}\n',
        )
        assert reply.headers["content-security-policy"].startswith("default-src 'self'")
        assert reply.headers["content-type"] == "application/json"
        head = await browser.ask("/a", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == "25"
        head = await browser.ask("/endless", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "NONSENSE"):
            reply = await browser.ask("/a", method=method)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await browser.ask("/refused")).body == b"no such thing\n"
        assert (await browser.ask("/wrong")).status == 500


async def test_a_connection_is_kept(autojump_clock: Clock) -> None:
    async with open_web(echo) as browser:
        connection = await browser.connect()
        began = trio.current_time()
        for _ in range(3):
            await send_all(connection, GET)
            assert parsed(await connection.receive(10_000)).status == 200
        await send_all(connection, GET * 3)  # at once
        received = b""
        while received.count(b"HTTP/1.1 200") < 3:
            received += await connection.receive(10_000)
        assert await connection.receive(10_000) == b""  # nothing more came: it is closed
        assert PATIENCE_SECONDS <= trio.current_time() - began < PATIENCE_SECONDS + 1
        # Version 1.0 closes at once.
        assert parsed(await browser.raw(b"GET /x HTTP/1.0\r\n\r\n", within=1)).status == 200


async def test_what_is_no_request_is_refused(autojump_clock: Clock) -> None:
    async with open_web(echo) as browser:
        for data, status in (
            (b"nonsense\r\n\r\n", 400),
            (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", 400),  # a Redis client
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS at a port without
            (b"GET /x HTTP/1.1\r\n\r\n", 400),  # no host
            (b"GET /x HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
            (b"GET /" + b"x" * HEAD_BYTES, 431),
            (b"GET / HTTP/1.1\r\nhost: x\r\ncookie: " + b"x" * HEAD_BYTES, 431),
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n" + b"x" * 20_000, 413),
            (
                b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
                405,
            ),
            (b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"", None),
            (b"GET / HTTP/1.1\r\nhost: x\r\n", None),  # never ends
        ):
            began = trio.current_time()
            answer = await browser.raw(data)
            assert (parsed(answer).status if answer else None) == status, data[:60]
            assert trio.current_time() - began < PATIENCE_SECONDS + 1


async def test_a_new_connection_ends_the_one_that_waits_longest(autojump_clock: Clock) -> None:
    async with open_web(echo) as browser:
        silent = list[Connection]()
        for _ in range(MOST_CONNECTIONS):
            silent.append(await browser.connect())
            await trio.sleep(0.1)
        assert (await browser.ask("/x")).status == 200
        with trio.fail_after(0.1):
            assert await silent[0].receive(1) == b""
        began = trio.current_time()
        assert await silent[1].receive(1) == b""  # it has had its time
        assert trio.current_time() - began > 1
        await trio.sleep(PATIENCE_SECONDS)
        assert [await each.receive(1) for each in silent] == [b""] * MOST_CONNECTIONS


async def hold(browser: Browser, pause: float) -> None:
    """Keep a connection by asking, as a stranger does that wants to keep a probe out."""
    while True:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            connection = await browser.connect()
            while True:
                await send_all(connection, GET)
                if not await connection.receive(10_000):
                    break
                await trio.sleep(pause)
        await trio.sleep(0.5)


@pytest.mark.parametrize("pause", [1.0, 4.5])
@pytest.mark.parametrize("strangers", [MOST_CONNECTIONS, 2 * MOST_CONNECTIONS])
async def test_strangers_do_not_keep_probes_out(
    autojump_clock: Clock, pause: float, strangers: int
) -> None:
    async with open_web(echo) as browser, trio.open_nursery() as nursery:
        for _ in range(strangers):
            nursery.start_soon(hold, browser, pause)
        for _ in range(30):
            await trio.sleep(0.7)
            assert (
                parsed(await browser.raw(GET.replace(b"\r\n\r\n", CLOSE), within=2)).status == 200
            )
        nursery.cancel_scope.cancel()


async def test_who_has_the_token_gives_way_last(autojump_clock: Clock) -> None:
    async with open_web(echo, knows=lambda asked: "authorization" in asked.headers) as browser:
        known = await browser.connect()
        await send_all(known, GET.replace(b"\r\n\r\n", b"\r\nauthorization: x\r\n\r\n"))
        assert parsed(await known.receive(10_000)).status == 200
        await trio.sleep(1)
        strangers = [await browser.connect() for _ in range(3 * MOST_CONNECTIONS)]
        await trio.sleep(1)
        await send_all(known, GET)
        assert parsed(await known.receive(10_000)).status == 200
        with trio.fail_after(0.1):
            assert await strangers[0].receive(1) == b""


async def test_a_flood_from_one_address_costs_that_address(autojump_clock: Clock) -> None:
    places = Places(3)
    with ExitStack() as held:
        held.enter_context(places.take("quiet"))
        await trio.sleep(1)
        flood = [held.enter_context(places.take("flood")) for _ in range(5)]
        assert [each.scope.cancel_called for each in flood] == [True] * 3 + [False] * 2
        with pytest.raises(trio.Cancelled):
            await trio.sleep(1)


async def test_those_that_watch_leave_room_for_others(autojump_clock: Clock) -> None:
    async with open_web(echo) as browser, trio.open_nursery() as nursery:
        for _ in range(MOST_STREAMS):
            nursery.start_soon(read_all, browser)
        await trio.sleep(1)
        assert (await browser.ask("/endless")).status == 503
        assert (await browser.ask("/x")).status == 200
        nursery.cancel_scope.cancel()
    async with open_web(echo) as browser:
        # Those that do not read are closed, so that others can watch.
        for _ in range(MOST_STREAMS):
            connection = await browser.connect()
            await send_all(connection, GET.replace(b"/x", b"/endless"))
        await trio.sleep(60)
        connection = await browser.connect()
        await send_all(connection, GET.replace(b"/x", b"/endless"))
        assert parsed(await connection.receive(1000)).status == 200


async def read_all(browser: Browser) -> Reply:
    return await browser.ask("/endless")


PIECES = st.sampled_from(
    [
        b"GET", b"HEAD", b" ", b"/", b"/x?a=%zz", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n",
        b"host: x", b"content-length: 3", b"content-length: -1", b"transfer-encoding: chunked",
        b"expect: 100-continue", b"connection: close", b"upgrade: h2c", b"0\r\n\r\n", b"abc",
        b"authorization: Basic ====", b"\x00", b"\xff\xfe", b"http://[::1", b"*", b"//",
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.binary(max_size=40) | PIECES | st.just(GET), max_size=25).map(b"".join),
    st.integers(1, 50),
)
def test_any_bytes_are_survived(data: bytes, size: int) -> None:
    async def main() -> None:
        async with open_web(echo) as browser:
            connection = await browser.connect()
            try:
                for start in range(0, len(data), size):
                    await send_all(connection, data[start : start + size])
                    await trio.sleep(0.001)
            except trio.BrokenResourceError:
                pass  # it was refused before all had come
            connection.close()
            assert b"500" not in (await browser.raw(data))[:20]
            assert (await browser.ask("/x")).status == 200  # others are served

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_the_answer_may_be_text(autojump_clock: Clock) -> None:
    async def answer(_asked: Asked) -> Answer:
        await trio.lowlevel.checkpoint()
        return text(404, "there is no such thing")

    async with open_web(answer) as browser:
        reply = await browser.ask("/")
        assert (reply.status, reply.body) == (404, b"there is no such thing\n")
