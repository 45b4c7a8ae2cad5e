"""INCRBYFLOAT gives what Redis gives on x86-64, whose long double has 64 bits of precision."""

from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.commands.arguments import parse_integer
from tests.support.service_world import Fed, open_service


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fed]:
    service = open_service(tmp_path_factory.mktemp("numbers"))
    yield Fed(service)
    service.close()


def sum_of(fed: Fed, value: str, increment: str) -> str:
    reply = fed.apply(["SET", "a", value], ["INCRBYFLOAT", "a", increment]).split(b"\r\n")
    return (reply[1][1:] if reply[1].startswith(b"-") else reply[2]).decode()


@pytest.mark.parametrize(
    ("value", "increment", "expected"),
    [
        ("0.1", "0.2", "0.3"),
        ("1e15", "0.3", "1000000000000000.29998779296875"),
        ("1e0000000000000000000002", "0", "100"),
        ("1e-0000000000000000000002", "0", "0.01"),
        ("18446744073709551615", "1", "18446744073709551616"),
        ("18446744073709551617", "0", "18446744073709551616"),
        ("9007199254740993", "0", "9007199254740993"),
        ("0.30000000000000000001", "0", "0.3"),
        ("1e-18", "0", "0"),
        ("5e-18", "0", "0"),
        ("6e-18", "0", "0.00000000000000001"),
        ("-0", "0", "0"),
        ("-1e-20", "0", "0"),
        ("1e22", "1", "10000000000000000000000"),
        ("0X1P4", "0", "16"),
        ("0x.8", "0", "0.5"),
        (".5", "+.5", "1"),
        ("5.", "0", "5"),
        ("123456789.123456789", "987654321.987654321", "1111111111.11111110995989293"),
        ("1e300", "-1e300", "0"),
        ("3.14159265358979323846", "0", "3.14159265358979324"),
        ("1e4932", "1e4932", "ERR increment would produce NaN or Infinity"),
        ("1e4933", "0", "ERR value is not a valid float"),
        ("1e-4951", "0", "ERR value is not a valid float"),
        ("1e", "0", "ERR value is not a valid float"),
        ("0x", "0", "ERR value is not a valid float"),
        ("..5", "0", "ERR value is not a valid float"),
        ("1e5.5", "0", "ERR value is not a valid float"),
        ("1_0", "0", "ERR value is not a valid float"),
    ],
)
def test_floats_are_added_as_redis_adds_them(
    fed: Fed, value: str, increment: str, expected: str
) -> None:
    assert sum_of(fed, value, increment) == expected


def test_the_largest_numbers_are_printed_and_read(fed: Fed) -> None:
    text = sum_of(fed, "1e4932", "0")
    assert len(text) == 4933
    assert sum_of(fed, text, "0") == text


@given(whole=st.integers(-(2**63), 2**63), other=st.integers(-(2**62), 2**62))
def test_integers_of_64_bits_are_exact(fed: Fed, whole: int, other: int) -> None:
    if abs(whole + other) <= 2**64:
        assert sum_of(fed, str(whole), str(other)) == str(whole + other)


@given(st.text(alphabet="0123456789.eExXpP+-abfinty", max_size=12))
def test_any_text_is_a_number_or_refused(fed: Fed, text: str) -> None:
    result = sum_of(fed, text, "0")
    assert result.startswith("ERR ") or sum_of(fed, result, "0") == result


@given(st.integers())
def test_an_integer_has_one_spelling(number: int) -> None:
    text = str(number).encode()
    assert parse_integer(text) == (number if -(2**63) <= number < 2**63 else None)
    for other in (b"+" + text, b"0" + text, b" " + text, text + b" ", text + b".0", b"_" + text):
        assert parse_integer(other) is None
