"""MULTI and EXEC, from the socket to a real state machine."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.limits import MAX_TRANSACTION_COMMANDS
from quorate.keyvalue.port.listener import ClientPortLimits
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.replies import split_array
from tests.support.client_port_world import RawClient, World, command

OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
MULTI, EXEC, DISCARD = command("MULTI"), command("EXEC"), command("DISCARD")
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


@pytest.fixture
async def other(world: World) -> RawClient:
    return await world.connect()


async def test_a_transaction_is_one_request(world: World, client: RawClient) -> None:
    body = command("SET", "a", "1") + command("INCR", "a") + command("GET", "a")
    await client.ask(MULTI, OK)
    await client.ask(body, QUEUED * 3)
    assert world.member.commands == []
    await client.ask(EXEC, b"*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n")
    assert world.member.commands == [body]


async def test_a_transaction_in_one_chunk_with_others_around_it(client: RawClient) -> None:
    data = command("SET", "a", "1") + MULTI + command("INCR", "a") + EXEC + command("GET", "a")
    await client.ask(data, OK + OK + QUEUED + b"*1\r\n:2\r\n" + b"$1\r\n2\r\n")


async def test_a_transaction_of_reads_is_a_query(world: World, client: RawClient) -> None:
    await client.ask(MULTI + command("GET", "a") + EXEC, OK + QUEUED + b"*1\r\n$-1\r\n")
    assert world.member.commands == []
    assert world.member.queries == [command("GET", "a")]


async def test_an_empty_transaction_is_answered_here(world: World, client: RawClient) -> None:
    await client.ask(MULTI + EXEC, OK + b"*0\r\n")
    assert world.member.commands == world.member.queries == []


async def test_discard_forgets_the_commands(world: World, client: RawClient) -> None:
    await client.ask(MULTI + command("SET", "a", "1") + DISCARD, OK + QUEUED + OK)
    await client.ask(EXEC + DISCARD, b"-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n")
    assert world.member.commands == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (command("NOSUCH"), b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
        (command("GET"), b"-ERR wrong number of arguments for 'get' command\r\n"),
        (command("CLIENT", "x"), b"-ERR unknown subcommand 'x'. Try CLIENT HELP.\r\n"),
    ],
)
async def test_exec_refuses_after_a_command_that_could_not_be_queued(
    world: World, client: RawClient, wrong: bytes, error: bytes
) -> None:
    await client.ask(MULTI + wrong + command("SET", "a", "1"), OK + error + QUEUED)
    await client.ask(EXEC, ABORTED)
    assert world.member.commands == []
    await client.ask(command("SET", "a", "1"), OK)


async def test_an_exec_with_arguments_ends_the_transaction(client: RawClient) -> None:
    why = b"Transaction discarded because of: wrong number of arguments for 'exec' command"
    aborted = b"-EXECABORT %b\r\n" % why
    await client.ask(MULTI + command("EXEC", "x") + command("PING"), OK + aborted + b"+PONG\r\n")


async def test_an_error_while_it_runs_is_one_reply_of_it(client: RawClient) -> None:
    await client.ask(command("SET", "a", "x"), OK)
    await client.ask(MULTI + command("INCR", "a") + command("SET", "a", "1"), OK + QUEUED * 2)
    await client.ask(EXEC, b"*2\r\n-ERR value is not an integer or out of range\r\n+OK\r\n")


async def test_what_may_not_stand_in_a_transaction(client: RawClient) -> None:
    await client.ask(MULTI + MULTI, OK + b"-ERR MULTI calls can not be nested\r\n")
    await client.ask(command("WATCH", "a"), b"-ERR WATCH inside MULTI is not allowed\r\n")
    await client.ask(command("SET", "a", "1") + EXEC, QUEUED + b"*1\r\n+OK\r\n")


async def test_connection_commands_are_answered_in_their_places(
    world: World, client: RawClient
) -> None:
    body = command("PING") + command("SET", "a", "1") + command("ECHO", "x") + command("GET", "a")
    await client.ask(MULTI + body, OK + QUEUED * 4)
    await client.ask(EXEC, b"*4\r\n+PONG\r\n+OK\r\n$1\r\nx\r\n$1\r\n1\r\n")
    assert world.member.commands == [command("SET", "a", "1") + command("GET", "a")]
    await client.ask(MULTI + command("PING") + EXEC, OK + QUEUED + b"*1\r\n+PONG\r\n")


async def test_quit_and_reset_are_not_queued(client: RawClient, other: RawClient) -> None:
    await client.ask(MULTI + command("RESET") + EXEC, OK + b"+RESET\r\n-ERR EXEC without MULTI\r\n")
    await other.send(MULTI + command("QUIT"))
    assert await other.rest() == OK + OK


async def test_a_transaction_has_a_largest_size(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(request_bytes=1000)) as world:
        client = await world.connect()
        big = command("SET", "a", "1" * 400)
        error = b"-ERR the transaction is larger than this member takes\r\n"
        await client.ask(MULTI + big * 3, OK + QUEUED * 2 + error)
        await client.ask(EXEC + command("PING"), ABORTED + b"+PONG\r\n")


async def test_a_transaction_has_a_largest_number_of_commands(
    world: World, client: RawClient
) -> None:
    most = MAX_TRANSACTION_COMMANDS
    incr = command("INCR", "a")
    await client.ask(MULTI + incr * most, OK + QUEUED * most)
    await client.send(EXEC)
    await client.receive_until(b":%d\r\n" % most)
    error = b"-ERR a transaction may have %d commands\r\n" % most
    await client.ask(MULTI + incr * (most + 2), OK + QUEUED * most + error + QUEUED)
    await client.ask(EXEC + command("GET", "a"), ABORTED + b"$5\r\n%d\r\n" % most)
    assert len(world.member.commands) == 1


async def test_a_transaction_that_has_failed_holds_nothing(world: World, client: RawClient) -> None:
    big = command("SET", "a", "1" * 100_000)
    await client.ask(MULTI + big, OK + QUEUED)
    (one,) = world.port.state.clients.values()
    assert one.client.transaction is not None
    await client.send(command("NOSUCH") + big * 3 + command("PING"))
    await client.receive_until(QUEUED * 4)
    assert one.client.transaction.body() == b""
    await client.ask(EXEC, ABORTED)


# Replies inside replies ----------------------------------------------------------------------


def encoded() -> st.SearchStrategy[bytes]:
    leaf = st.one_of(
        st.binary(max_size=5).map(resp.bulk),
        st.integers().map(resp.integer),
        st.sampled_from([b"+OK\r\n", b"-ERR x\r\n", b"$-1\r\n", b"_\r\n", b"*-1\r\n", b",1.5\r\n"]),
        st.just(resp.verbatim(b"a\r\nb", resp3=True)),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(resp.array),
            st.lists(st.tuples(inner, inner), max_size=2).map(
                lambda pairs: resp.mapping(pairs, resp3=True)
            ),
            st.lists(inner, max_size=2).map(lambda items: resp.set_of(items, resp3=True)),
        ),
        max_leaves=8,
    )


@given(st.lists(encoded(), max_size=5))
def test_an_array_is_split_into_what_it_was_made_of(replies: list[bytes]) -> None:
    assert split_array(resp.array(replies)) == replies


@pytest.mark.parametrize("reply", [b"*-1\r\n", b"_\r\n", b"-ERR x\r\n", b"+OK\r\n"])
def test_what_is_no_array_is_not_split(reply: bytes) -> None:
    assert split_array(reply) is None
