"""Users at the client port: logins, denials, transactions, and changes that reach sessions."""

import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from quorate.keyvalue.access.hashing import hash_secret
from quorate.keyvalue.access.verifier import BUSY, MAX_WAITING, Verifier
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser
from tests.support.client_port_world import RawClient, World, command

NOAUTH = b"-NOAUTH Authentication required.\r\n"
WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
NO_KEY = b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"


BAD_BITS = (
    b"-ERR ACL GENPASS argument must be the number of bits for the output password, a positive "
    b"number up to 4096\r\n"
)
NO_PASSWORD = (
    b"-ERR AUTH <password> called without any password configured for the default user. "
    b"Are you sure your configuration is correct?\r\n"
)


def no_command(name: str) -> bytes:
    return f"-NOPERM this user has no permissions to run the '{name}' command\r\n".encode()


def line(text: str) -> bytes:
    return command(*text.split())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables") as opened:
        yield opened


async def ask(client: RawClient, text: str, reply: bytes) -> None:
    await client.ask(line(text), reply)


async def admin(world: World, *lines: str) -> RawClient:
    """Connect as the default user, which may do everything, and run commands that return OK."""
    client = await world.connect()
    for text in lines:
        await ask(client, text, resp.OK)
    return client


async def logged_in(world: World, text: str) -> RawClient:
    client = await world.connect()
    await ask(client, text, resp.OK)
    return client


