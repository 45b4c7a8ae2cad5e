"""What the paths of a member's web port answer, and to whom."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from quorate.errors import ConfigurationError
from quorate.metrics import gauge
from quorate.node import MemberConfig, NodeConfig, Web
from quorate.node.config.security import Security
from quorate.node.upkeep.exposure import check_web_exposure
from quorate.simulation.ledger import Ledger, open_ledgers
from quorate.transport import Address
from quorate.transport.streams import send_all
from quorate.web.answers import Asked
from quorate.web.files import PageFiles
from quorate.web.guard import Guard
from quorate.web.opening import make_web_port, open_guard
from quorate.web.readiness import Readiness
from quorate.web.routes import WRONG_SECONDS
from tests.cli.test_status_command import status_of
from tests.support.web_world import Browser

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from quorate.simulation import World

    Clock = trio.testing.MockClock

PORT = 8001


@asynccontextmanager
async def web_of(
    world: World[Ledger], member: int, guard: Guard | None = None, *, confirms: bool = False
) -> AsyncGenerator[Browser]:
    """Open the web port of a simulated member."""
    host, name = world.hosts[member], f"h{member}"
    port = make_web_port(
        host.running,
        attrs.evolve(host.config, web=Web(PORT, name)),
        families=lambda: [gauge("quorate_term", "The term.", host.running.status().term)],
        read=host.running.confirm if confirms else lambda: host.running.query(b""),
        guard=guard or Guard(),
        network=world.network.host(name),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(port.run)
        yield Browser(world.network.host("browser"), Address(name, PORT))
        nursery.cancel_scope.cancel()


def sent_events(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each event of a stream that is not chunked any more."""
    found: list[tuple[str, dict[str, Any]]] = []
    for block in stream.decode().split("\n\n"):
        lines = [line.split(": ", 1) for line in block.split("\n") if ": " in line]
        fields = {line[0]: line[1] for line in lines}
        if "data" in fields:
            found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


async def streamed(browser: Browser, target: str, seconds: float, *lines: str) -> bytes:
    """Read an endless answer for some seconds; return its body, without the marks of chunks."""
    connection = await browser.connect()
    head = [f"GET {target} HTTP/1.0", "host: localhost", *lines, "", ""]
    await send_all(connection, "\r\n".join(head).encode())
    received = b""
    with trio.move_on_after(seconds):
        while more := await connection.receive(1 << 16):
            received += more
    connection.close()
    first, _, body = received.partition(b"\r\n\r\n")
    assert b" 200 OK" in first, first
    return body[: body.rindex(b"\n") + 1]


