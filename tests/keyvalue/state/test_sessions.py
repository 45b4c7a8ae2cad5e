"""Sessions: each command of one is applied exactly once, and its first reply is the reply."""

from collections.abc import Generator
from pathlib import Path

import pytest
import trio
from trio.abc import Clock

from quorate.keyvalue.limits import (
    DEFAULT_SESSION_MS,
    KEPT_REPLIES,
    KEPT_REPLY_BYTES,
    LONGEST_KEPT_REPLY_BYTES,
    MAX_EXPIRED_SESSIONS,
    MAX_SESSIONS,
)
from quorate.keyvalue.protocol.payload import RESP3, TRANSACTION
from quorate.node.state_machine.service import Command
from tests.support.service_world import BATCH_BYTES, START_MS, Fed, encode, open_service, running


class Client(Fed):
    """Feeds what a client of sessions sends."""

    def open(self, timeout_ms: int = 10_000) -> int:
        reply = self.apply(f"QUORATE.SESSION OPEN {timeout_ms}")
        assert reply.startswith(b":"), reply
        return int(reply[1:])

    def once(self, session: int, sequence: int, line: str, flags: int = 0) -> bytes:
        payload = encode(line)
        where = self.position
        return self.replay(Command(payload, flags, session, sequence, 1, where, 0, self.now))


@pytest.fixture
def client(tmp_path: Path) -> Generator[Client]:
    service = open_service(tmp_path)
    yield Client(service)
    service.close()


def test_a_command_is_applied_once_and_its_first_reply_is_kept(client: Client) -> None:
    session = client.open()
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    client.apply("INCRBY a 10")
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    assert client.once(session, 2, "INCR a") == b":12\r\n"
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    assert client.query("GET a") == b"$2\r\n12\r\n"


def test_an_error_is_a_reply_too_and_so_is_one_in_another_protocol(client: Client) -> None:
    session = client.open()
    client.apply("SET a word")
    error = client.once(session, 1, "INCR a")
    assert error.startswith(b"-ERR value is not")
    client.apply("SET a 5")
    assert client.once(session, 1, "INCR a") == error
    assert client.once(session, 2, "GETDEL none", RESP3) == b"_\r\n"
    assert client.once(session, 2, "GETDEL none") == b"_\r\n"


def test_a_transaction_is_applied_once(client: Client) -> None:
    session = client.open()
    body = encode("INCR a", "INCR b")
    for _ in range(2):
        where = client.position
        command = Command(body, TRANSACTION, session, 1, 1, where, 0, client.now)
        assert client.replay(command) == b"*2\r\n:1\r\n:1\r\n"


def test_numbers_may_come_in_any_order(client: Client) -> None:
    session = client.open()
    assert client.once(session, 3, "INCR a") == b":1\r\n"
    assert client.once(session, 1, "INCR a") == b":2\r\n"
    assert client.once(session, 3, "INCR a") == b":1\r\n"
    assert client.once(session, 2, "INCR a") == b":3\r\n"


def test_what_is_acknowledged_is_forgotten_and_never_done_again(client: Client) -> None:
    session = client.open()
    for sequence in (1, 2, 3):
        client.once(session, sequence, "INCR a")
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 2") == b"+OK\r\n"
    for sequence in (1, 2):
        assert client.once(session, sequence, "INCR a").startswith(b"-FORGOTTEN ")
    assert client.once(session, 3, "INCR a") == b":3\r\n"
    assert client.query("GET a") == b"$1\r\n3\r\n"
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 1") == b"+OK\r\n"
    assert client.once(session, 2, "INCR a").startswith(b"-FORGOTTEN ")
    assert client.once(session, 0, "INCR a").startswith(b"-FORGOTTEN ")


def test_what_never_came_cannot_be_acknowledged(client: Client) -> None:
    session = client.open()
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 1").startswith(b"-ERR ")
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 1") == b"+OK\r\n"
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 1") == b"+OK\r\n"
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session} 2").startswith(b"-ERR ")


def test_so_many_replies_are_kept(client: Client) -> None:
    session = client.open()
    for sequence in range(1, KEPT_REPLIES + 3):
        client.once(session, sequence, "INCR a")
    assert client.once(session, 2, "INCR a").startswith(b"-FORGOTTEN 2 is below the window")
    assert client.once(session, 3, "INCR a") == b":3\r\n"
    assert client.query("GET a") == b"$3\r\n%d\r\n" % (KEPT_REPLIES + 2)


def test_so_many_bytes_of_replies_are_kept(client: Client) -> None:
    session = client.open()
    size = KEPT_REPLY_BYTES // 4 + 1
    client.apply("SET a " + "x" * size)
    for sequence in range(1, 5):
        assert len(client.once(session, sequence, "GETEX a PERSIST")) > size
    assert client.once(session, 1, "GETEX a PERSIST").startswith(b"-FORGOTTEN ")
    assert len(client.once(session, 2, "GETEX a PERSIST")) > size


