"""What a connection answers by itself is what Redis answers, in its words."""

from quorate.keyvalue.protocol import resp
from tests.keyvalue.port.connection_replies import CONNECTION_REPLIES
from tests.support.client_port_world import RawClient, World, command

END = b"$7\r\nthe end\r\n"


async def answer(client: RawClient, line: str) -> bytes:
    asked = b"".join(command(*each.split()) for each in line.split(" ; "))
    await client.send(asked + command("ECHO", "the end"))
    return (await client.receive_until(END, chunk_bytes=1 << 20)).removesuffix(END)


async def test_replies_are_those_of_redis(client: RawClient) -> None:
    for line, reply in CONNECTION_REPLIES:
        await answer(client, "RESET")
        assert (line, await answer(client, line)) == (line, reply)


async def test_hello_takes_any_password_of_the_user_default(client: RawClient) -> None:
    greeting = await answer(client, "HELLO 3 AUTH default x SETNAME me")
    assert greeting.startswith(b"%7\r\n")
    assert await answer(client, "CLIENT GETNAME") == b"$2\r\nme\r\n"


async def test_a_missing_command_is_null_in_both_protocols(client: RawClient) -> None:
    assert await answer(client, "COMMAND INFO nosuch") == b"*1\r\n$-1\r\n"
    await answer(client, "HELLO 3")
    assert await answer(client, "COMMAND INFO nosuch") == b"*1\r\n_\r\n"


async def test_command_list_has_subcommands_and_count_has_none(client: RawClient) -> None:
    names = resp.parse_replies_untrusted(await answer(client, "COMMAND LIST"))[0]
    assert isinstance(names, list)
    assert all(name in names for name in (b"get", b"client", b"client|kill", b"config|get"))
    count = len([name for name in names if isinstance(name, bytes) and b"|" not in name])
    assert await answer(client, "COMMAND COUNT") == b":%d\r\n" % count


async def test_clients_of_an_age_are_killed(world: World, client: RawClient) -> None:
    other = await world.connect()
    await answer(other, "PING")
    assert await answer(client, "CLIENT KILL MAXAGE 100") == b":0\r\n"
    world.port.state.clients[2].client.created_at -= 100
    assert await answer(client, "CLIENT KILL MAXAGE 100 SKIPME no") == b":1\r\n"
    assert await other.rest() == b""
    for value, text in (("x", "is not an integer or out of range"), ("0", "should be greater")):
        assert text.encode() in await answer(client, f"CLIENT KILL MAXAGE {value}")


async def test_a_client_is_listed_as_redis_lists_it(world: World, client: RawClient) -> None:
    other = await world.connect()
    await answer(other, "CONFIG GET save")
    asked = command("CLIENT", "LIST")
    lines = (await answer(client, "CLIENT LIST")).decode().split("\r\n")[1].splitlines()
    own, theirs = (dict(field.split("=") for field in line.split()) for line in lines)
    assert own["cmd"] == "client|list"
    assert (own["qbuf"], own["argv-mem"]) == (str(len(asked)), "10")
    assert (own["rbs"], own["rbp"]) == ("0", "0")
    assert theirs["cmd"] == "echo"
    names = [*own]
    assert names[names.index("multi-mem") + 1 :][:3] == ["rbs", "rbp", "obl"]
    info = await answer(client, "CLIENT INFO")
    assert b" cmd=client|info " in info


async def test_a_quiet_client_gets_nothing_of_plain_commands_either(client: RawClient) -> None:
    await client.send(command("CLIENT", "REPLY", "OFF"))
    await client.send(command("SET", "a", "1"))
    await client.send(command("GET", "a") * 3 + command("SET", "a", "2"))
    assert await answer(client, "CLIENT REPLY ON ; GET a") == b"+OK\r\n$1\r\n2\r\n"
    await client.send(command("CLIENT", "REPLY", "SKIP"))
    await client.send(command("SET", "a", "3"))
    await client.ask(command("GET", "a"), b"$1\r\n3\r\n")
    await client.ask(command("SET", "a", "4") + command("GET", "a"), b"+OK\r\n$1\r\n4\r\n")


async def test_links_go_both_ways(client: RawClient) -> None:
    links = resp.parse_replies_untrusted(await answer(client, "CLUSTER LINKS"))[0]
    assert isinstance(links, list)
    assert [link[1] for link in links if isinstance(link, list)] == [b"to", b"from"]


async def test_info_counts_the_keys_that_expire(world: World, client: RawClient) -> None:
    await answer(client, "SET a 1 ; SET b 1 PX 100 ; SET c 1 EX 100")
    assert b"db0:keys=3,expires=2,avg_ttl=0\r\n" in await answer(client, "INFO keyspace")
    world.member.time_ms += 101
    world.member.service._store.now = world.member.time_ms  # pyright: ignore[reportPrivateUsage]
    assert b"db0:keys=2,expires=1,avg_ttl=0\r\n" in await answer(client, "INFO keyspace")


async def test_info_raft_has_no_python_in_it(client: RawClient) -> None:
    text = (await answer(client, "INFO raft")).decode()
    assert "raft_suspended:0\r\n" in text
    assert "raft_not_heard:\r\n" in text
    for word in ("False", "True", "None", "(", "["):
        assert word not in text


async def test_scripts_are_refused_in_words_of_their_own(client: RawClient) -> None:
    for name in ("EVAL", "evalsha", "EVAL_RO", "EVALSHA_RO", "SCRIPT", "function", "FCALL"):
        refused = await answer(client, f"{name} x 0")
        assert refused.startswith(b"-ERR scripts are not supported: %b was" % name.upper().encode())
        assert (
            await answer(client, f"MULTI ; {name} x 0 ; DISCARD") == b"+OK\r\n%b+OK\r\n" % refused
        )
