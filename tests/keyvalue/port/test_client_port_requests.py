"""QUORATE.REQUEST, from the socket to a real state machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.keyvalue.conversation import request_command
from quorate.keyvalue.conversation.request_command import parse_request_untrusted
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser
from quorate.keyvalue.protocol.resp import CommandError
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"
OPEN = command("QUORATE.SESSION", "OPEN")
RUN, TRANSACTION = 0, 2


def lines(*texts: str) -> bytes:
    return b"".join(command(*text.split()) for text in texts)


def request(
    *texts: str, session: int = 0, sequence: int = 0, flags: int = RUN, payload: bytes = b""
) -> bytes:
    words = (b"QUORATE.REQUEST", b"%d" % session, b"%d" % sequence, b"%d" % flags)
    return resp.pack((*words, payload or lines(*texts)))


async def reply_line(client: RawClient, data: bytes) -> bytes:
    await client.send(data)
    return await client.receive_until(b"\r\n")


async def test_commands_are_one_entry_and_their_replies_one_string(
    world: World, client: RawClient
) -> None:
    texts = ("SET a 1", "incr a", "GET a", "APPEND", "GET b")
    replies = b"+OK\r\n:2\r\n$1\r\n2\r\n$-1\r\n"
    await client.ask(request(*texts[:3], "GET b"), resp.bulk(replies))
    assert world.member.commands == [lines(*texts[:3], "GET b")]
    assert await reply_line(client, request(*texts)) == (
        b"-ERR command 4: wrong number of arguments for 'append' command\r\n"
    )
    not_a_number = b"-ERR value is not an integer or out of range\r\n"
    replies = b":1\r\n+OK\r\n" + not_a_number
    await client.ask(request("INCR x", "SET x abc", "INCR x"), resp.bulk(replies))


async def test_reads_alone_are_a_query(world: World, client: RawClient) -> None:
    await client.ask(request("TTL a", "OBJECT ENCODING a"), resp.bulk(b":-2\r\n$-1\r\n"))
    await client.ask(request("KEYS *"), resp.bulk(b"*0\r\n"))
    assert not world.member.commands
    await client.ask(OPEN, b":1\r\n")
    await client.ask(request("GET a", session=1, sequence=1), resp.bulk(b"$-1\r\n"))
    assert world.member.commands == [OPEN, lines("GET a")], "its reply must be kept"


async def test_the_replies_are_in_the_protocol_of_the_connection(client: RawClient) -> None:
    await client.send(command("HELLO", "3") + command("ECHO", "end"))
    await client.receive_until(b"end\r\n")
    await client.ask(request("GET a", flags=TRANSACTION), resp.bulk(b"*1\r\n_\r\n"))


async def test_a_stamped_request_is_done_once(world: World, client: RawClient) -> None:
    await client.ask(OPEN, b":1\r\n")
    twice = request("INCR a", "INCR b", session=1, sequence=1)
    for one in (client, await world.connect()):
        await one.ask(twice, resp.bulk(b":1\r\n:1\r\n"))
    for number in (2, 2, 3):
        reply = resp.bulk(b"*1\r\n:%d\r\n" % number)
        data = request("INCR a", session=1, sequence=number, flags=TRANSACTION)
        await client.ask(data, reply)


async def test_a_request_that_was_not_done_is_answered_with_an_error(
    world: World, client: RawClient
) -> None:
    long = request("SET a 1", "GETRANGE a 0 -1", session=1, sequence=1)
    assert (await reply_line(client, long)).startswith(b"-NOSESSION ")
    session = int((await reply_line(client, OPEN))[1:])
    await client.ask(command("SET", "a", "x" * 20_000), OK)
    long = request("GETDEL a", session=session, sequence=1)
    await client.ask(long, resp.bulk(resp.bulk(b"x" * 20_000)))
    assert (await reply_line(client, long)).startswith(b"-FORGOTTEN this command was applied, once")
    for error, word in (UnknownOutcomeError("lost"), b"-UNKNOWN "), (NoLeaderError(), b"-CLUSTERD"):
        world.member.error = error
        assert (await reply_line(client, request("SET a 1", "SET b 1"))).startswith(word)


async def test_a_transaction_runs_if_its_keys_are_unchanged(
    world: World, client: RawClient
) -> None:
    await client.ask(command("SET", "a", "1"), OK)
    revision = 1
    body = "SET a 2", "GET b", "QUORATE.POSITION"
    position = world.member.position + 1
    one = request(f"WATCH a {revision} b 0", *body, flags=TRANSACTION)
    await client.ask(one, resp.bulk(b"*3\r\n+OK\r\n$-1\r\n:%d\r\n" % position))
    await client.ask(one, resp.bulk(b"*-1\r\n"))
    reads = request(f"watch a {position} b 0?", "GET a", flags=TRANSACTION)
    await client.ask(reads, resp.bulk(b"*1\r\n$1\r\n2\r\n"))
    assert len(world.member.commands) == 3, "reads alone are a query"
    await client.ask(request(f"WATCH a {revision}", flags=TRANSACTION), resp.bulk(b"*-1\r\n"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("1", "0", "0"), b"a session and a sequence"),
        (("0", "1", "0"), b"a session and a sequence"),
        (("-1", "-1", "0"), b"a session and a sequence"),
        (("x", "1", "0"), b"a session and a sequence"),
        (("0", "0", "1"), b"flags are 0"),
        (("0", "0", "4"), b"flags are 0"),
        (("0", "0", "x"), b"flags are 0"),
    ],
)
async def test_malformed_numbers_are_refused(
    world: World, client: RawClient, words: tuple[str, ...], text: bytes
) -> None:
    found = await reply_line(client, command("QUORATE.REQUEST", *words, "*1\r\n$6\r\nDBSIZE\r\n"))
    assert found.startswith(b"-ERR " + text)
    assert not world.member.commands + world.member.queries


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", b"the payload of QUORATE.REQUEST has no command"),
        (b"GET a\r\n", b"the payload of QUORATE.REQUEST is not RESP"),
        (b"*0\r\n", b"the payload of QUORATE.REQUEST is not RESP"),
        (b"*1\r\n$6\r\nDBSIZE\r", b"the payload of QUORATE.REQUEST is not RESP"),
        (b"*1\r\n+DBSIZE\r\n", b"the payload of QUORATE.REQUEST is not RESP"),
        (b"*4294967295\r\n", b"the payload of QUORATE.REQUEST is not RESP"),
        (b"*2\r\n$3\r\nGET\r\n$99999\r\na\r\n", b"the payload of QUORATE.REQUEST is not RESP"),
        (lines("GET a", "NOSUCH a"), b"command 2: unknown command 'NOSUCH'"),
        (lines("PING"), b"command 1: PING is not allowed in QUORATE.REQUEST"),
        (lines("EXEC"), b"command 1: EXEC is not allowed"),
        (lines("WATCH a 1", "GET a"), b"command 1: WATCH is not allowed"),
        (lines("GET a", "ACL SETUSER x on"), b"command 2: ACL SETUSER is not allowed"),
        (lines("ACL DELUSER x"), b"command 1: ACL DELUSER is not allowed"),
        (lines("QUORATE.REQUEST 0 0 0 x"), b"command 1: QUORATE.REQUEST is not allowed"),
        (lines("QUORATE.ONCE 1 1 SET a 1"), b"command 1: QUORATE.ONCE is not allowed"),
        (lines("AUTH x y"), b"command 1: AUTH is not allowed"),
    ],
)
async def test_payloads_that_may_not_be_executed_are_refused(
    world: World, client: RawClient, payload: bytes, text: bytes
) -> None:
    data = resp.pack((b"QUORATE.REQUEST", b"0", b"0", b"0", payload))
    assert (await reply_line(client, data)).startswith(b"-ERR " + text)
    assert not world.member.commands + world.member.queries


@pytest.mark.parametrize("watch", ["WATCH", "WATCH a", "WATCH a x", "WATCH a 1 b", "WATCH a 1??"])
async def test_malformed_conditions_are_refused(client: RawClient, watch: str) -> None:
    found = await reply_line(client, request(watch, "GET a", flags=TRANSACTION))
    assert found.startswith(b"-ERR WATCH in QUORATE.REQUEST takes keys and revisions")


async def test_a_session_is_not_managed_by_its_own_commands(client: RawClient) -> None:
    await client.ask(request("QUORATE.SESSION OPEN"), resp.bulk(b":1\r\n"))
    text = b"-ERR command 2: QUORATE.SESSION needs a request without a session\r\n"
    data = request("INCR a", "quorate.session close 1", session=1, sequence=1)
    assert await reply_line(client, data) == text
    await client.ask(request("QUORATE.SESSION CLOSE 1"), resp.bulk(OK))


async def test_the_numbers_of_commands_and_arguments_are_bounded(
    world: World, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_command, "MAX_TRANSACTION_COMMANDS", 3)
    monkeypatch.setattr(request_command, "_MOST_ARGUMENTS", 10)
    monkeypatch.setattr(request_command, "RUN_BYTES", 64)
    assert await reply_line(client, request(*["GET a"] * 4)) == (
        b"-ERR a transaction may have 10000 commands\r\n"
    )
    too_many = b"-ERR the payload of QUORATE.REQUEST has more than "
    assert (await reply_line(client, request("DEL" + " a" * 9, "DEL a"))).startswith(too_many)
    await client.ask(
        request("SET b " + "x" * 1000, "DEL a", "DEL b"), resp.bulk(b"+OK\r\n:0\r\n:1\r\n")
    )
    assert len(world.member.commands) == 1


async def test_it_has_no_place_in_multi(client: RawClient) -> None:
    await client.ask(command("MULTI"), OK)
    text = b"-ERR QUORATE.REQUEST inside MULTI is not allowed\r\n"
    assert await reply_line(client, request("GET a")) == text
    assert (await reply_line(client, command("EXEC"))).startswith(b"-EXECABORT ")


async def test_a_watched_absent_key_counts_as_changed(client: RawClient) -> None:
    await client.ask(command("WATCH", "a"), OK)
    await client.ask(request("SET a 1", "DEL a"), resp.bulk(b"+OK\r\n:1\r\n"))
    await client.ask(
        command("MULTI") + command("GET", "a") + command("EXEC"), OK + b"+QUEUED\r\n*-1\r\n"
    )


async def test_a_client_that_knows_clusters_is_sent_to_the_leader(
    world: World, client: RawClient
) -> None:
    await client.send(command("CLUSTER", "SLOTS") + command("ECHO", "the end"))
    await client.receive_until(b"the end\r\n")
    world.member.follow(1)
    for flags in (RUN, TRANSACTION):
        found = await reply_line(client, request("QUORATE.POSITION", "SET a 1", flags=flags))
        assert found == b"-MOVED 15495 10.0.0.2:7001\r\n"
    assert (await reply_line(client, request("WATCH a 0", "DBSIZE", flags=2))).startswith(
        b"-MOVED "
    )
    await client.ask(command("READONLY"), OK)
    await client.ask(request("GET a", "DBSIZE"), resp.bulk(b"$-1\r\n:0\r\n"))
    assert world.member.stale == [lines("GET a", "DBSIZE")]
    assert (await reply_line(client, request("SET a 1"))).startswith(b"-MOVED ")


async def test_its_commands_are_counted(world: World, client: RawClient) -> None:
    await client.ask(request("SET a 1", "GET a"), resp.bulk(b"+OK\r\n$1\r\n1\r\n"))
    counted = world.port.state.counters.by_command
    assert [counted[name] for name in ("set", "get", "quorate.request")] == [1, 1, 1]


WHOLE = [lines("SET a 1"), lines("GET a"), lines("WATCH a 0"), lines("PING")]
PARTS = [b"*1\r\n", b"$3\r\n", b"\r\n", b"*0\r\n", b"*-1\r\n", b":1\r\n", b"*9999999\r\n"]
PIECES = st.sampled_from([*WHOLE, *PARTS])


@given(st.lists(PIECES | st.binary(max_size=8), max_size=6), st.sampled_from([b"0", b"2", b"1"]))
def test_any_payload_is_refused_or_means_the_same_to_the_state_machine(
    pieces: list[bytes], flags: bytes
) -> None:
    payload = b"".join(pieces)
    try:
        made = parse_request_untrusted([b"QUORATE.REQUEST", b"0", b"0", flags, payload])
    except CommandError:
        return
    commands = PayloadParser().parse_untrusted(made.payload)
    assert [words[0] for words in commands] == [words[0] for words in made.commands]
    assert len(list(made.specs())) == len(commands)
