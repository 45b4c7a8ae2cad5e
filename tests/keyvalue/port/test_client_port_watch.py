"""WATCH, from the socket to a real state machine."""

import random
from pathlib import Path

import pytest

from quorate.errors import NoLeaderError
from quorate.keyvalue.limits import MAX_WATCHED_KEYS
from quorate.keyvalue.port.listener import ClientPortLimits
from tests.support.client_port_world import RawClient, World, command

OK, QUEUED, NULL, NULL_ARRAY = b"+OK\r\n", b"+QUEUED\r\n", b"$-1\r\n", b"*-1\r\n"
MULTI, EXEC, DISCARD = command("MULTI"), command("EXEC"), command("DISCARD")
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
WATCH_A, GET_A, DEL_A = command("WATCH", "a"), command("GET", "a"), command("DEL", "a")
SET_A = command("SET", "a", "1")
TRY = MULTI + command("SET", "a", "ours") + EXEC
DONE, NOTHING = OK + QUEUED + b"*1\r\n+OK\r\n", OK + QUEUED + NULL_ARRAY


@pytest.fixture
async def other(world: World) -> RawClient:
    return await world.connect()


async def test_an_unchanged_key_lets_exec_happen(client: RawClient) -> None:
    await client.ask(command("SET", "a", "1") + command("WATCH", "a", "b"), OK + OK)
    await client.ask(MULTI + command("INCR", "a") + EXEC, OK + QUEUED + b"*1\r\n:2\r\n")


async def test_a_changed_key_makes_exec_do_nothing(client: RawClient, other: RawClient) -> None:
    await client.ask(command("WATCH", "a"), OK)
    await other.ask(command("SET", "a", "theirs"), OK)
    await client.ask(MULTI + command("SET", "a", "ours") + EXEC, OK + QUEUED + NULL_ARRAY)
    await client.ask(command("GET", "a"), b"$6\r\ntheirs\r\n")
    await client.ask(MULTI + command("SET", "a", "ours") + EXEC, OK + QUEUED + b"*1\r\n+OK\r\n")


async def test_a_change_back_to_the_same_value_is_a_change(
    client: RawClient, other: RawClient
) -> None:
    await other.ask(command("SET", "a", "1"), OK)
    await client.ask(command("WATCH", "a"), OK)
    await other.ask(command("SET", "a", "2") + command("SET", "a", "1"), OK + OK)
    await client.ask(MULTI + command("GET", "a") + EXEC, OK + QUEUED + NULL_ARRAY)


async def test_the_first_watch_of_a_key_counts(
    world: World, client: RawClient, other: RawClient
) -> None:
    await client.ask(command("WATCH", "a"), OK)
    await other.ask(command("SET", "a", "1"), OK)
    await client.ask(command("WATCH", "a", "a"), OK)
    assert world.member.queries == [command("WATCH", "a")]
    await client.ask(MULTI + EXEC, OK + NULL_ARRAY)


async def test_a_null_answer_is_of_the_clients_protocol_even_with_own_commands_inside(
    client: RawClient, other: RawClient
) -> None:
    await client.send(command("HELLO", "3"))
    await client.receive_until(b"modules\r\n*0\r\n")
    await client.ask(command("WATCH", "a"), OK)
    await other.ask(command("SET", "a", "1"), OK)
    await client.ask(MULTI + command("PING") + command("GET", "a"), OK + QUEUED * 2)
    await client.ask(EXEC, b"_\r\n")


@pytest.mark.parametrize("forget", [command("UNWATCH"), MULTI + DISCARD, MULTI + EXEC])
async def test_what_ends_a_watch(client: RawClient, other: RawClient, forget: bytes) -> None:
    await client.ask(command("WATCH", "a"), OK)
    await client.send(forget + command("ECHO", "done"))
    await client.receive_until(b"done\r\n")
    await other.ask(command("SET", "a", "1"), OK)
    await client.ask(MULTI + command("GET", "a") + EXEC, OK + QUEUED + b"*1\r\n$1\r\n1\r\n")


async def test_reset_ends_a_watch(client: RawClient, other: RawClient) -> None:
    await client.ask(command("WATCH", "a") + command("RESET"), OK + b"+RESET\r\n")
    await other.ask(command("SET", "a", "1"), OK)
    await client.ask(MULTI + command("GET", "a") + EXEC, OK + QUEUED + b"*1\r\n$1\r\n1\r\n")


async def test_watching_is_bounded(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(request_bytes=1000)) as world:
        client = await world.connect()
        await client.ask(command("WATCH", "a" * 600), OK)
        await client.ask(command("WATCH", "b" * 600), b"-ERR too many watched keys\r\n")


