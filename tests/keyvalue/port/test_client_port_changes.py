"""QUORATE.WATCH: the changes of keys are pushed to the clients that watch them."""

# pyright: reportPrivateUsage=false

import socket
from collections.abc import Sequence

import attrs
import pytest
import trio
import trio.testing

from quorate.errors import RefusedError
from quorate.keyvalue.port import watch_pushes
from quorate.keyvalue.programs.watch import LocalWatch, LocalWatches
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.state import changes
from quorate.keyvalue.state.changes import Change
from quorate.keyvalue.state.pushes import PART_BYTES
from quorate.node.state_machine.service import Command
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"
BEGUN = b"*2\r\n:1\r\n:0\r\n"
A1_A2 = (b"a1", b"a2")
NO_KEY = b"NOPERM this user has no permissions to access one of the keys used as arguments"


def push(*parts: bytes | int | None) -> bytes:
    """A push as RESP3 has it."""
    encoded = [
        b"_\r\n" if one is None else b":%d\r\n" % one if isinstance(one, int) else resp.bulk(one)
        for one in parts
    ]
    return b">%d\r\n%b" % (len(parts), b"".join(encoded))


def entry(position: int, *fields: bytes | int | None, watch: int = 1) -> bytes:
    return push(b"quorate.watch", watch, position, *fields)


async def resp3(world: World) -> RawClient:
    client = await world.connect()
    await client.send(command("HELLO", "3"))
    await client.receive_until(b"modules\r\n*0\r\n")
    return client


@attrs.define
class Judge:
    """Decides what users may do: nobody watches at night."""

    day: bool = True

    def allows(self, principal: str, command: Sequence[bytes]) -> bool:
        return self.day or command[0] != b"QUORATE.WATCH"


@pytest.fixture
async def watcher(world: World) -> RawClient:
    """A client that speaks RESP3."""
    return await resp3(world)


async def write(world: World, client: RawClient, *words: str, reply: bytes = OK) -> int:
    """Send a command that writes; return the position of its changes."""
    revision = world.member.position + 1
    await client.ask(command(*words), reply)
    return revision


