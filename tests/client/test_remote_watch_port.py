"""A watch over real connections to real ports of a member."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from quorate.client.dialling import Dialler
from quorate.client.secure import ClientTls
from quorate.client.watch import RemoteWatches
from quorate.errors import KeyValueError, WatchLostError
from quorate.keyvalue.port.listener import ClientPort
from quorate.keyvalue.programs.watch import LocalWatches, Watch
from quorate.keyvalue.state import changes
from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.node.requests.request import Request, RequestKind
from quorate.transport import Address
from tests.support.certificates import authority, port_context
from tests.support.client_port_world import OneMember, World, command


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables") as opened:
        yield opened


def watches_of(*ports: ClientPort, dialler: Dialler | None = None) -> RemoteWatches:
    members = [Address("127.0.0.1", port.state.port) for port in ports]
    return RemoteWatches(dialler or Dialler(), members, patience_s=5.0, rng=random.Random(1))


def write(member: OneMember, *words: str) -> None:
    member.submit(Request(RequestKind.COMMAND, command(*words), 0, lambda _: None))


def some_commands(rng: random.Random, count: int) -> Iterator[tuple[str, ...]]:
    for number in range(count):
        key, other = (f"{rng.choice('ab')}/{rng.randrange(8)}" for _ in range(2))
        yield from [
            rng.choice(
                [
                    ("SET", key, "x" * rng.randrange(2000)),
                    ("MSET", key, str(number), other, "y"),
                    ("DEL", key, other),
                    ("INCR", f"a/n{number % 3}"),
                    ("SET", key, "brief", "PX", "3"),
                    ("FLUSHALL",) if number % 20 == 0 else ("APPEND", key, "z"),
                ]
            )
        ]


async def test_lost_connections_make_no_gap_and_no_repetition(world: World) -> None:
    rng = random.Random(7)
    clients = world.port.state.clients

    async def write_and_cut() -> None:
        for words in some_commands(rng, 300):
            world.member.time_ms += 1
            write(world.member, *words)
            if rng.random() < 0.1:
                await world.until(lambda: any(one.client.watches for one in clients.values()))
                for _ in range(rng.randrange(4)):  # so that some has arrived, or nothing
                    await trio.lowlevel.checkpoint()
                for connection in list(clients.values()):
                    connection.close()
        write(world.member, "SET", "a/end", "")

    async with trio.open_nursery() as nursery:
        watch = watches_of(world.port).watch(b"a/", 0)
        nursery.start_soon(write_and_cut)
        found = await changes_to_the_end(watch)
    assert world.port.state.counters.connections > 20
    local = LocalWatches(world.member.service.changes).watch(b"a/", 0)
    assert found == await changes_to_the_end(local)


@pytest.mark.parametrize("with_tls", [False, True])
async def test_waits_that_are_cancelled_lose_nothing(tmp_path: Path, *, with_tls: bool) -> None:
    rng = random.Random(5)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority().pem)
    dialler = Dialler(tls=ClientTls(str(ca)) if with_tls else None)
    found: list[Change] = []
    async with World.opened(tmp_path / "tables", tls=port_context) as world, AsyncExitStack() as on:
        state = world.port.state
        address = Address("127.0.0.1", state.tls_port if with_tls else state.port)
        source = RemoteWatches(dialler, [address], patience_s=5.0, rng=rng)
        watch = await on.enter_async_context(source.watch(b"", -1))
        for number in range(60):
            for _ in range(rng.randrange(4)):
                write(world.member, "SET", f"k{number}", "x" * rng.randrange(100_000))
            with trio.move_on_after(rng.random() / 500):
                while True:
                    found.append(await anext(watch))
        write(world.member, "SET", "a/end", "")
        found += await changes_to_the_end(watch)
        assert state.counters.connections == 1
        local = LocalWatches(world.member.service.changes).watch(b"", 0)
        assert found == await changes_to_the_end(local)


async def changes_to_the_end(watch: Watch) -> list[Change]:
    found: list[Change] = []
    async with watch:
        while not found or found[-1].key != b"a/end":
            found.append(await anext(watch))
    return found


async def test_it_goes_on_at_another_port_when_one_is_gone(world: World) -> None:
    async with trio.open_nursery() as nursery:
        source = LocalWatches(world.member.service.changes)
        other = ClientPort(world.member, "127.0.0.1", 0, watches=source)
        scope: trio.CancelScope = await nursery.start(run_in_scope, other)
        async with watches_of(world.port, other).watch(b"", -1) as watch:
            used = world.port if world.port.state.watches else other
            write(world.member, "SET", "a", "1")
            assert (await anext(watch)).value == b"1"
            if used is other:
                scope.cancel()
            else:
                world.port.state.clients[1].close()
                world.port.state.watches = None
            write(world.member, "SET", "a", "2")
            assert (await anext(watch)).value == b"2"
            assert used is not (other if other.state.watches else world.port)
        scope.cancel()


async def until_it_fails(watch: Watch) -> None:
    async for _ in watch:
        pass


async def run_in_scope(port: ClientPort, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(port.run)
        task_status.started(nursery.cancel_scope)


async def test_a_slow_reader_hears_of_a_gap_and_continues_from_the_oldest_position(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 4)
    async with watches_of(world.port).watch(b"", -1) as watch:
        for number in range(40):
            write(world.member, "SET", f"k{number}", "x" * 1_000_000)
            await trio.lowlevel.checkpoint()
        with pytest.raises(WatchLostError) as caught:
            await until_it_fails(watch)
    assert caught.value.after == watch.position < caught.value.oldest
    # It may have been lost before the last writes, which have dropped more.
    oldest = world.member.service.changes.start
    async with watches_of(world.port).watch(b"", oldest) as again:
        assert (await anext(again)).kind is ChangeKind.SET


async def test_a_user_without_the_right_to_read_the_keys_gets_an_error(world: World) -> None:
    write(world.member, "ACL", "SETUSER", "bob", "on", "nopass", "~b*", "+@all")
    dialler = Dialler(user="bob", password="any")
    with pytest.raises(KeyValueError, match="NOPERM"):
        await anext(watches_of(world.port, dialler=dialler).watch(b"a", -1))
    watch = watches_of(world.port, dialler=dialler).watch(b"b", -1)
    async with watch:
        write(world.member, "SET", "a", "1")
        write(world.member, "SET", "b", "2")
        assert (await anext(watch)).key == b"b"
        write(world.member, "ACL", "SETUSER", "bob", "resetkeys")
        with pytest.raises(KeyValueError, match="NOPERM"):
            await anext(watch)