async def test_watched_keys_count_as_part_of_the_transaction(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(request_bytes=1000)) as world:
        client = await world.connect()
        await client.ask(command("WATCH", "a" * 600), OK)
        error = b"-ERR the transaction is larger than this member takes\r\n"
        await client.ask(MULTI + command("SET", "a", "1" * 400), OK + error)
        await client.ask(EXEC, ABORTED)
        await client.ask(MULTI + command("SET", "a", "1" * 400), OK + QUEUED)
        await client.ask(EXEC, b"*1\r\n+OK\r\n")


async def test_a_client_watches_so_many_keys_at_most(client: RawClient) -> None:
    names = [b"%d" % i for i in range(MAX_WATCHED_KEYS)]
    await client.ask(command("WATCH", *names), OK)
    await client.ask(command("WATCH", names[0]), OK)
    await client.ask(command("WATCH", "one more"), b"-ERR too many watched keys\r\n")
    await client.ask(MULTI + command("SET", "a", "1") + EXEC, OK + QUEUED + b"*1\r\n+OK\r\n")


# A key that was absent -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (GET_A, b"$1\r\n1\r\n"),
        (GET_A + GET_A, b"$1\r\n1\r\n" * 2),
        (command("EXISTS", "b", "a"), b":1\r\n"),
        (command("MGET", "b", "a", "a"), b"*3\r\n$-1\r\n$1\r\n1\r\n$1\r\n1\r\n"),
        (command("OBJECT", "ENCODING", "a"), b"$3\r\nint\r\n"),
        (GET_A + command("SET", "c", "1") + command("GET", "b"), b"$1\r\n1\r\n+OK\r\n$-1\r\n"),
        (command("GETRANGE", "a", "x", "1"), b"-ERR value is not an integer or out of range\r\n"),
    ],
)
async def test_who_has_seen_a_key_that_is_gone_again_is_not_deceived(
    client: RawClient, other: RawClient, read: bytes, reply: bytes
) -> None:
    await client.ask(command("WATCH", "a", "b"), OK)
    await other.ask(SET_A, OK)
    await client.ask(read, reply)
    await other.ask(DEL_A, b":1\r\n")
    await client.ask(TRY, NOTHING)
    await client.ask(WATCH_A + GET_A, OK + NULL)
    await client.ask(TRY, DONE)


async def test_who_has_not_seen_it_finds_all_as_it_was(client: RawClient, other: RawClient) -> None:
    await client.ask(WATCH_A + GET_A + command("GET", "b"), OK + NULL + NULL)
    await other.ask(SET_A + DEL_A, OK + b":1\r\n")
    await client.ask(GET_A, NULL)
    await client.ask(TRY, DONE)


async def test_only_what_names_an_absent_key_goes_alone_and_asks_for_it(
    world: World, client: RawClient
) -> None:
    exist, get_b, set_b = command("EXISTS", "b"), command("GET", "b"), command("SET", "b", "2")
    set_c, get_c = command("SET", "c", "1"), command("GET", "c")
    await client.ask(SET_A + command("WATCH", "a", "b"), OK * 2)
    await client.ask(GET_A + get_c + get_b + get_c, b"$1\r\n1\r\n" + NULL * 3)
    await client.ask(set_c * 3 + set_b + get_c + set_b, OK * 4 + b"$1\r\n1\r\n" + OK)
    watch = command("WATCH", "a", "b")
    assert world.member.queries == [watch, GET_A + get_c, get_b + exist, get_c]
    assert world.member.commands == [SET_A, set_c * 3, exist + set_b + exist, get_c + set_b]


@pytest.mark.parametrize("ending", [command("UNWATCH"), MULTI + DISCARD, MULTI + EXEC])
async def test_commands_are_runs_again_once_nothing_absent_is_watched(
    world: World, client: RawClient, ending: bytes
) -> None:
    await client.send(WATCH_A + ending)
    await client.receive_until(b"*0\r\n" if EXEC in ending else OK * ending.count(b"*") + OK)
    del world.member.queries[:]
    await client.ask(GET_A + command("EXISTS", "a"), NULL + b":0\r\n")
    await client.ask(SET_A + WATCH_A, OK * 2)
    await client.ask(GET_A + command("EXISTS", "a"), b"$1\r\n1\r\n:1\r\n")
    together = GET_A + command("EXISTS", "a")
    assert world.member.queries == [together, WATCH_A, together]