async def test_the_paths_of_a_member(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        async with web_of(world, leader) as browser:
            assert (await browser.ask("/healthz")).body == b"healthy\n"
            assert (await browser.ask("/readyz")).body == b"ready\n"
            status = json.loads((await browser.ask("/status")).body)
            assert (status["role"], status["member_id"]) == ("leader", leader)
            metrics = await browser.ask("/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert b"\nquorate_term 0\n" in metrics.body
            metrics = await browser.ask("/metrics", "accept: application/openmetrics-text")
            assert metrics.body.endswith(b"# EOF\n")
            reply = await browser.ask("/nothing")
            assert reply.status == 404
            assert b"expected /, /events, /healthz" in reply.body


async def test_ready_is_what_a_read_says(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        async with web_of(world, follower) as browser:
            assert (await browser.ask("/readyz")).status == 200
            world.isolate(follower)
            assert (await browser.ask("/readyz")).status == 200  # it was, less than a second ago
            await trio.sleep(1)
            reply = await browser.ask("/readyz")
            assert reply.status == 503
            assert b"no answer to a read within 1 s" in reply.body
            assert (await browser.ask("/healthz")).status == 200
            world.mend()
            await trio.sleep(3)
            assert (await browser.ask("/readyz")).status == 200


async def test_a_state_machine_that_we_cannot_ask_is_ready_if_a_read_would_succeed(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_ledger: Ledger, _payload: bytes, _flags: int) -> bytes:
        raise AssertionError("it must not be asked")

    monkeypatch.setattr(Ledger, "query", refuse)
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        for member in (follower, leader):
            async with web_of(world, member, confirms=True) as browser:
                assert (await browser.ask("/readyz")).status == 200
        await trio.sleep(1)  # the outcome is good for as long
        world.isolate(leader)
        async with web_of(world, leader, confirms=True) as browser:
            # It has not found out yet that it leads no more.
            assert world.hosts[leader].running.status().state == "CLOSED"
            assert (await browser.ask("/readyz")).status == 503
            await trio.sleep(1)
        async with web_of(world, follower, confirms=True) as browser:
            assert (await browser.ask("/readyz")).status == 200  # with another leader


async def test_a_leader_without_a_quorum_does_not_name_itself(autojump_clock: Clock) -> None:
    for leader_id, words in (
        (1, "this member led last, and reaches no quorum"),
        (2, "the last known leader is member 2"),
    ):
        status = partial(status_of, 1, leader_id=leader_id)
        answer = await Readiness(trio.sleep_forever, status).answer()
        assert answer.status == 503
        assert f"no answer to a read within 1 s: {words};".encode() in answer.body


async def test_live_events_begin_with_a_head_and_a_picture(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        async with web_of(world, follower) as browser:
            stream = await streamed(browser, "/events", 2)
            assert stream.startswith(b"retry: 1000\nevent: head\ndata: {")
            (first, head), (_, keyframe), *rest = sent_events(stream)
            assert (first, head["quorate_trace"], head["source"]) == ("head", 2, "live")
            assert keyframe["kind"] == "keyframe"
            # What was before the page was opened: how the last election ended, and why.
            *_, last = keyframe["members"][str(follower)]["steps"]
            assert (last["before"], last["after"]) == ("FOLLOWER_READY", "CLOSED")
            assert last["reason"]
            assert last["ago"] > 0
            assert {each["member"] for _, each in rest} == set(world.hosts)
            # Whoever comes back gets a new picture.
            again = sent_events(await streamed(browser, "/events", 1))
            assert [each.get("kind") for _, each in again[:2]] == [None, "keyframe"]
            lines = (await streamed(browser, "/trace?seconds=2", 5)).splitlines()
            assert json.loads(lines[0])["quorate_trace"] == 2
            assert len(lines) > 20
            for wrong in ("0", "601", "x", "1e1", "-1", "", "%D9%A3", "9" * 5000):
                assert (await browser.ask(f"/trace?seconds={wrong}")).status == 400


async def test_a_page_shows_the_loss_of_the_leader(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        found: list[bytes] = []
        async with web_of(world, follower) as browser, trio.open_nursery() as nursery:

            async def read() -> None:
                found.append(await streamed(browser, "/events", 5))

            nursery.start_soon(read)
            await trio.sleep(1)
            await world.kill(leader)
        events = [each for _, each in sent_events(found[0])]
        steps = [each["after"] for each in events if each.get("kind") == "enters"]
        assert {"CANVASS", "NOMINATE", "CANDIDATE_BALLOT", "LEADER_READY", "CLOSED"} <= set(steps)
        (led,) = [each for each in events if each.get("kind") == "leads"]
        assert led["term"] == 1
        assert led["cause"]
        assert 0 < led["took"] < 2


async def test_a_token_is_asked_for(tmp_path: Path, autojump_clock: Clock) -> None:
    token = b"0123456789abcdef0123456789abcdef"
    basic = base64.b64encode(b"anybody:" + token).decode()
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        async with web_of(world, 0, Guard(token)) as browser:
            for path in ("/", "/status", "/metrics", "/events", "/static/page.css", "/nothing"):
                reply = await browser.ask(path)
                assert (reply.status, reply.headers["www-authenticate"][:5]) == (401, "Basic")
            for path in ("/healthz", "/readyz"):
                assert (await browser.ask(path)).status == 200
            for shown in (f"Bearer {token.decode()}", f"bearer {token.decode()}", f"Basic {basic}"):
                assert (await browser.ask("/status", f"authorization: {shown}")).status == 200
            for shown in ("Bearer x", "Basic x", "Basic ====", "Bearer", "", f"Digest {basic}"):
                assert (await browser.ask("/status", f"authorization: {shown}")).status == 401


class Seen:
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, dict[str, object]]] = []

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        self.noted.append((event, of, facts))


async def test_wrong_tokens_are_noted_and_slow(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        member, audit = world.hosts[0].running, Seen()
        member.access = attrs.evolve(member.access, audit=audit)
        async with web_of(world, 0, Guard(b"x" * 32)) as browser:
            assert (await browser.ask("/status")).status == 401  # as a browser begins
            assert audit.noted == []
            began = trio.current_time()
            for _ in range(3):
                assert (await browser.ask("/status", "authorization: Bearer y")).status == 401
            assert trio.current_time() - began >= 3 * WRONG_SECONDS
        ((event, of, facts),) = {str(each): each for each in audit.noted}.values()
        assert (len(audit.noted), event, of) == (3, "web_refused", f"web {facts['address']}")
        assert facts["address"]
        assert caplog.text.count("has shown a wrong token") == 1


@pytest.mark.parametrize(
    ("web", "insecure", "words"),
    [
        ({}, True, None),
        ({"token_file": "t", "tls": True}, False, None),
        ({"token_file": "t", "tls": True}, True, None),
        ({}, False, "expected a token and TLS"),
        ({"token_file": "t"}, True, "web.token_file is set, so web.tls is expected"),
        ({"tls": True}, True, "web.tls is set, so web.token_file is expected"),
    ],
)
async def test_an_open_network_does_not_stand_for_half_of_what_is_set(
    web: dict[str, Any], *, insecure: bool, words: str | None
) -> None:
    config = NodeConfig(
        "c",
        0,
        Path("m"),
        (MemberConfig(0, "127.0.0.1", 7000, 7001),),
        web=Web(PORT, "10.0.0.1", **web),
        security=Security("a.crt", "a.key", "ca.crt", insecure_network=insecure),
    )
    if words is None:
        await check_web_exposure(config)
    else:
        with pytest.raises(ConfigurationError, match=words):
            await check_web_exposure(config)


def test_a_name_from_elsewhere_is_no_host_of_ours() -> None:
    """Otherwise a page of a stranger could give its name our address, and read what we answer."""
    for host, fine in (
        ("localhost", True),
        ("LOCALHOST:8001", True),
        ("127.0.0.1:8001", True),
        ("[::1]:8001", True),
        ("evil.example", False),
        ("evil.example:8001", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ):
        refused = Guard(local=True).refusal(Asked("/", {}, {"host": host}))
        assert (refused is None) == fine, host
    assert Guard().refusal(Asked("/", {}, {"host": "evil.example"})) is None


def test_files_have_a_tag_and_no_way_out(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.js").write_text("one")
    files = PageFiles(folder)
    answer = files.answer("a.js")
    assert (answer.status, answer.body) == (200, b"one")
    tag = dict(answer.headers)["etag"]
    assert files.answer("a.js", f'"x", W/{tag}').status == 304
    (folder / "a.js").write_text("three")
    assert files.answer("a.js", tag).body == b"three"
    for name in ("../secret.txt", "%2e%2e/secret.txt", "b.js", "", ".", "a.py", "page", "x\0.js"):
        assert files.answer(name).status == 404, name


@pytest.mark.parametrize(
    ("web", "lines"),
    [
        ({"host": "0.0.0.0"}, "token_file"),
        ({"host": "0.0.0.0", "token_file": "there"}, "token_file"),
        ({"token_file": "nowhere"}, "cannot be read"),
        ({"token_file": "short"}, r"32 or more, type: openssl rand -hex 32 >"),
        ({"token_file": "open"}, "chmod 600"),
    ],
)
async def test_a_port_that_everybody_reaches_is_not_opened(
    tmp_path: Path, web: dict[str, str], lines: str
) -> None:
    for name, text, mode in (
        ("there", "x" * 32, 0o600),
        ("short", "x", 0o600),
        ("open", "x", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    async with open_ledgers(tmp_path, 1) as world:
        config = attrs.evolve(world.hosts[0].config, web=Web(PORT, **web).within(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=lines):
        await open_guard(config)