async def test_a_user_logs_in_and_is_held_to_its_rules(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on >secret ~a* +get +set +acl|whoami")
    bob = await world.connect()
    await ask(bob, "ACL WHOAMI", b"$7\r\ndefault\r\n")
    await ask(bob, "AUTH bob wrong", WRONG)
    await ask(bob, "ACL WHOAMI", b"$7\r\ndefault\r\n")
    await ask(bob, "AUTH bob secret", resp.OK)
    await ask(bob, "ACL WHOAMI", b"$3\r\nbob\r\n")
    await ask(bob, "SET a1 x", resp.OK)
    await ask(bob, "GET a1", b"$1\r\nx\r\n")
    await ask(bob, "SET b x", NO_KEY)
    await ask(bob, "DEL a1", no_command("del"))
    await ask(bob, "CONFIG GET x", no_command("config|get"))
    await ask(bob, "NOSUCH", b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n")
    await ask(bob, "GET", b"-ERR wrong number of arguments for 'get' command\r\n")
    await ask(bob, "RESET", b"+RESET\r\n")
    await ask(bob, "DEL a1", resp.ONE)
    assert b" user=default " in await line_of(root)


async def line_of(client: RawClient) -> bytes:
    await client.send(line("CLIENT INFO"))
    return await client.receive_until(b"\n\r\n")


async def test_a_chunk_is_cut_where_a_command_is_denied(world: World) -> None:
    await admin(world, "ACL SETUSER bob on nopass ~a ~c +set +get")
    bob = await logged_in(world, "AUTH bob x")
    chunk = [line(f"SET {key} 1") for key in "abca"] + [line("GET a"), line("INCR a")]
    replies = resp.OK + NO_KEY + resp.OK * 2 + b"$1\r\n1\r\n" + no_command("incr")
    await bob.ask(b"".join(chunk), replies)
    assert world.member.commands[-2:][0].count(b"SET") == 1  # before the denied one, alone


async def test_plain_commands_are_joined_only_for_users_with_all_keys(world: World) -> None:
    await admin(world, "ACL SETUSER all on nopass ~* +set", "ACL SETUSER some on nopass ~a* +set")
    everywhere, somewhere = [await logged_in(world, f"AUTH {name} x") for name in ("all", "some")]
    await ask(everywhere, "SET b 1", resp.OK)
    await ask(everywhere, "GET b", no_command("get"))
    await ask(somewhere, "SET a 1", resp.OK)
    await ask(somewhere, "SET b 1", NO_KEY)


async def test_before_a_login_only_four_commands_run(world: World) -> None:
    await admin(world, "ACL SETUSER default on resetpass >secret")
    client = await world.connect()
    lines = "PING;GET a;SET a 1;MULTI;EXEC;CLIENT ID;QUORATE.STATUS;QUORATE.CONTROL snapshot;INFO"
    for text in [*lines.split(";"), "WAIT 0 0", "COMMAND COUNT", "ACL WHOAMI", "ACL CAT"]:
        await ask(client, text, NOAUTH)
    await client.send(line("HELLO 3"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-NOAUTH HELLO must be called")
    await ask(client, "AUTH wrong", WRONG)
    await ask(client, "AUTH secret", resp.OK)
    await ask(client, "PING", resp.PONG)
    await ask(client, "RESET", b"+RESET\r\n")
    await ask(client, "PING", NOAUTH)
    await client.send(line("HELLO 3 AUTH default secret SETNAME me"))
    assert (await client.receive_some(4096)).startswith(b"%7\r\n")
    await ask(client, "CLIENT GETNAME", b"$2\r\nme\r\n")


async def test_a_pipeline_behind_a_login_waits_for_it(world: World) -> None:
    await admin(world, "ACL SETUSER bob on >secret ~* +@all")
    client = await world.connect()
    sent = "SET a 1", "AUTH bob secret", "ACL WHOAMI", "AUTH bob no", "GET a"
    replies = resp.OK * 2 + b"$3\r\nbob\r\n" + WRONG + b"$1\r\n1\r\n"
    await client.ask(b"".join(map(line, sent)), replies)


async def test_a_failed_hello_changes_nothing(world: World) -> None:
    client = await admin(world, "ACL SETUSER bob on >secret ~* +@all")
    await ask(client, "HELLO 3 AUTH bob no SETNAME me", WRONG)
    await ask(client, "CLIENT GETNAME", b"$-1\r\n")
    await ask(client, "ACL WHOAMI", b"$7\r\ndefault\r\n")


async def test_a_transaction_is_checked_when_it_is_queued(world: World) -> None:
    await admin(world, "ACL SETUSER bob on nopass ~a +@all")
    bob = await logged_in(world, "AUTH bob x")
    await ask(bob, "MULTI", resp.OK)
    await ask(bob, "SET a 1", resp.QUEUED)
    await ask(bob, "SET b 1", NO_KEY)
    await ask(bob, "EXEC", b"-EXECABORT Transaction discarded because of previous errors.\r\n")
    await ask(bob, "GET a", b"$-1\r\n")


async def test_a_transaction_is_checked_again_when_it_runs(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a ~b +@all")
    bob = await logged_in(world, "AUTH bob x")
    for change, allowed in (("-incr", False), ("+incr -mget", True)):
        await ask(bob, "MULTI", resp.OK)
        await ask(bob, "PING", resp.QUEUED)
        await ask(bob, "INCR a", resp.QUEUED)
        await ask(root, f"ACL SETUSER bob {change} resetkeys ~a", resp.OK)
        await bob.send(line("EXEC"))
        reply = await bob.receive_until(b"\r\n")
        if allowed:
            assert reply == b"*2\r\n+PONG\r\n:1\r\n"
        else:
            assert reply.startswith(b"-NOPERM ACLs rules changed between the moment")
            await ask(root, "GET a", b"$-1\r\n")
            await ask(root, "ACL SETUSER bob +incr", resp.OK)


@pytest.mark.parametrize(
    "text", ["ACL SETUSER x on", "ACL DELUSER x", "AUTH x y", "HELLO 3 AUTH x y"]
)
async def test_logins_and_changes_of_users_are_not_queued(world: World, text: str) -> None:
    client = await admin(world, "MULTI")
    await client.send(line(text))
    assert (await client.receive_until(b"\r\n")).endswith(b" inside MULTI is not allowed\r\n")
    await ask(client, "EXEC", b"-EXECABORT Transaction discarded because of previous errors.\r\n")


async def test_a_command_of_a_session_is_checked_too(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a +@session +set")
    bob = await logged_in(world, "AUTH bob x")
    await bob.send(line("QUORATE.SESSION OPEN"))
    session = int((await bob.receive_until(b"\r\n"))[1:])
    await ask(bob, f"QUORATE.ONCE {session} 1 SET a 1", resp.OK)
    await ask(bob, f"QUORATE.ONCE {session} 2 SET b 1", NO_KEY)
    await ask(bob, f"QUORATE.ONCE {session} 2 DEL a", no_command("del"))
    await ask(root, "ACL SETUSER bob +multi", resp.OK)
    await bob.ask(line("MULTI") + line("SET a 1"), resp.OK + resp.QUEUED)
    await ask(bob, f"QUORATE.ONCE {session} 3 EXEC", no_command("exec"))
    await ask(bob, "SET a 2", resp.OK)  # a refused EXEC ends the transaction
    await root.send(line(f"QUORATE.ONCE {session} 3 ACL SETUSER eve on nopass"))
    assert (await root.receive_until(b"\r\n")).startswith(b"-ERR QUORATE.ONCE takes a command")


def whole(flags: int, *texts: str) -> bytes:
    payload = b"".join(map(line, texts))
    return resp.pack((b"QUORATE.REQUEST", b"0", b"0", b"%d" % flags, payload))


async def test_every_command_of_a_whole_request_is_checked(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a* +set +get +quorate.position")
    bob = await logged_in(world, "AUTH bob x")
    await bob.ask(whole(0, "SET a 1"), no_command("quorate.request"))
    await ask(root, "ACL SETUSER bob +quorate.request", resp.OK)
    await bob.ask(whole(0, "SET a 1", "GET ab"), resp.bulk(b"+OK\r\n$-1\r\n"))
    await bob.ask(whole(0, "SET a 2", "GET b"), NO_KEY)
    await bob.ask(whole(0, "SET a 2", "DEL a"), no_command("del"))
    await bob.ask(whole(2, "WATCH a 0", "GET a"), no_command("watch"))
    await ask(root, "ACL SETUSER bob +watch", resp.OK)
    await bob.ask(whole(2, "WATCH b 0", "GET a"), NO_KEY)
    await bob.ask(whole(2, "WATCH ac 0", "GET a"), resp.bulk(b"*1\r\n$1\r\n1\r\n"))


async def test_a_dry_run_of_a_whole_request_looks_into_it(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a* +get +quorate.request")
    for texts, reply in (
        (["GET a"], resp.OK),
        (["GET a", "GET b"], resp.bulk(b"This user has no permissions to access the 'b' key")),
        (["SET a 1"], resp.bulk(b"This user has no permissions to run the 'set' command")),
    ):
        words = (b"ACL", b"DRYRUN", b"bob", b"QUORATE.REQUEST", b"0", b"0", b"0")
        await root.ask(resp.pack((*words, b"".join(map(line, texts)))), reply)


async def test_a_dry_run_agrees_with_the_port(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass")
    bob = await logged_in(world, "AUTH bob x")
    payloads = [
        *([text] for text in ("GET a", "SET a 1", "SET a 1 GET", "RENAME a b", "DBSIZE", "KEYS *")),
        *([text] for text in ("QUORATE.CAS a ABSENT SET 1", "QUORATE.RECORDS a b", "OBJECT HELP")),
        *(["WATCH a 0", text] for text in ("GET a", "SET b 1")),
        ["GET a", "DEL a", "MGET b a"],
    ]
    denied = 0
    for rules in (
        "~* +@all",
        "~a +@all",
        "%R~* +@all",
        "%W~a +@all -watch",
        "~* +get",
        "~* +@read",
    ):
        await ask(root, f"ACL SETUSER bob reset on nopass {rules} +quorate.request", resp.OK)
        bob = await logged_in(world, "AUTH bob x")
        for texts in payloads:
            data = whole(2 if texts[0].startswith("WATCH") else 0, *texts)
            words = PayloadParser().parse_untrusted(data)[0]
            await root.send(resp.pack((b"ACL", b"DRYRUN", b"bob", *words)) + line("ECHO end"))
            allowed = (await root.receive_until(b"end\r\n")).startswith(resp.OK)
            await bob.send(data + whole(9))
            reply = await bob.receive_until(b"for one transaction\r\n")
            assert reply.startswith(b"-NOPERM ") != allowed, (rules, texts)
            denied += not allowed
    assert 20 < denied < 60


async def test_a_session_is_of_no_use_to_other_users(world: World) -> None:
    await admin(world, *(f"ACL SETUSER {name} on nopass ~* +@all" for name in ("alice", "bob")))
    alice, bob = [await logged_in(world, f"AUTH {name} x") for name in ("alice", "bob")]
    await alice.send(line("QUORATE.SESSION OPEN"))
    session = int((await alice.receive_until(b"\r\n"))[1:])
    await ask(alice, f"QUORATE.ONCE {session} 1 INCR a", resp.ONE)
    for text in ("ONCE {} 1 INCR b", "ONCE {} 2 INCR b", "SESSION CLOSE {}"):
        for number in (session, session + 1):
            missing = b"-NOSESSION there is no session %d, it was closed" % number
            await bob.send(line("QUORATE." + text.format(number)))
            assert (await bob.receive_until(b"\r\n")).startswith(missing)
    await ask(alice, f"QUORATE.ONCE {session} 2 INCR a", b":2\r\n")


# --- revocation


async def test_the_sessions_of_a_deleted_user_are_closed(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~* +@all")
    bob, other = await logged_in(world, "AUTH bob x"), await world.connect()
    await ask(root, "ACL DELUSER bob", resp.ONE)
    assert await bob.rest() == b""
    await ask(other, "PING", resp.PONG)
    await ask(await world.connect(), "AUTH bob x", WRONG)


async def test_a_user_that_deletes_itself_gets_the_reply(world: World) -> None:
    await admin(world, "ACL SETUSER bob on nopass ~* +@all")
    bob = await logged_in(world, "AUTH bob x")
    await bob.ask(line("ACL DELUSER bob") + line("SET a 1"), resp.ONE)
    assert await bob.rest() == b""
    assert not any(b"SET\r\n$1" in payload for payload in world.member.commands)


async def test_a_change_is_answered_after_an_entry_that_tells_of_its_commit(world: World) -> None:
    root = await world.connect()
    world.member.parked = []
    await root.send(line("ACL SETUSER bob on"))
    kinds: list[bytes] = []
    for _ in range(3):
        await world.until(lambda: world.member.parked)
        (request,), world.member.parked = world.member.parked, []
        kinds.append(request.payload)
        world.member.answer(request)
    assert [b"SETUSER" in kinds[0], b"QUORATE.SESSIONS" in kinds[1], kinds[2]] == [
        *(True, True),
        b"wait all 0",
    ]
    assert await root.receive(5) == resp.OK


async def test_a_changed_user_is_held_to_its_new_rules_at_once(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on >secret ~* +@all")
    bob = await logged_in(world, "AUTH bob secret")
    await ask(bob, "SET a 1", resp.OK)
    await ask(root, "ACL SETUSER bob -set", resp.OK)
    await ask(bob, "SET a 1", no_command("set"))
    await ask(root, "ACL SETUSER bob +set resetkeys ~b", resp.OK)
    await ask(bob, "SET a 1", NO_KEY)
    await ask(root, "ACL SETUSER bob allkeys", resp.OK)
    await ask(bob, "SET a 1", resp.OK)


@pytest.mark.parametrize(
    ("change", "stays"),
    [("off", False), ("resetpass", False), (">other", True), ("<secret >other", False),
     ("nopass", True), ("reset on nopass +get ~*", True)],
)  # fmt: skip
async def test_a_session_stays_while_its_password_lets_it_in(
    world: World, change: str, *, stays: bool
) -> None:
    root = await admin(world, "ACL SETUSER bob on >secret ~* +@all")
    bob = await logged_in(world, "AUTH bob secret")
    await ask(root, f"ACL SETUSER bob {change}", resp.OK)
    await ask(bob, "GET a", b"$-1\r\n" if stays else NOAUTH)


async def test_who_came_without_a_password_needs_one_once_there_is_one(world: World) -> None:
    root, other = await admin(world), await admin(world)
    await ask(root, "ACL SETUSER default >secret", resp.OK)
    await ask(root, "PING", NOAUTH)
    await ask(other, "GET a", NOAUTH)
    await ask(other, "AUTH secret", resp.OK)
    await ask(other, "ACL SETUSER default nopass", resp.OK)
    await ask(root, "PING", resp.PONG)


async def test_a_parked_write_of_a_deleted_user_never_applies(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~* +@all")
    bob = await logged_in(world, "AUTH bob x")
    world.member.parked = []
    await bob.send(line("SET a 1"))
    await world.until(lambda: world.member.parked)
    parked, world.member.parked = world.member.parked, None
    await ask(root, "ACL DELUSER bob", resp.ONE)
    assert await bob.rest() == b""
    world.member.parked = parked
    world.member.release()
    await ask(root, "GET a", b"$-1\r\n")


async def test_a_snapshot_that_is_loaded_revises_all_sessions(world: World) -> None:
    service = world.member.service
    await admin(world, "ACL SETUSER bob on nopass ~* +@all")
    bob = await logged_in(world, "AUTH bob x")
    service.users.delete([b"bob"], 99)
    service.users.reload()
    assert await bob.rest() == b""


async def test_a_follower_without_a_leader_serves_no_stale_reads_once_there_are_users(
    world: World,
) -> None:
    root = await admin(world, "SET a 1")
    world.member.follow(2)  # of which this member has never heard
    await ask(root, "READONLY", resp.OK)
    await ask(root, "GET a", b"$1\r\n1\r\n")
    service = world.member.service
    service.users.set(b"default", [b"-flushall"], 99)
    await ask(root, "GET a", b"$1\r\n1\r\n")
    world.member.parked = []  # the leader answers no more
    access = world.port.state.access
    await world.until(lambda: trio.current_time() > access.good_until)
    await root.send(line("GET a"))
    await world.until(lambda: len(world.member.parked or ()) > 1)
    assert not access.users.known
    world.member.release()
    await ask(root, "", b"$1\r\n1\r\n")


@pytest.mark.parametrize(
    "text",
    [
        "ACL SETUSER bob on hunter2",
        "ACL SETUSER bob >good #hunter2",
        "ACL SETUSER bob +hunter2",
        "ACL SETUSER bob -@hunter2",
        "ACL SETUSER bob $hunter2",
        "ACL SETUSER bob !hunter2",
        "ACL SETUSER bob (hunter2)",
        "ACL SETUSER bob <good hunter2",
        f"ACL SETUSER hunter2{60 * 'x'} on",
    ],
)
async def test_a_password_without_its_sign_is_in_no_entry(world: World, text: str) -> None:
    root = await admin(world)
    await root.send(line(text))
    assert (await root.receive_until(b"\r\n")).startswith(b"-ERR ")
    assert world.member.commands == []
    await ask(root, "ACL GETUSER bob", resp.NULL[0])


async def test_what_depends_on_the_user_is_decided_by_the_log(world: World) -> None:
    digest = "a" * 64
    root = await admin(world, f"ACL SETUSER bob #{digest}", f"ACL SETUSER bob !{digest} ~* +get")
    await root.send(line(f"ACL SETUSER bob !{digest}"))
    assert b"does not exist" in await root.receive_until(b"\r\n")
    await root.send(line("ACL SETUSER bob ~a"))
    assert b"Adding a pattern after the * pattern" in await root.receive_until(b"\r\n")


# --- other subcommands


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("ACL CAT nosuch", b"-ERR Unknown category 'nosuch'\r\n"),
        ("ACL CAT cluster-admin", b"*1\r\n$15\r\nquorate.control\r\n"),
        ("ACL CAT HASH", b"*0\r\n"),
        ("ACL GENPASS 0", BAD_BITS),
        ("ACL GENPASS x", b"-ERR value is not an integer or out of range\r\n"),
        ("ACL LOAD", b"+OK\r\n"),
        ("ACL SAVE", b"+OK\r\n"),
        ("ACL LOG", b"*0\r\n"),
        ("ACL LOG -1", b"*0\r\n"),
        ("ACL LOG foo", b"-ERR value is not an integer or out of range\r\n"),
        ("ACL LOG reset", b"+OK\r\n"),
        ("ACL DRYRUN nosuch get a", b"-ERR User 'nosuch' not found\r\n"),
        ("ACL DRYRUN default nosuch", b"-ERR Command 'nosuch' not found\r\n"),
        ("ACL DRYRUN default get", b"-ERR wrong number of arguments for 'get' command\r\n"),
        ("ACL DRYRUN default get a", b"+OK\r\n"),
        ("ACL FOO", b"-ERR unknown subcommand 'FOO'. Try ACL HELP.\r\n"),
        ("ACL DELUSER default", b"-ERR The 'default' user cannot be removed\r\n"),
        ("ACL GETUSER nobody", b"$-1\r\n"),
        ("AUTH x", NO_PASSWORD),
        ("AUTH default x", b"+OK\r\n"),
        ("AUTH nobody x", WRONG),
        ("AUTH a b c", b"-ERR syntax error\r\n"),
        ("CLIENT KILL USER nobody", b"-ERR No such user 'nobody'\r\n"),
    ],
)  # fmt: skip
async def test_replies(world: World, text: str, reply: bytes) -> None:
    await ask(await world.connect(), text, reply)


async def test_a_dry_run_says_what_would_be_denied(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a +get", "ACL SETUSER off1 off")
    for text, reply in (
        ("get a", resp.OK),
        ("get b", resp.bulk(b"This user has no permissions to access the 'b' key")),
        ("set a 1", resp.bulk(b"This user has no permissions to run the 'set' command")),
    ):
        await ask(root, f"ACL DRYRUN bob {text}", reply)
    await ask(root, "ACL DRYRUN off1 get a", resp.bulk(b"This user is disabled"))


async def test_passwords_are_random_and_of_any_length(world: World) -> None:
    root = await admin(world)
    for text, digits in (("ACL GENPASS", 64), ("ACL GENPASS 5", 2), ("ACL GENPASS 4093", 1024)):
        found: set[bytes] = set()
        for _ in range(2 if digits > 2 else 1):
            await root.send(line(text))
            head = b"$%d\r\n" % digits
            assert await root.receive(len(head)) == head
            found.add((await root.receive(digits + 2)).rstrip())
        assert len(found) == (2 if digits > 2 else 1)
        assert all(len(bytes.fromhex(each.decode())) == digits // 2 for each in found)


async def test_connections_of_a_user_can_be_killed(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~* +@all")
    bob = await logged_in(world, "AUTH bob x")
    await ask(root, "CLIENT KILL USER bob", resp.ONE)
    assert await bob.rest() == b""


# --- hashing


class Held:
    """A lane whose work waits until a test lets it go. All work is the same, and is done once."""

    def __init__(self) -> None:
        self.waiting = 0
        self.free = trio.Event()
        self.result: bytes | None = None

    async def read(self, fn: Callable[[], bytes]) -> bytes:
        self.waiting += 1
        await self.free.wait()
        # Each time anew it would be seconds of hashing, during which no client is answered.
        if self.result is None:
            self.result = fn()
        return self.result


async def test_a_login_holds_up_nobody_and_the_queue_is_bounded(world: World) -> None:
    lane = Held()
    access = world.port.state.access
    world.member.service.users.set(
        b"bob", [b"on", hash_secret(b"secret", bytes(16)), b"~*", b"+@all"], 9
    )
    async with trio.open_nursery() as nursery:
        access.verifier = Verifier([lane])  # type: ignore[list-item]
        nursery.start_soon(access.verifier.run)
        waiting = [await world.connect() for _ in range(MAX_WAITING + 1)]
        await waiting[0].send(line("AUTH bob secret"))
        await world.until(lambda: lane.waiting)
        for client in waiting[1:]:
            await client.send(line("AUTH bob secret") + line("ACL WHOAMI"))
        busy = await world.connect()
        await world.until(lambda: access.verifier.waiting == MAX_WAITING)
        await busy.send(line("AUTH bob secret"))
        assert (await busy.receive_until(b"\r\n")).startswith(b"-BUSY ")
        await ask(busy, "SET a 1", resp.OK)
        await waiting[-1].aclose()
        lane.free.set()
        for client in waiting[1:-1]:
            assert await client.receive(14) == resp.OK + b"$3\r\nbob\r\n"
        # It is remembered now, so the next login does not wait.
        lane.free = trio.Event()
        await ask(busy, "AUTH bob secret", resp.OK)
        nursery.cancel_scope.cancel()


async def test_a_login_is_not_checked_for_a_client_that_has_left(world: World) -> None:
    lane, access = Held(), world.port.state.access
    async with trio.open_nursery() as nursery:
        access.verifier = Verifier([lane])  # type: ignore[list-item]
        nursery.start_soon(access.verifier.run)
        first, *others = [await world.connect() for _ in range(5)]
        await first.send(line("AUTH nobody x"))
        await world.until(lambda: lane.waiting)
        for client in others:
            await client.send(line("AUTH nobody x"))
        await world.until(lambda: access.verifier.waiting == 4)
        for client in others[:3]:
            client.stream.socket.setsockopt(  # a reset, as of a program that was killed
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            await client.aclose()
        await world.until(lambda: len(world.port.state.clients) == 2)
        for _ in range(MAX_WAITING - 1):  # those that have left take no places
            assert access.verifier.submit(lambda: b"", lambda _: None, address="else")
        assert access.verifier.waiting == MAX_WAITING
        lane.free.set()
        assert await first.receive(len(WRONG)) == WRONG
        assert await others[3].receive(len(WRONG)) == WRONG
        assert lane.waiting <= 2 + MAX_WAITING - 1
        nursery.cancel_scope.cancel()


async def test_a_busy_answer_waits_like_one_to_a_wrong_password(world: World) -> None:
    access = world.port.state.access
    access.verifier.submit = lambda *_, **__: False  # type: ignore[method-assign]
    client = await world.connect()
    began = trio.current_time()
    await client.send(line("AUTH nobody x") * 3)
    for _ in range(3):
        assert (await client.receive_until(b"\r\n")).startswith(b"-BUSY ")
    assert trio.current_time() - began >= 0.05 + 0.1 + 0.2


class Lane:
    """Takes a second for each piece of work."""

    async def read(self, fn: Callable[[], bytes]) -> bytes:
        await trio.sleep(1)
        return fn()


async def test_no_address_locks_out_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    verifier = Verifier([Lane()])  # type: ignore[list-item]
    results: list[tuple[str, bytes]] = []

    def submit(address: str) -> bool:
        return verifier.submit(
            lambda: b"x", lambda result: results.append((address, result)), address=address
        )

    assert all(submit("loud") for _ in range(MAX_WAITING))
    assert not submit("loud")
    assert submit("quiet")  # it takes a place
    assert results == [("loud", BUSY)]
    assert verifier.waiting == MAX_WAITING
    assert all(submit("other") for _ in range(31))
    assert not submit("other")  # it has its share: half
    results.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verifier.run)
        await trio.sleep(3.5)
        assert [address for address, _ in results] == ["loud", "quiet", "other"]
        await trio.sleep(70)
        assert verifier.waiting == 0
        assert len(results) == MAX_WAITING
        nursery.cancel_scope.cancel()


async def test_a_user_that_changes_during_its_login_is_not_let_in(world: World) -> None:
    lane = Held()
    access = world.port.state.access
    world.member.service.users.set(
        b"bob", [b"on", hash_secret(b"secret", bytes(16)), b"~*", b"+@all"], 9
    )
    async with trio.open_nursery() as nursery:
        access.verifier = Verifier([lane])  # type: ignore[list-item]
        nursery.start_soon(access.verifier.run)
        client = await world.connect()
        await client.send(line("AUTH bob secret"))
        await world.until(lambda: lane.waiting)
        world.member.service.users.set(b"bob", [b"resetpass"], 10)
        lane.free.set()
        assert await client.receive(len(WRONG)) == WRONG
        nursery.cancel_scope.cancel()


async def test_the_same_secret_twice_is_one_password(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on >secret", "ACL SETUSER bob >secret >other")
    user = world.member.service.users.get(b"bob")
    assert user is not None
    assert len(user.hashes) == 2
    assert all(word.startswith(b"$scrypt$ln=14,r=8,p=1$") for word in user.hashes)
    await ask(root, "ACL SETUSER bob <other", resp.OK)
    await root.send(line("ACL SETUSER bob <other"))
    reply = await root.receive_until(b"\r\n")
    assert reply.startswith(b"-ERR Error in ACL SETUSER modifier '<...': The password you are")
    user = world.member.service.users.get(b"bob")
    assert user is not None
    assert len(user.hashes) == 1
    assert not any(b"secret" in payload or b"other" in payload for payload in world.member.commands)


def as_list(reply: resp.Reply) -> list[resp.Reply]:
    assert isinstance(reply, list)
    return reply


async def test_what_was_denied_is_listed(world: World) -> None:
    root = await admin(world, "ACL SETUSER bob on nopass ~a +get +multi")
    bob = await logged_in(world, "AUTH bob x")
    for text in ("GET b", "GET b", "SET a 1", "MULTI", "GET b"):
        await bob.send(line(text))
        await bob.receive_until(b"\r\n")
    await ask(await world.connect(), "AUTH bobby no", WRONG)
    await root.send(line("ACL LOG"))
    (entries,) = resp.parse_replies_untrusted(await root.receive_some(1 << 20))
    assert isinstance(entries, list)
    found = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in map(as_list, entries)]
    told = [(e[b"reason"], e[b"context"], e[b"object"], e[b"username"], e[b"count"]) for e in found]
    assert told == [
        (b"auth", b"toplevel", b"AUTH", b"bobby", 1),
        (b"key", b"multi", b"b", b"bob", 1),
        (b"command", b"toplevel", b"set", b"bob", 1),
        (b"key", b"toplevel", b"b", b"bob", 2),
    ]
    assert b" user=bob " in bytes(str(found[1][b"client-info"]), "ascii")
    await ask(root, "ACL LOG RESET", resp.OK)
    await ask(root, "ACL LOG", b"*0\r\n")
