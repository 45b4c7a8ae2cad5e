"""Where there was no compiler everything works the other way."""

import select
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import trio.testing

from quorate.keyvalue.native import plain
from quorate.keyvalue.port import joined, listener
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.parser import WholeCommands
from quorate.keyvalue.state import service as service_module
from quorate.storage import BatchHeader, Entry, EntryKind
from tests.support.client_port_world import World, command
from tests.support.service_world import START_MS, encode, open_service, running


@pytest.fixture
def uncompiled(
    monkeypatch: pytest.MonkeyPatch, load_without: Callable[[ModuleType, str], ModuleType]
) -> ModuleType:
    """The module as it is where there is no `_plain`, and those that use it."""
    module = load_without(plain, "quorate.keyvalue.native._plain")
    monkeypatch.setattr(resp, "split_untrusted", module.split_untrusted)
    monkeypatch.setattr(service_module, "apply_sets", module.apply_sets)
    monkeypatch.setattr(service_module, "answer_gets", module.answer_gets)
    monkeypatch.setattr(listener, "receive_untrusted", module.receive_untrusted)
    monkeypatch.setattr(listener, "WholeCommands", partial(WholeCommands, native=module.NATIVE))
    for name in ("cut_replies_untrusted", "send_all"):
        monkeypatch.setattr(joined, name, getattr(module, name))
    return module


async def test_a_service_is_whole_without_what_was_compiled(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, uncompiled: ModuleType
) -> None:
    assert not uncompiled.NATIVE
    assert uncompiled.split_untrusted(encode("PING"), 1) == ([], 0)
    async with running(open_service(tmp_path)) as fed:
        entries = [Entry(EntryKind.COMMAND, encode("SET a 1"))]
        assert fed.service.apply_many(entries, 0, BatchHeader(1, 0, 100, 1, START_MS, 0)) == []
        assert fed.query("GET a") == b"$-1\r\n"
        assert fed.apply("SET a 1", "SET b 2") == b"+OK\r\n+OK\r\n"
        assert fed.query("GET a", "GET b") == b"$1\r\n1\r\n$1\r\n2\r\n"


async def test_a_client_port_is_whole_without_what_was_compiled(
    tmp_path: Path, uncompiled: ModuleType
) -> None:
    async with World.opened(tmp_path / "tables") as world:
        clients = [await world.connect() for _ in range(4)]
        for number, each in enumerate(clients):
            each.send_at_once(command("SET", f"key {number}", "v" * number))
        for each in clients:
            assert await each.receive(5) == b"+OK\r\n"
        for number, each in enumerate(clients):
            each.send_at_once(command("GET", f"key {number}") * 2 + command("PING"))
        for number, each in enumerate(clients):
            value = b"$%d\r\n%b\r\n" % (number, b"v" * number)
            assert await each.receive(2 * len(value) + 7) == value * 2 + b"+PONG\r\n"
        await clients[0].aclose()
        await world.until(lambda: len(world.port.state.clients) == 3)
        assert len(world.member.commands) == 4
        assert world.port.state.coalesced == {}
        counters = world.port.state.counters
        assert (counters.commands, counters.output_bytes) == (16, 4 * 5 + 4 * 7 + 2 * (4 * 6 + 6))
        await clients[1].send(command("SET", "a", "1"))
        await clients[1].stream.send_eof()
        assert await clients[1].rest() == b"+OK\r\n"


def test_what_is_not_compiled_reads_and_sends_and_cuts_nothing(uncompiled: ModuleType) -> None:
    near, far = socket.socketpair()
    with near, far, select.epoll() as epoll:
        epoll.register(near, select.EPOLLIN)
        assert uncompiled.receive_untrusted(epoll, 5) == []
        far.send(b"x")
        assert uncompiled.receive_untrusted(epoll, 5) == [(near.fileno(), 1, None, 0)]
        assert near.recv(5) == b"x"
        assert uncompiled.send_all([far.fileno(), -1], [b"a", b"b"]) == [(0, 0), (1, 0)]
        assert uncompiled.receive_untrusted(epoll, 5) == []
    assert uncompiled.cut_replies_untrusted(b"+OK\r\n", [1]) is None
    assert uncompiled.count_untrusted(encode("GET a")) == 0
