"""What one request may cost is bounded, equally on all members; usual ones are not in its way."""

from collections.abc import Generator
from pathlib import Path

import pytest

from quorate.keyvalue import service as service_module
from quorate.keyvalue.commands.table import Kind, all_commands
from quorate.keyvalue.limits import MAX_ARGUMENTS, MAX_TRANSACTION_COMMANDS, MAX_WORK
from quorate.keyvalue.protocol.payload import IN_PARTS, TRANSACTION, part
from quorate.keyvalue.state import store as store_module
from quorate.node.state_machine.service import Command
from tests.support.service_world import START_MS, Fed, Line, encode, open_service, running

TOO_MUCH = store_module.TOO_MUCH_WORK
MIB = 1 << 20

# the write commands, each as it does something; a and n exist, b and c don't
WRITES = [
    "SET a 1",
    "SET a 1 EX 10 XX GET",
    "SETNX c 1",
    "SETEX a 10 1",
    "PSETEX a 10 1",
    "GETSET a 1",
    "GETDEL a",
    "GETEX a EX 10",
    "MSET a 1 b 2 c 3",
    "MSETNX b 2 c 3",
    "APPEND a x",
    "SETRANGE a 2 x",
    "INCR n",
    "DECR n",
    "INCRBY n 7",
    "DECRBY n 7",
    "INCRBYFLOAT n 1.5",
    "DEL a n b",
    "UNLINK a n",
    "EXPIRE a 10",
    "PEXPIRE a 10 NX",
    "EXPIREAT a 2000000000",
    "PEXPIREAT a 2000000000000",
    "PERSIST n",
    "RENAME a n",
    "RENAMENX a b",
    "COPY a n REPLACE",
    "QUORATE.CAS a EQUALS text SET other",
    "QUORATE.CAS c ABSENT SET 1 PX 100",
    "FLUSHDB",
    "FLUSHALL",
]
READS = [
    "GET a",
    "MGET a n",
    "STRLEN a",
    "GETRANGE a 0 5",
    "EXISTS a n",
    "TYPE a",
    "TTL a",
    "DBSIZE",
]


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


def left(fed: Fed) -> int:
    return fed.service._store.left  # pyright: ignore[reportPrivateUsage]


def prepare(fed: Fed) -> None:
    fed.apply("FLUSHALL", "SET a text", "SET n 12 PX 100000")


def contents(fed: Fed) -> bytes:
    return fed.query("MGET a b c n", "PEXPIRETIME a", "PEXPIRETIME n", "DBSIZE")


def test_every_write_is_tried_here() -> None:
    written = {spec.name for spec in all_commands() if spec.kind is Kind.WRITE}
    of_sessions = {"quorate.session"}  # below
    assert {line.split(" ")[0].lower() for line in WRITES} == written - of_sessions


