"""What a partition executes: commands whose keys are in one slot that it owns."""

from collections.abc import Generator
from pathlib import Path

import pytest

from quorate.keyvalue.protocol.payload import FROZEN, IN_PARTS, TRANSACTION, encode_part, part
from quorate.node.state_machine.service import Command
from tests.support.service_world import Line, encode
from tests.support.slots_world import ALL, PartitionFed, slot_of

A, B = slot_of("a"), slot_of("b")
CROSSSLOT = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
NOT_SERVED = b"-CLUSTERDOWN Hash slot not served\r\n"
OF_A: list[Line] = [
    "GET a",
    "SET a 1",
    "Set a 1",
    "SET a 1 PX 100",
    "MGET a {a}1",
    "MSET a 1 {a}1 2",
    "DEL a {a}1",
    "RENAME a {a}1",
    "EXISTS a a",
    "OBJECT ENCODING a",
    "QUORATE.CAS a ABSENT SET 1",
    "QUORATE.RECORDS a",
    "EXPIRE a 10",
]
READS = [line for line in OF_A if line.split()[0] in ("GET", "MGET", "EXISTS", "OBJECT")]  # type: ignore[union-attr]


@pytest.fixture
def fed(tmp_path: Path) -> Generator[PartitionFed]:
    fed = PartitionFed(tmp_path, f"{A},{B}")
    fed.apply("SET a 1")
    fed.apply("SET b 1")
    yield fed
    fed.close()


def give_away(fed: PartitionFed) -> None:
    fed.slots("FREEZE", 3, A, 7)
    fed.slots("RELEASE", 3, 7, 1)


@pytest.mark.parametrize("line", OF_A)
def test_a_slot_of_another_partition_is_refused(fed: PartitionFed, line: Line) -> None:
    assert not fed.apply(line).startswith((b"-CLUSTERDOWN", b"\0"))
    give_away(fed)
    before = fed.facts()["keys"]
    assert fed.apply(line) == NOT_SERVED
    assert fed.apply("SET b 2", line, "GET b") == b"+OK\r\n" + NOT_SERVED + b"$1\r\n2\r\n"
    fed.service.moved = lambda slot: b"-MOVED %d 1.2.3.4:5\r\n" % slot
    assert fed.apply(line) == b"-MOVED %d 1.2.3.4:5\r\n" % A
    assert fed.facts()["keys"] == before


@pytest.mark.parametrize("line", READS)
def test_queries_are_refused_in_the_same_way(fed: PartitionFed, line: Line) -> None:
    found = fed.query(line)
    fed.slots("FREEZE", 3, A, 7)
    assert fed.query(line) == FROZEN
    assert fed.query("GET b", line) == encode_part(1, b"$1\r\n1\r\n")
    fed.slots("THAW", 3)
    assert fed.query(line) == found
    fed.slots("FREEZE", 4, A, 7)
    fed.slots("RELEASE", 4, 7, 1)
    assert fed.query(line) == fed.query(line, flags=1) == NOT_SERVED


@pytest.mark.parametrize(
    "line", ["MGET a b", "MSET a 1 b 2", "DEL a {a}1 b", "RENAME a b", "WATCH a b", "EXISTS a c"]
)
def test_keys_of_two_slots_are_refused(fed: PartitionFed, line: Line) -> None:
    if line != "WATCH a b":
        assert fed.apply(line) == CROSSSLOT
    if str(line).startswith(("MGET", "WATCH", "EXISTS")):
        assert fed.query(line) == CROSSSLOT
    assert fed.query("GET a", "GET b") == b"$1\r\n1\r\n" * 2


@pytest.mark.parametrize("line", OF_A)
@pytest.mark.parametrize("flags", [0, IN_PARTS])
def test_a_payload_stops_before_a_frozen_slot(fed: PartitionFed, line: Line, flags: int) -> None:
    fed.slots("FREEZE", 3, A, 7)
    assert fed.apply(line, flags=flags) == FROZEN
    reply = fed.apply("SET b 2", "GET b", line, "SET b 3", flags=flags)
    assert part(reply, 4) == (2, b"+OK\r\n$1\r\n2\r\n")
    assert fed.query("GET b") == b"$1\r\n2\r\n"
    fed.slots("THAW", 3)
    assert fed.query("GET a") == b"$1\r\n1\r\n", "nothing has changed"


def test_a_member_whose_reply_nobody_wants_stops_there_too(fed: PartitionFed) -> None:
    fed.slots("FREEZE", 3, A, 7)
    payload = encode("SET b 2", "SET a 2", "SET b 3")
    fed.replay(Command(payload, 0, 0, 0, 1, fed.position, 0, fed.now, wants_reply=False))
    assert fed.query("GET b") == b"$1\r\n2\r\n"


def test_malformed_commands_are_answered_as_ever(fed: PartitionFed) -> None:
    give_away(fed)
    for line in ("GET", "SET a", "OBJECT ENCODING", "OBJECT NOSUCH a", "NOSUCH a", "MSET a"):
        assert fed.apply(line).startswith((b"-ERR wrong number", b"-ERR unknown")), line
        assert fed.apply(line, flags=TRANSACTION).startswith(b"*1\r\n-ERR"), line


