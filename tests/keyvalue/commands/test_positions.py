"""QUORATE.CAS, QUORATE.RECORDS and QUORATE.POSITION on a bare service."""

from collections.abc import Generator
from pathlib import Path

import pytest

from quorate.keyvalue.commands import positions
from quorate.keyvalue.protocol.payload import RESP3, TRANSACTION
from tests.support.service_world import START_MS, Fed, open_service

SYNTAX_ERROR = b"-ERR syntax error\r\n"


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


def test_a_key_is_changed_if_it_has_the_expected_value(fed: Fed) -> None:
    assert fed.apply("QUORATE.CAS k EQUALS a SET b") == b":0\r\n"
    assert fed.apply("QUORATE.CAS k ABSENT SET a") == b":321\r\n"
    assert fed.apply("QUORATE.CAS k ABSENT SET b") == b":0\r\n"
    assert fed.apply("quorate.cas k equals b set c") == b":0\r\n"
    assert fed.apply("quorate.cas k equals a set c") == b":1281\r\n", "positions rise"
    assert fed.query("GET k") == b"$1\r\nc\r\n"
    assert fed.apply("QUORATE.CAS k EQUALS a DELETE") == b":0\r\n"
    assert fed.apply("QUORATE.CAS k EQUALS c DELETE") == b":1921\r\n"
    assert fed.query("GET k") == b"$-1\r\n"


def test_an_expiry_is_set_kept_or_removed(fed: Fed) -> None:
    expiry = b":%d\r\n" % (START_MS + 100)
    fed.apply("QUORATE.CAS k ABSENT SET a PX 100")
    assert fed.query("PEXPIRETIME k") == expiry
    fed.apply("QUORATE.CAS k EQUALS a SET b keepttl")
    assert fed.query("PEXPIRETIME k", "GET k") == expiry + b"$1\r\nb\r\n"
    fed.apply("QUORATE.CAS k EQUALS b SET b")
    assert fed.query("PEXPIRETIME k") == b":-1\r\n"
    fed.apply("QUORATE.CAS k EQUALS b SET b px 50")
    fed.pass_time(50)
    assert fed.apply("QUORATE.CAS k EQUALS b SET c") == b":0\r\n", "it has expired"
    assert fed.apply("QUORATE.CAS k ABSENT SET c KEEPTTL") != b":0\r\n"
    assert fed.query("PEXPIRETIME k") == b":-1\r\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("k ABSENT SET", SYNTAX_ERROR),
        ("k ABSENT x y", SYNTAX_ERROR),
        ("k SET a b", SYNTAX_ERROR),
        ("k EQUALS DELETE", SYNTAX_ERROR),
        ("k EQUALS a DELETE x", SYNTAX_ERROR),
        ("k ABSENT SET a EX 1", SYNTAX_ERROR),
        ("k ABSENT SET a PX 1 KEEPTTL", SYNTAX_ERROR),
        ("k ABSENT SET a PX 0", b"-ERR invalid expire time in 'quorate.cas' command\r\n"),
        ("k ABSENT SET a PX x", b"-ERR value is not an integer or out of range\r\n"),
        ("k ABSENT", b"-ERR wrong number of arguments for 'quorate.cas' command\r\n"),
    ],
)
def test_malformed_conditions_change_nothing(fed: Fed, line: str, error: bytes) -> None:
    assert fed.apply(f"QUORATE.CAS {line}") == error
    assert fed.query("DBSIZE") == b":0\r\n"


def test_records_have_value_revision_and_expiry(fed: Fed) -> None:
    fed.apply("SET a 1", "SET b 2 PX 100")
    replies = b"*3\r\n$1\r\n1\r\n:1\r\n:0\r\n%b*3\r\n$1\r\n2\r\n:1\r\n:%d\r\n"
    for flags, null in ((0, b"$-1\r\n"), (RESP3, b"_\r\n")):
        expected = b"*3\r\n" + replies % (null, START_MS + 100)
        assert fed.query("QUORATE.RECORDS a nosuch b", flags=flags) == expected
    assert fed.apply("QUORATE.RECORDS nosuch") == b"*1\r\n$-1\r\n"


def test_records_too_long_for_a_reply_are_refused(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "MAX_REPLY_BYTES", 100)
    fed.apply(["SET", "a", "x" * 60])
    assert fed.query("QUORATE.RECORDS a").startswith(b"*1\r\n*3\r\n$60\r\n")
    assert fed.query("QUORATE.RECORDS a a").startswith(b"-ERR a reply may have ")


def test_the_position_is_that_of_the_state_or_of_the_transaction(fed: Fed) -> None:
    assert fed.query("QUORATE.POSITION") == b":0\r\n"
    assert fed.apply("SET a 1", "QUORATE.POSITION", flags=TRANSACTION) == b"*2\r\n+OK\r\n:1\r\n"
    assert fed.query("QUORATE.POSITION") == b":320\r\n"
    assert fed.query("QUORATE.RECORDS a") == b"*1\r\n*3\r\n$1\r\n1\r\n:1\r\n:0\r\n"
    condition = "WATCH a 1"
    body = condition, "INCR a", "QUORATE.POSITION"
    assert fed.apply(*body, flags=TRANSACTION) == b"*2\r\n:2\r\n:321\r\n"
    assert fed.apply(*body, flags=TRANSACTION) == b"*-1\r\n"