@pytest.mark.parametrize(
    ("write", "reply"),
    [
        (SET_A, OK),
        (command("INCR", "a"), b":1\r\n"),
        (command("MSET", "c", "1", "a", "1"), OK),
        (command("RENAME", "b", "a"), OK),
        (command("COPY", "b", "a"), b":1\r\n"),
    ],
)
async def test_an_own_write_that_makes_the_key_is_a_change(
    client: RawClient, other: RawClient, write: bytes, reply: bytes
) -> None:
    await client.ask(command("SET", "b", "1") + WATCH_A, OK * 2)
    await client.ask(write, reply)
    await other.ask(DEL_A, b":1\r\n")
    await client.ask(TRY, NOTHING)


@pytest.mark.parametrize(
    ("write", "reply"),
    [
        (command("DEL", "a"), b":1\r\n"),
        (command("UNLINK", "a", "b"), b":1\r\n"),
        (command("GETDEL", "a"), b"$1\r\n1\r\n"),
        (command("GETEX", "a"), b"$1\r\n1\r\n"),
        (command("EXPIRE", "a", "10"), b":1\r\n"),
        (command("PERSIST", "a"), b":0\r\n"),
        (command("SET", "a", "2", "NX"), NULL),
        (command("SET", "a", "2", "GET"), b"$1\r\n1\r\n"),
        (command("MSETNX", "c", "1", "a", "1"), b":0\r\n"),
        (command("SETRANGE", "a", "x", "y"), b"-ERR value is not an integer or out of range\r\n"),
    ],
)
async def test_an_own_write_tells_of_a_key_that_others_have_made(
    client: RawClient, other: RawClient, write: bytes, reply: bytes
) -> None:
    await client.ask(WATCH_A, OK)
    await other.ask(SET_A, OK)
    await client.ask(write, reply)
    await other.send(DEL_A + command("ECHO", "end"))
    await other.receive_until(b"end\r\n")
    await client.ask(TRY, NOTHING)


async def test_so_does_a_write_of_a_session(client: RawClient, other: RawClient) -> None:
    await client.ask(command("QUORATE.SESSION", "OPEN"), b":1\r\n")
    await client.ask(WATCH_A, OK)
    await other.ask(SET_A, OK)
    await client.ask(command("QUORATE.ONCE", "1", "1", "DEL", "a"), b":1\r\n")
    await client.ask(command("QUORATE.ONCE", "1", "1", "DEL", "a"), b":1\r\n")
    await client.ask(TRY, NOTHING)


@pytest.mark.parametrize(
    "write",
    [
        *(command(name, "a") for name in ("DEL", "UNLINK", "GETDEL", "GETEX", "PERSIST")),
        command("EXPIRE", "a", "10"),
        command("SET", "a", "1", "XX"),
        command("SET", "a", "1", "WRONG"),
        command("SETRANGE", "a", "0", ""),
        command("MSETNX", "a", "1", "there", "1"),
        command("COPY", "a", "b"),
        command("RENAME", "a", "b"),
        command("SET", "owner", "a"),
    ],
)
async def test_an_own_write_that_makes_no_such_key_is_no_change(
    client: RawClient, write: bytes
) -> None:
    await client.ask(command("SET", "there", "1") + WATCH_A, OK * 2)
    await client.send(write + command("ECHO", "end"))
    await client.receive_until(b"end\r\n")
    await client.ask(TRY, DONE)


async def test_what_was_refused_elsewhere_has_seen_nothing(world: World, client: RawClient) -> None:
    await client.ask(command("READONLY") + WATCH_A, OK * 2)
    leading = world.member.topology
    world.member.follow(1)
    await client.ask(SET_A, b"-MOVED 15495 10.0.0.2:7001\r\n")
    world.member.topology = leading
    world.member.error = NoLeaderError("none was found")
    await client.send(GET_A + SET_A + command("ECHO", "end"))
    assert (await client.receive_until(b"end\r\n")).count(b"-CLUSTERDOWN") == 2
    world.member.error = None
    await client.ask(TRY, DONE)


async def test_a_walk_over_all_keys_is_not_asked_what_it_has_shown(
    client: RawClient, other: RawClient
) -> None:
    await client.ask(WATCH_A, OK)
    await other.ask(SET_A, OK)
    await client.ask(command("KEYS", "*"), b"*1\r\n$1\r\na\r\n")
    await other.ask(DEL_A, b":1\r\n")
    await client.ask(TRY, DONE)


async def test_a_key_that_is_too_costly_to_ask_for_counts_as_changed(
    client: RawClient, other: RawClient
) -> None:
    keys = ("a", "b", "c")
    await client.ask(command("WATCH", *keys), OK)
    for key in keys:
        await other.ask(command("SET", key, "1" * (14 << 20)), OK)
    await client.ask(command("EXISTS", *keys), b":3\r\n")
    await other.ask(command("DEL", *keys), b":3\r\n")
    await client.ask(TRY, NOTHING)


