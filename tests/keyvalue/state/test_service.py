"""The key-value service: time, revisions, transactions, queries, and bad input."""

from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.limits import MAX_EXPIRED_PER_BATCH, MAX_REPLY_BYTES, MAX_VALUE_BYTES
from quorate.keyvalue.protocol.payload import RESP3, TRANSACTION
from quorate.keyvalue.service import KeyValueService
from quorate.node.state_machine.service import Command, Service
from quorate.storage.tables.tables import Tables
from quorate.storage.testing import InlineExecutor
from tests.support.service_world import START_MS, Fed, encode, open_service, running


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


def test_it_is_a_service(fed: Fed) -> None:
    service: Service = fed.service
    assert service.position == 0


# --- time


def test_a_key_is_gone_when_log_time_reaches_its_expiry(fed: Fed) -> None:
    fed.apply("SET a 1 PX 1000")
    fed.pass_time(999)
    assert fed.query("GET a", "PTTL a", "DBSIZE") == b"$1\r\n1\r\n:1\r\n:1\r\n"
    fed.pass_time(1)
    assert fed.query("GET a", "PTTL a", "DBSIZE") == b"$-1\r\n:-2\r\n:0\r\n"


def test_durations_count_from_the_timestamp_of_the_command(fed: Fed) -> None:
    command = Command(encode("SET a 1 EX 10"), 0, 0, 0, 1, 320, 0, START_MS + 777)
    fed.replay(command)
    assert fed.query("PEXPIRETIME a") == b":%d\r\n" % (START_MS + 10_777)


def test_time_never_goes_back(fed: Fed) -> None:
    fed.apply("SET a 1 PX 1000")
    fed.pass_time(1000)
    fed.now -= 500
    assert fed.apply("GET a") == b"$-1\r\n"


def test_a_key_that_is_set_anew_does_not_expire(fed: Fed) -> None:
    fed.apply("SET a 1 PX 1000")
    fed.apply("SET a 2")
    fed.pass_time(2000)
    assert fed.query("GET a") == b"$1\r\n2\r\n"
    assert fed.service.next_deadline_ms() is None


def test_expired_keys_are_removed_some_at_a_time(tmp_path: Path) -> None:
    tables = Tables.open(tmp_path, cluster="test", member_id=1, executor=InlineExecutor)
    fed = Fed(KeyValueService(tables))
    count = MAX_EXPIRED_PER_BATCH + 10
    fed.apply(*(f"SET {i} x PX 1000" for i in range(count)), "SET kept x")
    fed.pass_time(1000)
    assert fed.query("DBSIZE") == b":1\r\n"
    assert len(tables) == 1 + count - MAX_EXPIRED_PER_BATCH
    assert fed.service.next_deadline_ms() == fed.now
    fed.pass_time(0)
    assert fed.query("DBSIZE", "KEYS *") == b":1\r\n*1\r\n$4\r\nkept\r\n"
    assert len(tables) == 1
    assert fed.service.next_deadline_ms() is None
    tables.close()


def test_time_should_move_while_a_key_expires(fed: Fed) -> None:
    assert fed.service.next_deadline_ms() is None
    fed.apply("SET a 1 PX 10000")
    assert fed.service.next_deadline_ms() == START_MS + 1000
    fed.pass_time(9500)
    assert fed.service.next_deadline_ms() == START_MS + 10_000
    fed.apply("PERSIST a")
    assert fed.service.next_deadline_ms() is None


# --- revisions and transactions


def test_every_change_gives_a_key_a_new_revision(fed: Fed) -> None:
    seen = [fed.query("WATCH a")]
    for line in (
        "SET a 1",
        "SET a 1",
        "APPEND a 2",
        "INCR a",
        "EXPIRE a 100",
        "PERSIST a",
        "GETEX a EX 10",
        "RENAME a b",
        "RENAME b a",
        "COPY a b REPLACE",
    ):
        fed.apply(line)
        seen.append(
            fed.query("WATCH b" if "b REPLACE" in line or line.endswith(" b") else "WATCH a")
        )
    assert len(set(seen)) == len(seen)
    assert seen[0] == b"*1\r\n:0\r\n"