def test_a_reply_that_is_too_long_is_told_once(client: Client) -> None:
    session = client.open()
    value = "x" * LONGEST_KEPT_REPLY_BYTES
    client.apply("SET a " + value)
    assert value.encode() in client.once(session, 1, "GETDEL a")
    again = client.once(session, 1, "GETDEL a")
    assert again.startswith(b"-FORGOTTEN this command was applied, once; its reply of ")


def test_a_session_ends_when_it_is_closed(client: Client) -> None:
    session = client.open()
    client.once(session, 1, "INCR a")
    assert client.apply(f"QUORATE.SESSION CLOSE {session}") == b"+OK\r\n"
    for line in (f"CLOSE {session}", f"KEEPALIVE {session}"):
        assert client.apply(f"QUORATE.SESSION {line}").startswith(b"-NOSESSION ")
    assert client.once(session, 2, "INCR a").startswith(b"-NOSESSION ")
    assert client.query("GET a") == b"$1\r\n1\r\n"
    assert client.open() > session


def test_a_session_is_gone_when_log_time_reaches_its_deadline(client: Client) -> None:
    session, other = client.open(10_000), client.open(20_000)
    assert client.service.next_deadline_ms() == START_MS + 10_000
    client.now += 9_999
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    assert client.service.next_deadline_ms() == START_MS + 19_999
    client.now += 9_999
    assert client.apply(f"QUORATE.SESSION KEEPALIVE {session}") == b"+OK\r\n"
    client.now += 10_000  # in the very batch that reaches it, nothing is removed yet
    assert client.once(session, 1, "INCR a").startswith(b"-NOSESSION ")
    assert client.once(other, 1, "INCR a").startswith(b"-NOSESSION ")
    assert client.service.next_deadline_ms() is None
    assert client.query("GET a") == b"$1\r\n1\r\n"


def test_many_sessions_that_end_at_once_are_removed_by_and_by(client: Client) -> None:
    for _ in range(2 * MAX_EXPIRED_SESSIONS + 1):
        client.open()
    client.pass_time(20_000)
    client.pass_time(0)
    assert client.service.next_deadline_ms() is not None
    client.pass_time(0)
    assert client.service.next_deadline_ms() is None


def test_keys_that_expire_still_move_the_time(client: Client) -> None:
    client.open(10_000)
    client.apply("SET a 1 PX 500")
    assert client.service.next_deadline_ms() == START_MS + 500
    client.pass_time(500)
    client.apply("SET a 1 PX 50000")
    assert client.service.next_deadline_ms() == START_MS + 1500
    client.pass_time(9000)
    assert client.service.next_deadline_ms() == START_MS + 10_000


def test_ids_come_from_the_log_and_never_twice(client: Client) -> None:
    assert client.open() == 1
    where = client.position
    lines = ["QUORATE.SESSION OPEN"] * 2 + ["QUORATE.SESSION CLOSE 321", "QUORATE.SESSION OPEN"]
    assert client.apply(*lines) == b":%d\r\n:%d\r\n+OK\r\n:%d\r\n" % (
        where + 1,
        where + 2,
        where + 3,
    )
    assert client.open() == 2 * BATCH_BYTES + 1
    assert client.service.next_deadline_ms() == START_MS + 10_000
    assert client.apply("QUORATE.SESSION CLOSE 1", "QUORATE.SESSION CLOSE 641") == b"+OK\r\n+OK\r\n"
    assert client.service.next_deadline_ms() == START_MS + DEFAULT_SESSION_MS


def test_there_are_so_many_at_most(client: Client) -> None:
    lines = ["QUORATE.SESSION OPEN"] * MAX_SESSIONS
    assert b"-" not in client.apply(*lines)
    assert client.apply("QUORATE.SESSION OPEN").startswith(b"-SESSIONLIMIT ")
    client.apply("QUORATE.SESSION CLOSE 1")
    client.open()