async def test_it_is_so_in_the_other_protocol(client: RawClient, other: RawClient) -> None:
    await client.send(command("HELLO", "3"))
    await client.receive_until(b"modules\r\n*0\r\n")
    await client.ask(WATCH_A + GET_A, OK + b"_\r\n")
    await other.ask(SET_A, OK)
    await client.ask(GET_A, b"$1\r\n1\r\n")
    await other.ask(DEL_A, b":1\r\n")
    await client.ask(TRY, OK + QUEUED + b"_\r\n")


SET_SOON_GONE = command("SET", "a", "1", "PX", "100")


def pass_time(world: World, milliseconds: int) -> None:
    """Let the log's time move."""
    world.member.time_ms += milliseconds
    world.member.service.advance(world.member.position, world.member.time_ms)


@pytest.mark.parametrize("look", [command("EXISTS", "a"), b""])
async def test_a_key_whose_time_has_come_may_go_after_watch(
    world: World, client: RawClient, look: bytes
) -> None:
    await client.ask(SET_SOON_GONE, OK)
    world.member.idle_ms = 101  # the log's time lags behind
    await client.ask(WATCH_A, OK)
    pass_time(world, 101)
    await client.ask(look + TRY, (b":0\r\n" if look else b"") + DONE)


async def test_a_key_whose_time_has_come_may_stay_for_a_moment(
    world: World, client: RawClient
) -> None:
    await client.ask(SET_SOON_GONE, OK)
    world.member.idle_ms = 101
    await client.ask(WATCH_A + TRY, OK + DONE)


async def test_a_key_that_was_read_and_then_goes_has_changed(
    world: World, client: RawClient
) -> None:
    await client.ask(SET_SOON_GONE, OK)
    world.member.idle_ms = 101
    await client.ask(WATCH_A + GET_A, OK + b"$1\r\n1\r\n")
    pass_time(world, 101)
    await client.ask(TRY, NOTHING)


async def test_a_key_that_expires_after_watch_has_changed(world: World, client: RawClient) -> None:
    await client.ask(SET_SOON_GONE + WATCH_A, OK * 2)
    pass_time(world, 101)
    await client.ask(command("EXISTS", "a") + TRY, b":0\r\n" + NOTHING)


@pytest.mark.parametrize("change", [SET_A, command("PERSIST", "a"), command("EXPIRE", "a", "9")])
async def test_a_key_whose_time_has_come_may_not_change(
    world: World, client: RawClient, other: RawClient, change: bytes
) -> None:
    await client.ask(SET_SOON_GONE, OK)
    world.member.idle_ms = 101
    await client.ask(WATCH_A, OK)
    await other.send(change)
    await other.receive_until(b"\r\n")
    await client.ask(TRY, NOTHING)


async def test_a_read_of_this_members_own_state_is_one_too(
    world: World, client: RawClient, other: RawClient
) -> None:
    await client.ask(command("READONLY") + WATCH_A, OK * 2)
    await other.ask(SET_A, OK)
    leading = world.member.topology
    world.member.follow(1, "ELECTION")
    await client.ask(GET_A, b"$1\r\n1\r\n")
    assert world.member.stale == [GET_A + command("EXISTS", "a")]
    world.member.topology = leading
    await other.ask(DEL_A, b":1\r\n")
    await client.ask(TRY, NOTHING)


@pytest.mark.parametrize("seed", range(10))
async def test_a_transaction_that_is_done_finds_what_was_read(
    client: RawClient, other: RawClient, seed: int
) -> None:
    """Whatever others do: who watches keys and then reads them writes on what is still so."""
    chance = random.Random(seed)
    keys = ("a", "b", "c")
    done = 0
    for _ in range(60):
        await client.ask(command("WATCH", *keys), OK)
        read: dict[str, bytes] = {}
        for _ in range(chance.randrange(6)):
            key = chance.choice(keys)
            if chance.random() < 0.5:
                read[key] = await value(client, chance.choice(["GET", "GETEX"]), key)
            else:
                await other.send(chance.choice([command("SET", key, "1"), command("DEL", key)]))
                await other.receive_until(b"\r\n")
        now = {key: await value(other, "GET", key) for key in read}
        await client.send(MULTI + command("GET", "a") + EXEC + command("ECHO", "end"))
        if NULL_ARRAY not in await client.receive_until(b"end\r\n"):
            done += 1
            assert now == read
    assert 0 < done < 60


async def value(client: RawClient, name: str, key: str) -> bytes:
    await client.send(command(name, key))
    reply = await client.receive(5)
    return b"" if reply == NULL else reply + await client.receive(2)