def test_a_session_is_opened_or_refused(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_WORK", 1)
    assert fed.apply("QUORATE.SESSION OPEN") == TOO_MUCH
    monkeypatch.undo()
    assert fed.query("QUORATE.SESSIONS") == b":0\r\n"
    assert fed.apply("QUORATE.SESSION OPEN") == b":321\r\n"
    assert fed.query("QUORATE.SESSIONS") == b":1\r\n"


@pytest.mark.parametrize("line", WRITES + READS + ["SET a 1 NX GET PXAT 2000000000000"])
def test_a_full_transaction_of_usual_commands_is_within_the_bound(fed: Fed, line: str) -> None:
    prepare(fed)
    fed.apply(line)
    assert (MAX_WORK - left(fed)) * MAX_TRANSACTION_COMMANDS < MAX_WORK


@pytest.mark.parametrize("line", WRITES)
def test_a_write_is_done_whole_or_refused_and_changes_nothing(
    fed: Fed, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(fed)
    before = contents(fed)
    expected, after = fed.apply(line), contents(fed)
    refused = 0
    for budget in range(1, 12_000, 300):
        prepare(fed)
        monkeypatch.setattr(service_module, "MAX_WORK", budget)
        reply = fed.apply(line)
        monkeypatch.undo()
        if line.startswith("QUORATE.CAS") and reply != TOO_MUCH:
            assert int(reply[1:]) > int(expected[1:])  # a log position, which rises
        else:
            assert reply in (expected, TOO_MUCH)
        assert contents(fed) == (before if reply == TOO_MUCH else after)
        refused += reply == TOO_MUCH
    assert 0 < refused < 40


def test_large_values_are_changed_a_few_times_in_one_request(fed: Fed) -> None:
    fed.apply(f"SETRANGE a {8 * MIB} x")
    lines: list[Line] = [f"SETRANGE a {i} y" for i in range(100)]
    replies = fed.apply(*lines, "GETRANGE a 0 99", "SET b 1")
    done = replies.count(b":%d\r\n" % (8 * MIB + 1))
    assert 2 <= done <= 5
    assert replies.endswith(TOO_MUCH * 2)
    assert replies.count(TOO_MUCH) == 102 - done
    ys = b"y" * done
    assert fed.query("GETRANGE a 0 99") == b"$100\r\n%b\r\n" % ys.ljust(100, b"\0")
    assert fed.apply("SET b 1") == b"+OK\r\n", "the next request has a budget of its own"


def test_large_values_are_looked_at_a_few_times_in_one_request(fed: Fed) -> None:
    fed.apply(f"SETRANGE a {8 * MIB} x")
    assert fed.query(["EXISTS", *["a"] * 100]) == TOO_MUCH
    assert fed.apply(["DEL", "b", "a", *["c"] * 10]) == b":1\r\n"


def test_small_values_may_be_changed_as_often_as_a_run_is_long(fed: Fed) -> None:
    fed.apply("SETRANGE a 100000 x")
    assert TOO_MUCH not in fed.apply(*["APPEND a x"] * 1000)


def test_a_command_with_very_many_arguments_is_refused(fed: Fed) -> None:
    fed.apply("SET k 1")
    most = ["DEL", "k", *["x"] * (MAX_ARGUMENTS - 2)]
    assert fed.apply(most) == b":1\r\n"
    assert left(fed) > 0
    assert fed.apply(["MSET", *["k", "2"] * 500_000]) == TOO_MUCH
    assert fed.query("EXISTS k") == b":0\r\n"


def test_numbers_that_take_long_are_few_in_one_request(fed: Fed) -> None:
    for text in ("1e4900", "1e-4951", "0x1p-16000", "9" * 5000, "1" * 5000 + "e9999"):
        fed.apply("DEL f")
        replies = fed.apply(*[f"INCRBYFLOAT f {text}"] * 400)
        assert 100 < replies.count(TOO_MUCH) < 350, text
    fed.apply("SET f 1e4900")
    assert fed.apply(*["INCRBYFLOAT f 1"] * 400).count(TOO_MUCH) > 100


def test_a_transaction_that_watches_too_much_does_nothing(fed: Fed) -> None:
    fed.apply(f"SETRANGE a {8 * MIB} x")
    revision = fed.query("WATCH a").split(b":")[1].strip()
    watch = [b"WATCH", *[b"a", revision] * 20]
    assert fed.apply(watch, "SET b 1", flags=TRANSACTION) == TOO_MUCH
    assert fed.query("EXISTS b") == b":0\r\n"
    assert fed.query(["WATCH", *["a"] * 20]) == TOO_MUCH


async def test_members_refuse_the_same_wherever_a_record_lies(tmp_path: Path) -> None:
    lines: list[Line] = [f"SETRANGE {key} {MIB} x" for key in "abcdefgh"]
    lines += [f"SETRANGE gone {4 * MIB} x"]
    async with running(open_service(tmp_path / "1")) as first:
        second = Fed(open_service(tmp_path / "2"))
        for fed in (first, second):
            fed.apply(*lines)
            fed.apply("PEXPIRE gone 1")
        await first.service.flush()
        for fed in (first, second):
            fed.now += 10  # no batch has removed what has expired since
            payload = encode(
                *(f"APPEND {key} x" for key in ["gone", *"abcdefgh"] * 6), "KEYS *", "SCAN 0"
            )
            fed.service.apply(Command(payload, 0, 0, 0, 1, fed.position, 0, START_MS + 10))
        assert left(first) == left(second) < 0
        assert first.query("MGET gone", "STRLEN h") == second.query("MGET gone", "STRLEN h")
        second.service.close()


def in_parts(fed: Fed, lines: list[Line]) -> tuple[bytes, int]:
    """Apply commands as a pipeline would; return the replies, and in how many parts."""
    replies, parts = b"", 0
    while lines:
        done, reply = part(fed.apply(*lines, flags=IN_PARTS), len(lines))
        assert 0 < done <= len(lines)
        lines = lines[done:]
        replies += reply
        parts += 1
    return replies, parts


def test_what_is_large_is_done_in_parts_where_that_is_allowed(fed: Fed) -> None:
    fed.apply(f"SETRANGE a {8 * MIB} x")
    lines: list[Line] = [f"SETRANGE a {i} y" for i in range(40)]
    replies, parts = in_parts(fed, [*lines, "GETRANGE a 0 41", "SET b 1"])
    assert replies == b":%d\r\n" % (8 * MIB + 1) * 40 + b"$42\r\n%b\0\0\r\n+OK\r\n" % (b"y" * 40)
    assert 20 <= parts <= 42
    replies, parts = in_parts(fed, ["GET a", "GET none"] * 5)
    assert replies.count(b"y" * 40 + b"\0") == replies.count(b"\r\n$-1\r\n") == 5
    assert 5 <= parts <= 10
    small: list[Line] = [f"SET {i} x" for i in range(1000)]
    assert in_parts(fed, small) == (b"+OK\r\n" * 1000, 1)


def test_a_part_is_the_same_for_members_that_nobody_waits_for(tmp_path: Path) -> None:
    lines: list[Line] = [f"SET a {'x' * 1000}", *["APPEND a " + "x" * 1000] * 900]
    lines += ["GET a", "INCR n"] * 20
    payload = encode(*lines)
    contents: list[bytes] = []
    for wanted in (True, False):
        service = open_service(tmp_path / str(wanted))
        command = Command(payload, IN_PARTS, 0, 0, 1, 0, 0, START_MS, wants_reply=wanted)
        reply = service.apply(command)
        assert reply.startswith(b"\0") if wanted else not reply
        service.advance(320, START_MS)
        contents.append(service.query(encode("GET a", "GET n"), 0))
        service.close()
    assert contents[0] == contents[1]