def test_reading_changes_no_revision(fed: Fed) -> None:
    fed.apply("SET a 1")
    before = fed.query("WATCH a b")
    fed.apply("GET a", "TTL a", "GETEX a", "SET a 2 NX", "SETNX a 2", "GETRANGE a 0 1", "PERSIST a")
    assert fed.query("WATCH a b") == before


def test_commands_of_one_batch_make_different_revisions(fed: Fed) -> None:
    for index, key in enumerate("ab"):
        payload = encode(f"SET {key} 1")
        fed.service.apply(Command(payload, 0, 0, 0, 1, 640, index, START_MS))
    assert fed.query("WATCH a b c") == b"*3\r\n:641\r\n:642\r\n:0\r\n"


def revision_of(fed: Fed, key: str) -> str:
    return fed.query(f"WATCH {key}").split(b":")[1].strip().decode()


def test_a_transaction_is_done_when_no_watched_key_has_changed(fed: Fed) -> None:
    fed.apply("SET a 1")
    watch = f"WATCH a {revision_of(fed, 'a')} b 0"
    reply = fed.apply(watch, "INCR a", "GET a", "INCR x y", flags=TRANSACTION)
    assert reply == (
        b"*3\r\n:2\r\n$1\r\n2\r\n-ERR wrong number of arguments for 'incr' command\r\n"
    )


@pytest.mark.parametrize("change", ["SET a 1", "DEL a", "EXPIRE a 100", "SET b 1", "FLUSHALL"])
def test_nothing_is_done_when_a_watched_key_has_changed(fed: Fed, change: str) -> None:
    fed.apply("SET a 1")
    watch = f"WATCH a {revision_of(fed, 'a')} b 0"
    fed.apply(change)
    assert fed.apply(watch, "SET c 1", flags=TRANSACTION) == b"*-1\r\n"
    assert fed.apply(watch, "SET c 1", flags=TRANSACTION | RESP3) == b"_\r\n"
    assert fed.query("EXISTS c") == b":0\r\n"


def test_expiry_is_a_change(fed: Fed) -> None:
    fed.apply("SET a 1 PX 1000")
    watch = f"WATCH a {revision_of(fed, 'a')}"
    assert fed.query(watch, "GET a", flags=TRANSACTION) == b"*1\r\n$1\r\n1\r\n"
    fed.pass_time(1000)
    assert fed.query(watch, "GET a", flags=TRANSACTION) == b"*-1\r\n"


def test_an_empty_transaction_has_an_empty_reply(fed: Fed) -> None:
    assert fed.apply(flags=TRANSACTION) == b"*0\r\n"
    assert fed.apply("WATCH a 0", flags=TRANSACTION) == b"*0\r\n"
    assert fed.apply("WATCH a 7", flags=TRANSACTION) == b"*-1\r\n"


# --- queries and bad input


def test_a_query_can_not_write(fed: Fed) -> None:
    assert fed.query("SET a 1") == b"-ERR a query can't write\r\n"
    assert fed.query("GET a", "SET a 1", flags=TRANSACTION) == (
        b"*2\r\n$-1\r\n-ERR a query can't write\r\n"
    )
    assert fed.query("EXISTS a") == b":0\r\n"


@pytest.mark.parametrize("line", ["PING", "WATCH a", "COMMAND COUNT", "CLIENT ID"])
def test_commands_of_connections_are_not_for_the_state_machine(fed: Fed, line: str) -> None:
    assert fed.apply(line) == b"-ERR this command is not one for the state machine\r\n"


@pytest.mark.parametrize(
    "payload",
    [
        b"PING\r\n",
        b"*1\r\n$3\r\nGE",
        b"*1\r\n:5\r\n",
        b"*2\r\n$3\r\nGET\r\n*0\r\n",
        b"*-1\r\n",
        b"$3\r\nGET\r\n",
        b"%1\r\n$3\r\nGET\r\n$1\r\na\r\n",
        b"#f\r\n*1\r\n$6\r\nDBSIZE\r\n",
        b"\x00\xff",
    ],
)
def test_bad_payloads_are_answered_and_do_no_harm(fed: Fed, payload: bytes) -> None:
    for _ in range(2):
        reply = fed.replay(Command(payload, 0, 0, 0, 1, fed.position, 0, START_MS))
        assert reply.startswith(b"-ERR Protocol error: ")
        assert reply.index(b"\r\n") == len(reply) - 2
    assert fed.apply("SET a 1") == b"+OK\r\n"


