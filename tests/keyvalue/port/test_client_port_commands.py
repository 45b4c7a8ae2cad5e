"""Commands that the connection answers: what they say, and what they change."""

import attrs
import pytest

from quorate.keyvalue.commands.table import Kind, all_commands
from quorate.keyvalue.conversation import connection_commands
from quorate.keyvalue.protocol import resp
from quorate.node.requests.request import RequestKind
from quorate.node.requests.status import MemberAddress
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"


async def reply_to(client: RawClient, *arguments: str) -> bytes:
    """One encoded reply."""
    await client.send(command(*arguments) + command("ECHO", "the end"))
    data = await client.receive_until(b"the end\r\n")
    return data.removesuffix(b"$7\r\nthe end\r\n")


async def text_of(client: RawClient, *arguments: str) -> str:
    """The text of one bulk or verbatim reply."""
    (text,) = resp.parse_replies_untrusted(await reply_to(client, *arguments))
    assert isinstance(text, bytes)
    return text.decode()


async def fields_of(client: RawClient, *arguments: str) -> dict[str, str]:
    text = await text_of(client, *arguments)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def not_integer(what: str = "value") -> bytes:
    return b"-ERR %b is not an integer or out of range\r\n" % what.encode()


NO_PASSWORD = b"-ERR AUTH <password> called without any password configured"


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("PING", b"+PONG\r\n"),
        ("PING hello", b"$5\r\nhello\r\n"),
        ("PING a b", b"-ERR wrong number of arguments for 'ping' command\r\n"),
        ("ECHO x", b"$1\r\nx\r\n"),
        ("SELECT 0", OK),
        ("SELECT 1", b"-ERR DB index is out of range\r\n"),
        ("SELECT x", not_integer()),
        ("SELECT 99999999999999999999", not_integer()),
        ("AUTH x", NO_PASSWORD),
        ("AUTH default x", OK),
        ("AUTH a b c", b"-ERR syntax error\r\n"),
        ("AUTH someone x", b"-WRONGPASS "),
        ("HELLO 4", b"-NOPROTO "),
        ("HELLO x", not_integer("Protocol version")),
        ("HELLO 3 AUTH default x", b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
        ("HELLO 3 NOSUCH", b"-ERR Syntax error in HELLO option 'NOSUCH'\r\n"),
        ("HELLO 2 SETNAME a\nb", b"-ERR Client names cannot contain"),
        ("ASKING", OK),
        ("READWRITE", OK),
        ("UNWATCH", OK),
        ("TIME", b"*2\r\n$10\r\n1700000000\r\n$6\r\n123000\r\n"),
        ("LASTSAVE", b":1699999000\r\n"),
        ("WAIT x 0", not_integer()),
        ("WAIT 0 x", not_integer("timeout")),
        ("WAIT 0 -1", b"-ERR timeout is negative\r\n"),
        ("CONFIG GET save", b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        (
            "CONFIG GET append*",
            b"*4\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n$10\r\nappendonly\r\n",
        ),
        (
            "CONFIG GET cluster-require-*",
            b"*2\r\n$29\r\ncluster-require-full-coverage\r\n$3\r\nyes\r\n",
        ),
        ("CONFIG GET nosuch", b"*0\r\n"),
        ("CONFIG SET nosuch 1", b"-ERR Unknown option or number of arguments for CONFIG SET"),
        ("CONFIG SET databases 2", b"-ERR CONFIG SET failed (possibly related to argument"),
        ("CONFIG SET databases 1 SAVE", b"-ERR syntax error\r\n"),
        ("CONFIG SET appendonly YES", OK),
        ("CONFIG GET" + " *" * 511, b"-ERR this command takes 512 arguments at most\r\n"),
        ("CONFIG GET " + "*" * 1025, b"-ERR a pattern may have 1024 bytes\r\n"),
        ("CONFIG REWRITE", b"-ERR The server is running without a config file\r\n"),
        ("CLIENT ID", b":1\r\n"),
        ("CLIENT GETNAME", b"$-1\r\n"),
        ("CLIENT SETNAME a\tb", b"-ERR Client names cannot contain"),
        ("CLIENT SETINFO lib-color red", b"-ERR Unrecognized option 'lib-color'\r\n"),
        ("CLIENT SETINFO LIB-NAME a\nb", b"-ERR lib-name cannot contain"),
        ("CLIENT NO-EVICT on", OK),
        ("CLIENT NO-TOUCH x", b"-ERR syntax error\r\n"),
        ("CLIENT REPLY ON", OK),
        ("CLIENT TRACKING OFF", OK),
        ("CLIENT TRACKING ON", b"-ERR "),
        (
            "CLIENT TRACKINGINFO",
            b"*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n",
        ),
        ("CLIENT GETREDIR", b":-1\r\n"),
        ("CLIENT UNBLOCK 5", b":0\r\n"),
        ("CLIENT UNBLOCK x", not_integer()),
        ("CLIENT KILL 1.2.3.4:5", b"-ERR No such client\r\n"),
        ("CLIENT KILL ID 99", b":0\r\n"),
        ("CLIENT KILL ID 99 x", b"-ERR syntax error\r\n"),
        ("CLIENT KILL COLOR red", b"-ERR syntax error\r\n"),
        ("CLIENT LIST TYPE x", b"-ERR Unknown client type 'x'\r\n"),
        ("CLIENT LIST ID x", b"-ERR Invalid client ID\r\n"),
        ("CLIENT LIST x", b"-ERR syntax error\r\n"),
        ("CLIENT LIST TYPE pubsub", b"$0\r\n\r\n"),
        ("CLIENT MAINT_NOTIFICATIONS ON", b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'"),
        ("CLIENT HELP", b"*"),
        ("CONFIG HELP", b"*"),
        ("COMMAND COUNT", b":"),
        ("COMMAND GETKEYS SET a 1", b"*1\r\n$1\r\na\r\n"),
        ("MODULE LIST", b"-ERR unknown command 'MODULE'"),
    ],
)
async def test_short_replies(client: RawClient, words: str, reply: bytes) -> None:
    assert (await reply_to(client, *words.split(" "))).startswith(reply)


async def test_an_idle_member_tells_the_present(world: World, client: RawClient) -> None:
    world.member.idle_ms = 60_000
    await client.send(command("TIME"))
    expected = b"*2\r\n$10\r\n1700000060\r\n$6\r\n123000\r\n"
    assert await client.receive(len(expected)) == expected
    facts = await fields_of(client, "INFO", "server")
    assert facts["server_time_usec"] == "1700000060123000"


def test_every_connection_command_has_an_answer() -> None:
    names = {spec.name for spec in all_commands() if spec.kind is Kind.CONNECTION}
    handlers = vars(connection_commands)["_HANDLERS"]
    elsewhere = {"auth", "hello", "exec", "watch"}
    elsewhere |= {"quorate.control", "quorate.once", "quorate.request"}
    elsewhere |= {"quorate.watch", "quorate.unwatch"}
    assert names - elsewhere == set(handlers)


async def test_hello_greets_and_names(client: RawClient) -> None:
    (greeting,) = resp.parse_replies_untrusted(
        await reply_to(client, "HELLO", "3", "SETNAME", "me")
    )
    assert greeting == {
        b"server": b"redis",
        b"version": b"7.4.0",
        b"proto": 3,
        b"id": 1,
        b"mode": b"cluster",
        b"role": b"master",
        b"modules": [],
    }
    assert await reply_to(client, "CLIENT", "GETNAME") == b"$2\r\nme\r\n"
    assert await reply_to(client, "RESET") == b"+RESET\r\n"
    assert await reply_to(client, "CLIENT", "GETNAME") == b"$-1\r\n"


async def test_hello_without_a_version_keeps_it(client: RawClient) -> None:
    assert (await reply_to(client, "HELLO")).startswith(b"*14\r\n")
    await reply_to(client, "HELLO", "3")
    assert (await reply_to(client, "HELLO")).startswith(b"%7\r\n")
    assert (await reply_to(client, "HELLO", "2")).startswith(b"*14\r\n")


async def test_a_client_sees_all_clients(world: World, client: RawClient) -> None:
    other = await world.connect()
    await other.ask(command("CLIENT", "SETNAME", "other"), OK)
    for option, value in (("LIB-NAME", "lib"), ("LIB-VER", "1.2")):
        await other.ask(command("CLIENT", "SETINFO", option, value), OK)
    await other.ask(command("READONLY") + command("MULTI"), OK * 2)
    await other.ask(command("SET", "a", "1"), b"+QUEUED\r\n")
    mine, others = (await text_of(client, "CLIENT", "LIST")).splitlines()
    assert mine.startswith("id=1 addr=127.0.0.1:")
    assert " cmd=client|list " in mine
    facts = dict(word.split("=") for word in others.split(" "))
    assert facts["name"] == "other"
    assert facts["multi"] == "1"
    assert facts["flags"] == "xr"
    assert (facts["lib-name"], facts["lib-ver"], facts["resp"]) == ("lib", "1.2", "2")
    assert (await text_of(client, "CLIENT", "INFO")).startswith("id=1 ")
    assert (await text_of(client, "CLIENT", "LIST", "ID", "2", "7")).startswith("id=2 ")
    assert len((await text_of(client, "CLIENT", "LIST", "TYPE", "normal")).splitlines()) == 2


async def test_clients_are_ended_by_address_or_by_filter(world: World, client: RawClient) -> None:
    second, third, fourth = [await world.connect() for _ in range(3)]
    for one in (second, third, fourth):
        await one.ask(command("PING"), b"+PONG\r\n")
    host, port = second.stream.socket.getsockname()
    assert await reply_to(client, "CLIENT", "KILL", f"{host}:{port}") == OK
    assert await second.rest() == b""
    assert await reply_to(client, "CLIENT", "KILL", "ID", "3", "USER", "default") == b":1\r\n"
    assert await third.rest() == b""
    assert await reply_to(client, "CLIENT", "KILL", "TYPE", "normal") == b":1\r\n"
    assert await fourth.rest() == b""
    await client.send(command("CLIENT", "KILL", "ID", "1", "SKIPME", "no") + command("PING"))
    assert await client.rest() == b":1\r\n"


async def test_a_killed_clients_parked_request_is_withdrawn(
    world: World, client: RawClient
) -> None:
    victim = await world.connect()
    world.member.parked = []
    await victim.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    await client.ask(command("CLIENT", "KILL", "ID", "2"), b":1\r\n")
    world.member.release()
    assert world.member.commands == []


# INFO ----------------------------------------------------------------------------------------


async def test_wait_asks_the_leader_only_for_more_than_a_quorum_has(
    world: World, client: RawClient
) -> None:
    await client.ask(command("WAIT", "0", "0") + command("WAIT", "1", "0"), b":1\r\n:1\r\n")
    multi = b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"
    await client.ask(command("MULTI") + command("WAIT", "2", "0") + command("EXEC"), multi)
    world.member.parked = []
    await client.send(command("WAIT", "2", "50") + command("PING"))
    await world.until(lambda: world.member.parked)
    (request,) = world.member.parked
    assert (request.kind, request.payload) == (RequestKind.CONTROL, b"wait 2 50")
    request.done(b"2")
    assert await client.receive(11) == b":2\r\n+PONG\r\n"


async def test_wait_does_not_take_a_standby_for_a_part_of_the_quorum(
    world: World, client: RawClient
) -> None:
    standbys = tuple(MemberAddress(n, "10.0.0.9", 7000 + n, standby=True) for n in (3, 4))
    members = (*world.member.topology.members, *standbys)
    world.member.topology = attrs.evolve(world.member.topology, members=members)
    status = world.member.status()
    unknown = tuple(attrs.evolve(status.peers[1], member_id=n) for n in (3, 4))
    status = attrs.evolve(status, peers=(*status.peers, *unknown))
    world.member.status = lambda: status  # type: ignore[method-assign]
    await client.ask(command("WAIT", "1", "0"), b":1\r\n")
    world.member.parked = []
    await client.send(command("WAIT", "2", "50"))
    await world.until(lambda: world.member.parked)
    assert world.member.parked[0].payload == b"wait 2 50"


async def test_info_has_all_sections(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "1"), OK)
    text = await text_of(client, "INFO")
    heads = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    assert " ".join(heads) == (
        "Server Clients Memory Persistence Stats Replication Raft Cpu Cluster Keyspace"
    )
    facts = await fields_of(client, "INFO", "everything")
    assert facts["redis_version"] == "7.4.0"
    assert facts["tcp_port"] == str(world.address[1])
    assert facts["connected_clients"] == "1"
    assert int(facts["used_memory"]) > 1_000_000
    assert facts["db0"] == "keys=1,expires=0,avg_ttl=0"
    assert facts["raft_state"] == "CLOSED"
    assert facts["raft_commit_position"] == str(world.member.position)
    assert facts["raft_peer2"] == "connected=0,append_position=-1,last_heard_s="
    assert facts["cluster_enabled"] == "1"