def test_a_transaction_is_of_one_slot(fed: PartitionFed) -> None:
    def run(*lines: Line) -> bytes:
        return fed.apply(*lines, flags=TRANSACTION)

    assert run("SET a 2", "SET {a}1 2", "DBSIZE") == b"*3\r\n+OK\r\n+OK\r\n:3\r\n"
    assert run("SET a 3", "SET b 3") == CROSSSLOT
    assert run("WATCH b 0", "SET a 3") == CROSSSLOT
    assert fed.query("GET a") == b"$1\r\n2\r\n"
    fed.slots("FREEZE", 3, A, 7)
    assert run("DBSIZE", "SET a 3") == FROZEN
    assert run("WATCH a 0", "PING") == FROZEN
    assert run("SET b 3") == b"*1\r\n+OK\r\n"
    fed.slots("RELEASE", 3, 7, 2)
    assert run("DBSIZE", "SET a 3") == NOT_SERVED
    assert fed.query("GET a", "GET b", flags=TRANSACTION) == CROSSSLOT
    assert fed.query("GET a", "GET {a}1", flags=TRANSACTION) == NOT_SERVED


def test_a_move_is_no_part_of_a_transaction(fed: PartitionFed) -> None:
    lines = ("SET a 2", f"QUORATE.SLOTS FREEZE 3 {A} 1", "SET a 3")
    assert fed.apply(*lines, flags=TRANSACTION).startswith(b"-ERR QUORATE.SLOTS must be")
    assert fed.query("GET a") == b"$1\r\n1\r\n"
    assert fed.facts()["frozen"] == []


def test_a_session_keeps_that_a_slot_is_not_here(fed: PartitionFed) -> None:
    session = int(fed.apply("QUORATE.SESSION OPEN")[1:])
    assert fed.once(session, 1, "INCR a") == b":2\r\n"
    fed.slots("FREEZE", 3, A, 7)
    assert fed.once(session, 1, "INCR a") == b":2\r\n", "it was applied before"
    assert fed.once(session, 2, "INCR a") == FROZEN
    assert fed.once(session, 2, "SET b 5", "INCR a") == FROZEN, "all or nothing"
    assert fed.query("GET b") == b"$1\r\n1\r\n"
    fed.slots("THAW", 3)
    assert fed.once(session, 2, "INCR a") == b":3\r\n", "nothing was kept"
    fed.slots("FREEZE", 4, A, 7)
    fed.slots("RELEASE", 4, 7, 1)
    not_here = b"-NOTHERE slot %d is not in this partition; nothing was done\r\n" % A
    assert fed.once(session, 2, "INCR a") == b":3\r\n"
    assert fed.once(session, 3, "INCR a") == not_here
    assert fed.once(session, 4, "SET b 5", "INCR a") == not_here
    assert fed.once(session, 5, "INCR a", flags=TRANSACTION) == not_here
    assert fed.query("GET b") == b"$1\r\n1\r\n"
    fed.slots("PURGE", 10)
    fed.slots("IMPORT", 5, A)
    fed.slots("OWN", 5, 9000, 0, 2)
    assert fed.once(session, 3, "INCR a") == not_here, "it stays what it was"
    assert fed.once(session, 6, "INCR a") == b":1\r\n"


def test_a_session_may_send_commands_of_several_slots(fed: PartitionFed) -> None:
    session = int(fed.apply("QUORATE.SESSION OPEN")[1:])
    assert fed.once(session, 1, "INCR a", "INCR b", "MGET a b") == b":2\r\n:2\r\n" + CROSSSLOT
    assert fed.once(session, 2, "INCR a", "INCR b", flags=TRANSACTION) == CROSSSLOT
    assert fed.once(session, 3, "QUORATE.SLOTS THAW 9") == b"+OK\r\n"
    assert fed.once(session, 4, "QUORATE.SLOTS THAW 9", "INCR a").startswith(b"-ERR QUORATE.SLOTS")


def test_all_is_deleted_only_while_nothing_moves(fed: PartitionFed) -> None:
    fed.slots("FREEZE", 3, A, 7)
    assert fed.apply("FLUSHALL") == fed.apply("FLUSHDB", flags=TRANSACTION) == FROZEN
    fed.slots("RELEASE", 3, 7, 1)
    fed.slots("IMPORT", 4, "1")
    assert fed.apply("FLUSHALL").startswith(b"-TRYAGAIN")
    assert fed.apply("GET b", "FLUSHALL", flags=TRANSACTION).startswith(b"-TRYAGAIN")
    assert fed.query("DBSIZE") == b":1\r\n"
    fed.slots("DROP", 4)
    assert fed.facts()["stale"] == f"1,{A}"
    assert fed.apply("FLUSHALL nonsense").startswith(b"-ERR syntax")
    assert fed.apply("FLUSHALL") == b"+OK\r\n"
    assert fed.facts()["stale"] == ""
    assert len(fed.service._tables) == 0  # pyright: ignore[reportPrivateUsage]


def test_walks_see_only_what_is_served(tmp_path: Path) -> None:
    fed = PartitionFed(tmp_path, ALL)
    for number in range(5):
        fed.apply(f"SET {{a}}{number} 1 EX 100")
        fed.apply(f"SET {{b}}{number} 1 EX 100")
    fed.slots("FREEZE", 3, A, 7)
    assert fed.query("DBSIZE", "QUORATE.EXPIRING") == b":10\r\n:10\r\n", "it still has them"
    fed.slots("RELEASE", 3, 7, 5)
    assert fed.query("DBSIZE", "QUORATE.EXPIRING") == b":5\r\n:5\r\n"
    assert fed.query("KEYS *").startswith(b"*5\r\n")
    assert b"{a}" not in fed.query("KEYS *", "KEYS {a}*", "SCAN 0 COUNT 100", *["RANDOMKEY"] * 9)
    fed.slots("FREEZE", 4, B, 7)
    fed.slots("RELEASE", 4, 7, 5)
    assert fed.query("RANDOMKEY", "DBSIZE") == b"$-1\r\n:0\r\n"
    fed.close()