@pytest.mark.parametrize(
    "line",
    [
        "OPEN 999",
        "OPEN 86400001",
        "OPEN x",
        "OPEN 1000 1",
        "KEEPALIVE",
        "KEEPALIVE x",
        "KEEPALIVE 1 -1",
        "KEEPALIVE 1 x",
        "KEEPALIVE 1 2 3",
        "CLOSE",
        "CLOSE 1 2",
        "DANCE",
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, line: str) -> None:
    assert client.open() == 1
    assert client.apply(f"QUORATE.SESSION {line}").startswith(b"-ERR ")
    assert client.once(1, 1, "INCR a") == b":1\r\n"


def test_no_command_on_keys_reaches_them(client: Client) -> None:
    session = client.open()
    client.once(session, 1, "INCR a")
    assert client.query("DBSIZE", "KEYS *") == b":1\r\n*1\r\n$1\r\na\r\n"
    client.apply("FLUSHALL")
    assert client.once(session, 1, "INCR a") == b":1\r\n"
    assert client.query("DBSIZE") == b":0\r\n"


async def test_a_restart_and_a_snapshot_remember_them(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_service(tmp_path / "a")) as fed:
        client = Client(fed.service)
        session = client.open()
        closed = client.open()
        client.once(session, 1, "INCR a")
        client.once(session, 2, "INCR a")
        client.apply(f"QUORATE.SESSION KEEPALIVE {session} 1", f"QUORATE.SESSION CLOSE {closed}")
        pieces = list(await client.service.save())
    async with running(open_service(tmp_path / "a")) as fed:
        check(Client(fed.service), session, closed)
    async with running(open_service(tmp_path / "b")) as fed:
        client = Client(fed.service)
        client.open()
        await client.service.load(iter(pieces), 4 * BATCH_BYTES, START_MS)
        client.position = 4 * BATCH_BYTES
        assert list(await client.service.save()) == pieces
        check(client, session, closed)
        await trio.lowlevel.checkpoint()


def check(client: Client, session: int, closed: int) -> None:
    assert client.service.next_deadline_ms() == START_MS + 10_000
    assert client.once(session, 2, "INCR a") == b":2\r\n"
    assert client.once(session, 1, "INCR a").startswith(b"-FORGOTTEN ")
    assert client.once(session, 3, "INCR a") == b":3\r\n"
    assert client.once(closed, 1, "INCR a").startswith(b"-NOSESSION ")
    assert client.open() > closed


# --- whose session it is


def by(client: Client, user: int, line: str, stamp: tuple[int, int] = (0, 0)) -> bytes:
    """Apply an entry of a user."""
    where, now = client.position, client.now
    command = Command(encode(line), 0, *stamp, 1, where, 0, now, principal=user)
    return client.replay(command)


ALICE, BOB = 1, 2


def opened_by(client: Client, user: int) -> int:
    return int(by(client, user, "QUORATE.SESSION OPEN 10000")[1:])


@pytest.mark.parametrize("stranger", [0, BOB])
def test_a_session_of_another_user_does_not_exist(client: Client, stranger: int) -> None:
    session = opened_by(client, ALICE)
    by(client, ALICE, "SET card secret")
    assert by(client, ALICE, "GETDEL card", (session, 1)) == b"$6\r\nsecret\r\n"
    closed = opened_by(client, ALICE)
    by(client, ALICE, f"QUORATE.SESSION CLOSE {closed}")
    for line, stamp in (
        ("SET b 1", (1,)),  # its reply is kept
        ("SET b 1", (2,)),  # never came
        ("QUORATE.SESSION KEEPALIVE {}", ()),
        ("QUORATE.SESSION KEEPALIVE {} 1", ()),
        ("QUORATE.SESSION KEEPALIVE {} 99", ()),
        ("QUORATE.SESSION CLOSE {}", ()),
    ):
        replies = [
            by(client, stranger, line.format(each), (each, *stamp) if stamp else (0, 0))
            for each in (session, closed)
        ]
        # Word for word as for one that is closed.
        assert replies[0].startswith(b"-NOSESSION there is no session ")
        assert replies[0].replace(b"%d" % session, b"%d" % closed) == replies[1]
    assert client.query("GET b") == b"$-1\r\n"
    assert by(client, ALICE, "SET paid yes", (session, 2)) == b"+OK\r\n"
    assert client.query("GET paid") == b"$3\r\nyes\r\n"


def test_a_stranger_s_commands_do_not_keep_a_session_alive(client: Client) -> None:
    session = opened_by(client, ALICE)
    for _ in range(2):
        client.pass_time(6_000)
        by(client, BOB, f"QUORATE.SESSION KEEPALIVE {session}")
        by(client, BOB, "INCR a", (session, 1))
    assert by(client, ALICE, "INCR a", (session, 1)).startswith(b"-NOSESSION ")


async def test_the_owner_is_known_after_a_restart_and_in_a_snapshot(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    del autojump_clock
    async with running(open_service(tmp_path / "one")) as fed:
        client = Client(fed.service)
        session, nobodys = opened_by(client, ALICE), client.open()
        assert by(client, ALICE, "INCR a", (session, 1)) == b":1\r\n"
        at, now, snapshot = client.position, client.now, list(await fed.service.save())
    async with running(open_service(tmp_path / "one")) as fed:
        _check_owner(Client(fed.service), session, nobodys)
    async with running(open_service(tmp_path / "two")) as fed:
        await fed.service.load(iter(snapshot), at, now)
        client = Client(fed.service)
        client.position = at
        _check_owner(client, session, nobodys)


def test_sessions_of_nobody_are_stored_as_before_there_were_users(client: Client) -> None:
    nobodys, alices = client.open(), opened_by(client, ALICE)
    rows = client.service._tables.notes.rows  # pyright: ignore[reportPrivateUsage]
    assert [len(rows[each.to_bytes(8)]) for each in (nobodys, alices)] == [24, 32]


def _check_owner(client: Client, session: int, nobodys: int) -> None:
    assert by(client, BOB, "INCR a", (session, 1)).startswith(b"-NOSESSION ")
    assert by(client, 0, "INCR a", (session, 1)).startswith(b"-NOSESSION ")
    assert by(client, ALICE, "INCR a", (nobodys, 1)).startswith(b"-NOSESSION ")
    assert by(client, ALICE, "INCR a", (session, 1)) == b":1\r\n"
    assert by(client, 0, "INCR a", (nobodys, 1)) == b":2\r\n"