async def test_info_tells_that_the_last_snapshot_failed(world: World, client: RawClient) -> None:
    facts = await fields_of(client, "INFO", "persistence")
    assert facts["rdb_last_bgsave_status"] == "ok"
    status = attrs.evolve(world.member.status(), snapshot_failure="no room")
    world.member.status = lambda: status  # type: ignore[method-assign]
    facts = await fields_of(client, "INFO", "persistence")
    assert facts["rdb_last_bgsave_status"] == "err"


async def test_info_of_chosen_sections(client: RawClient) -> None:
    text = await text_of(client, "INFO", "keyspace", "CPU", "nosuch")
    assert [line for line in text.splitlines() if line.startswith("#")] == ["# Cpu", "# Keyspace"]
    assert await text_of(client, "INFO", "nosuch") == ""


async def test_info_tells_the_role(world: World, client: RawClient) -> None:
    facts = await fields_of(client, "INFO", "replication")
    assert (facts["role"], facts["connected_slaves"]) == ("master", "1")
    assert facts["slave0"].startswith("ip=10.0.0.2,port=7001,state=online,offset=0,")
    world.member.follow(1)
    facts = await fields_of(client, "INFO", "replication")
    assert (facts["role"], facts["master_host"], facts["master_port"]) == (
        "slave",
        "10.0.0.2",
        "7001",
    )
    assert facts["master_link_status"] == "up"
    world.member.follow(None)
    facts = await fields_of(client, "INFO", "replication")
    assert (facts["master_host"], facts["master_link_status"]) == ("", "down")


async def test_info_counts_and_resetstat_forgets(client: RawClient) -> None:
    await client.ask(command("SET", "a", "1") * 10, OK * 10)
    facts = await fields_of(client, "INFO", "stats")
    assert facts["total_commands_processed"] == "12"
    assert await reply_to(client, "CONFIG", "RESETSTAT") == OK
    facts = await fields_of(client, "INFO", "stats")
    assert facts["total_commands_processed"] == "2"


async def test_a_mistake_in_a_command_ends_neither_the_client_nor_the_member(
    world: World, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    world.member.status = broken  # type: ignore[method-assign,assignment]
    reply = await reply_to(client, "INFO")
    assert reply == b"-ERR internal error in 'info', see the member's log\r\n"
    assert "ZeroDivisionError" in caplog.text
    await client.ask(command("PING"), b"+PONG\r\n")