def test_an_empty_command_is_not_answered(fed: Fed) -> None:
    payload = b"*0\r\n" + encode("SET a 1") + b"*0\r\n"
    assert fed.replay(Command(payload, 0, 0, 0, 1, 320, 0, START_MS)) == b"+OK\r\n"


@given(payload=st.binary(max_size=60), flags=st.integers(0, 255))
def test_any_bytes_are_answered(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, flags: int
) -> None:
    service = open_service(tmp_path_factory.mktemp("any"))
    fed = Fed(service)
    assert isinstance(fed.replay(Command(payload, flags, 0, 0, 1, 0, 0, 0)), bytes)
    assert isinstance(service.query(payload, flags), bytes)
    service.close()


def test_values_and_replies_are_bounded(fed: Fed) -> None:
    too_long = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    assert fed.apply(f"SETRANGE a {MAX_VALUE_BYTES - 1} x") == b":%d\r\n" % MAX_VALUE_BYTES
    assert fed.apply("APPEND a x") == too_long
    assert fed.apply(f"SETRANGE a {MAX_VALUE_BYTES} x") == too_long
    reply = fed.query("GET a", "GET a")
    assert len(reply) < MAX_VALUE_BYTES + 100
    assert reply.endswith(b"-ERR replies may have %d bytes in all\r\n" % MAX_REPLY_BYTES)
    assert fed.query("MGET a a").startswith(b"-ERR a reply may have")


def test_many_small_replies_are_bounded_too(fed: Fed) -> None:
    fed.apply("SET a " + "x" * 4000)
    replies = fed.query(*["GET a"] * (MAX_REPLY_BYTES // 4000 + 100))
    assert len(replies) < MAX_REPLY_BYTES + 100 * 100


def test_a_reply_that_nobody_wants_is_not_made_and_changes_nothing(tmp_path: Path) -> None:
    members = [Fed(open_service(tmp_path / name)) for name in "ab"]
    payloads = [
        (encode("SET a 1", "INCR a", "NOSUCH", "GET a"), 0),
        (encode("SET b " + "x" * 1000), 0),
        (encode(*["GET b"] * (MAX_REPLY_BYTES // 1000), "INCR a"), TRANSACTION),
        (encode("WATCH a 0", "INCR a"), TRANSACTION),
        (b"*1", 0),
    ]
    for payload, flags in payloads:
        for wanted, fed in enumerate(members):
            command = Command(payload, flags, 0, 0, 1, fed.position, 0, START_MS, bool(wanted))
            assert wanted or len(fed.replay(command)) < 100
            if wanted:
                fed.replay(command)
    seen = [fed.query("WATCH a b", "MGET a b", "DBSIZE") for fed in members]
    assert seen[0] == seen[1]
    for fed in members:
        fed.service.close()


# --- restart


async def test_a_restart_finds_keys_expiries_and_revisions(tmp_path: Path) -> None:
    async with running(open_service(tmp_path)) as fed:
        fed.apply("SET a 1 PX 1000", "SET b 2", "SET c 3 PX 9000", "APPEND d 1", "APPEND d 2")
        revisions = fed.query("WATCH a b c d")
        position = fed.position
    async with running(open_service(tmp_path)) as again:
        assert again.service.position == position
        assert again.query("WATCH a b c d") == revisions
        assert again.query("MGET a b c d", "PTTL a", "OBJECT ENCODING d") == (
            b"*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$2\r\n12\r\n:1000\r\n$3\r\nraw\r\n"
        )
        again.pass_time(1000)
        assert again.query("DBSIZE", "GET a") == b":3\r\n$-1\r\n"