async def test_each_push_has_all_changes_of_one_log_entry(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a/"), BEGUN)
    await write(world, client, "SET", "b/", "other")
    two = await write(world, client, "MSET", "a/1", "x", "b/1", "y", "a/2", "z")
    gone = await write(world, client, "DEL", "a/1", reply=b":1\r\n")
    flushed = await write(world, client, "FLUSHALL")
    pushes = [
        entry(two, b"set", b"a/1", b"x", 0, b"set", b"a/2", b"z", 0),
        entry(gone, b"deleted", b"a/1", None, 0),
        entry(flushed, b"flushed", b"", None, 0),
    ]
    await watcher.ask(b"", b"".join(pushes))
    assert world.port.state.counters.watch_pushes == 3


async def test_a_key_that_expires_is_pushed_with_its_time(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", ""), BEGUN)
    at = await write(world, client, "SET", "a", "x", "PX", "5")
    expiry = world.member.time_ms + 5
    await watcher.ask(b"", entry(at, b"set", b"a", b"x", expiry))
    world.member.time_ms += 6
    await write(world, client, "SET", "b", "y")
    second = await watcher.receive_until(b"expired\r\n$1\r\na\r\n_\r\n:0\r\n")
    assert second.endswith(entry(world.member.position, b"expired", b"a", None, 0))


async def test_a_watch_begins_after_a_position(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    first = await write(world, client, "SET", "a", "1")
    second = await write(world, client, "SET", "a", "2")
    await watcher.ask(
        command("quorate.watch", "a", "after", str(first)), b"*2\r\n:1\r\n:%d\r\n" % first
    )
    await watcher.ask(b"", entry(second, b"set", b"a", b"2", 0))


async def test_a_position_beyond_the_end_of_the_log_is_refused(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await write(world, client, "SET", "a", "1")
    text = f"after = 900: the log ends at {world.member.position}; expected a position of this"
    await watcher.ask(command("QUORATE.WATCH", "a", "AFTER", "900"), f"-BEYOND {text}".encode())


async def test_a_member_that_is_behind_begins_the_watch_when_it_has_caught_up(
    world: World, watcher: RawClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(world, client, "SET", "a", "1")
    leader = 3 * world.member.position  # where we are after two more

    async def ahead(_: LocalWatches) -> int:
        await trio.lowlevel.checkpoint()
        return leader

    monkeypatch.setattr(LocalWatches, "now", ahead)
    await watcher.send(command("QUORATE.WATCH", "a", "AFTER", str(leader)))
    await write(world, client, "SET", "a", "2")
    await write(world, client, "SET", "a", "3")
    at = await write(world, client, "SET", "a", "4")
    begun = b"*2\r\n:1\r\n:%d\r\n" % leader
    await watcher.ask(b"", begun + entry(at, b"set", b"a", b"4", 0))


async def test_what_the_leader_refuses_for_now_is_no_fault_of_the_position(
    watcher: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def suspended(_: LocalWatches) -> int:
        await trio.lowlevel.checkpoint()
        raise RefusedError("the cluster is suspended")

    monkeypatch.setattr(LocalWatches, "now", suspended)
    words = command("QUORATE.WATCH", "a", "AFTER", "9")
    await watcher.ask(words, b"-REFUSED the cluster is suspended\r\n")


async def test_a_large_entry_is_pushed_in_parts(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    value = "x" * PART_BYTES
    at = await write(world, client, "MSET", "a1", value, "a2", value, "a3", "y")
    parts = [push(b"quorate.watch.part", 1, at, b"set", key, value.encode(), 0) for key in A1_A2]
    await watcher.ask(b"", b"".join(parts) + entry(at, b"set", b"a3", b"y", 0))


async def test_an_unwatched_prefix_is_not_pushed_any_more_and_its_id_is_not_used_again(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    await watcher.ask(command("QUORATE.UNWATCH", "1"), b":1\r\n")
    await watcher.ask(command("QUORATE.UNWATCH", "1"), b":0\r\n")
    await watcher.ask(command("QUORATE.WATCH", "b"), b"*2\r\n:2\r\n:0\r\n")
    await write(world, client, "SET", "a", "x")
    at = await write(world, client, "SET", "b", "y")
    await watcher.ask(b"", entry(at, b"set", b"b", b"y", 0, watch=2))


@pytest.mark.parametrize(
    ("end", "reply"),
    [
        (command("RESET"), b"+RESET\r\n"),
        (command("HELLO", "2"), b"modules\r\n*0\r\n"),
        (command("QUIT"), OK),
    ],
)
async def test_reset_an_older_protocol_and_the_end_of_the_connection_end_all_watches(
    world: World, watcher: RawClient, client: RawClient, end: bytes, reply: bytes
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    await watcher.ask(command("QUORATE.WATCH", "b"), b"*2\r\n:2\r\n:0\r\n")
    assert len(world.port.state.watches or ()) == 2
    await watcher.send(end)
    await watcher.receive_until(reply)
    await write(world, client, "SET", "a", "x")
    await world.until(lambda: not world.port.state.watches)
    assert world.port.state.counters.watch_pushes == 0


async def test_a_client_that_vanishes_takes_its_watches_with_it(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    watcher.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    watcher.stream.socket.close()
    await write(world, client, "SET", "a", "x")
    await world.until(lambda: not world.port.state.watches)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("a AFTER", "syntax error, expected QUORATE.WATCH prefix [PARTITION] [AFTER position]"),
        ("a SINCE 5", "syntax error, expected QUORATE.WATCH prefix [PARTITION] [AFTER position]"),
        ("a AFTER -5", "a log position is an integer, 0 or more"),
        ("a AFTER x", "a log position is an integer, 0 or more"),
    ],
)
async def test_a_malformed_watch_is_refused(watcher: RawClient, words: str, error: str) -> None:
    await watcher.ask(command("QUORATE.WATCH", *words.split()), f"-ERR {error}\r\n".encode())


async def test_a_watch_needs_resp3_and_stands_outside_of_multi(
    client: RawClient, watcher: RawClient
) -> None:
    await client.send(command("QUORATE.WATCH", "a"))
    assert b"need RESP3: send HELLO 3 first" in await client.receive_until(b"\r\n")
    await watcher.ask(command("MULTI"), OK)
    await watcher.send(command("QUORATE.WATCH", "a"))
    assert b"inside MULTI is not allowed" in await watcher.receive_until(b"\r\n")
    await watcher.send(command("EXEC"))
    assert b"EXECABORT" in await watcher.receive_until(b"\r\n")


async def test_watches_are_bounded(
    world: World, watcher: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_pushes, "MAX_CLIENT_WATCHES", 1)
    monkeypatch.setattr(watch_pushes, "MAX_WATCHES", 2)
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    await watcher.send(command("QUORATE.WATCH", "a"))
    assert b"-REFUSED this connection has 1 watches" in await watcher.receive_until(b"\r\n")
    await (await resp3(world)).ask(command("QUORATE.WATCH", "a"), BEGUN)
    third = await resp3(world)
    await third.send(command("QUORATE.WATCH", "a"))
    assert b"-REFUSED all clients of this member have 2" in await third.receive_until(b"\r\n")


async def test_progress_is_pushed_while_nothing_of_the_prefix_changes(
    world: World, client: RawClient, watcher: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    await write(world, client, "SET", "b", "x")
    pushes = world.port.state.watches
    assert isinstance(pushes, watch_pushes.WatchPushes)
    await pushes._tell_progress()
    await watcher.ask(b"", push(b"quorate.watch.progress", 1, world.member.position))


async def test_a_member_without_a_leader_ends_its_watches_and_begins_none(
    world: World, watcher: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    pushes = world.port.state.watches
    assert isinstance(pushes, watch_pushes.WatchPushes)
    pushes._silent = watch_pushes.SILENT_ROUNDS
    await pushes._tell_progress()
    text = b"CLUSTERDOWN this member has no leader: ask another member"
    await watcher.ask(b"", push(b"quorate.watch.ended", 1, 0, text))
    await watcher.ask(command("QUORATE.WATCH", "a"), b"-%b\r\n" % text)


async def test_a_client_that_does_not_read_gets_every_change_later(
    world: World, watcher: RawClient, client: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    value = "x" * 1_000_000
    positions = [await write(world, client, "SET", "a", value) for _ in range(20)]
    connection = world.port.state.clients[2 if world.connected[0] is client else 1]
    # Not more waits for it here than one batch of pushes.
    assert connection.waiting_bytes[1] < 2 * len(value)
    expected = b"".join(entry(at, b"set", b"a", value.encode(), 0) for at in positions)
    assert await watcher.receive(len(expected)) == expected


async def test_a_client_that_does_not_read_for_too_long_hears_that_changes_are_lost(
    world: World, watcher: RawClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 4)
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    value = "x" * 1_000_000
    for _ in range(40):
        await write(world, client, "SET", "a", value)
    received = b""
    while b"quorate.watch.lost" not in received:
        received = received[-100:] + await watcher.receive_some(1 << 20)
    assert b"are kept" in received or b"are kept" in await watcher.receive_until(b"\r\n")


async def test_a_gap_at_the_beginning_is_reported_behind_the_reply(
    world: World, watcher: RawClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 1)
    oldest = await write(world, client, "SET", "a", "1")
    await write(world, client, "SET", "a", "2")
    text = b"after = 0: the changes after position %d are kept" % oldest
    lost = push(b"quorate.watch.lost", 1, 0, oldest, text)
    await watcher.ask(command("QUORATE.WATCH", "a", "AFTER", "0"), BEGUN + lost)


async def user(world: World, root: RawClient, *rules: str) -> RawClient:
    """Make the user bob; return a client of RESP3 that has logged in as bob."""
    await root.ask(command("ACL", "SETUSER", "bob", "on", ">secret", *rules), OK)
    client = await world.connect()
    await client.send(command("HELLO", "3", "AUTH", "bob", "secret"))
    await client.receive_until(b"modules\r\n*0\r\n")
    return client


@pytest.mark.parametrize("rules", ["~app:*", "~app:x*", "~*", "%R~app:*", "~no ~app:*"])
async def test_a_user_may_watch_what_one_of_its_patterns_covers(
    world: World, client: RawClient, rules: str
) -> None:
    bob = await user(world, client, *rules.split(), "+@read")
    await bob.send(command("QUORATE.WATCH", "app:x"))
    assert (await bob.receive_until(b"\r\n")).startswith(b"*2\r\n:1\r\n:")


@pytest.mark.parametrize("rules", ["~app:xy*", "~app:x", "%W~app:*", "~app:?*", "~ap[p]:*"])
async def test_a_user_may_not_watch_more_than_a_pattern_covers(
    world: World, client: RawClient, rules: str
) -> None:
    bob = await user(world, client, *rules.split(), "+quorate.watch")
    await bob.ask(command("QUORATE.WATCH", "app:x"), b"-%b\r\n" % NO_KEY)
    dryrun = command("ACL", "DRYRUN", "bob", "QUORATE.WATCH", "app:x")
    await client.send(dryrun)
    assert b"permissions to access the 'app:x' key" in await client.receive_until(b"\r\n")


async def test_a_watch_ends_when_the_rules_do_not_allow_it_any_more(
    world: World, client: RawClient
) -> None:
    bob = await user(world, client, "~*", "+@all")
    await bob.send(command("QUORATE.WATCH", "app:"))
    began = world.member.position
    await bob.ask(b"", b"*2\r\n:1\r\n:%d\r\n" % began)
    await client.ask(command("ACL", "SETUSER", "bob", "+get"), OK)
    at = await write(world, client, "SET", "app:1", "x")
    await bob.ask(b"", entry(at, b"set", b"app:1", b"x", 0))
    await client.ask(command("ACL", "SETUSER", "bob", "resetkeys", "~other*"), OK)
    await write(world, client, "SET", "app:1", "secret")
    end = await bob.receive_until(b"arguments\r\n")
    assert end.startswith(b">4\r\n$19\r\nquorate.watch.ended\r\n:1\r\n")
    assert NO_KEY in end


async def test_nothing_is_pushed_while_the_users_are_unknown(
    world: World, watcher: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    world.member.parked = []  # the port's question for the users waits for a leader
    world.port.state.access.users.forget()
    at = world.member.position + 1
    set_a = Command(resp.encode_set(b"a", b"x"), 0, 0, 0, 4, at - 1, 0, world.member.time_ms)
    world.member.service.apply(set_a)
    world.member.service.advance(at + 50, world.member.time_ms)
    await trio.testing.wait_all_tasks_blocked()
    assert world.port.state.counters.watch_pushes == 0
    await world.until(lambda: world.member.parked)
    world.member.release()
    await watcher.ask(b"", entry(at, b"set", b"a", b"x", 0))


async def test_a_program_that_judges_commands_ends_a_watch_in_the_next_round(
    world: World, watcher: RawClient
) -> None:
    judge = Judge()
    users = world.port.state.access.users
    users._authoriser = judge
    users._changed()
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    pushes = world.port.state.watches
    assert isinstance(pushes, watch_pushes.WatchPushes)
    judge.day = False
    await pushes._tell_progress()
    text = b"NOPERM this user has no permissions to run the 'quorate.watch' command"
    await watcher.ask(b"", push(b"quorate.watch.ended", 1, 0, text))


async def test_a_bug_in_a_watch_ends_that_watch_only(
    watcher: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: LocalWatch) -> list[Change]:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("a bug")

    monkeypatch.setattr(LocalWatch, "_fetch", fail)
    text = b"ERR internal error in 'quorate.watch', see the member's log"
    ended = push(b"quorate.watch.ended", 1, 0, text)
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN + ended)
    await watcher.ask(command("PING"), b"+PONG\r\n")
    assert "a bug" in caplog.text


async def test_a_member_that_stops_ends_watches_like_idle_connections(
    world: World, watcher: RawClient
) -> None:
    await watcher.ask(command("QUORATE.WATCH", "a"), BEGUN)
    with trio.fail_after(0.5):
        await world.port.drain()
        assert await watcher.rest() == b""
    await world.until(lambda: not world.port.state.watches)
