"""Commands on numbers: strings that hold integers or floating-point numbers.

INCRBYFLOAT gives the results of Redis on x86-64: C's ``long double``, 80 bits wide with 64 bits of
precision. The naive way, the hardware's own floats, would give other results on other machines, and
replicas would drift apart. So numbers are pairs of exact integers here, mantissa and exponent, and
rounding is done by hand, half to even.
"""

import functools
import re
from typing import Final, TypeAlias

from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.store import STRING, TEXT_STRING, KeyStore
from .arguments import INT64_MAX, INT64_MIN, NOT_AN_INTEGER, integer, parse_integer
from .strings import Handler

_OVERFLOW: Final = resp.error("ERR increment or decrement would overflow")
_NOT_A_FLOAT: Final = resp.error("ERR value is not a valid float")
_NOT_FINITE: Final = resp.error("ERR increment would produce NaN or Infinity")

_MANTISSA_BITS: Final = 64
_LEAST_EXPONENT: Final = -16445  # of the last bit of the smallest number
_MAX_EXPONENT: Final = 16384
_MAX_FLOAT_TEXT: Final = 5119
_MAX_SIZE: Final = 16_600  # bits; beyond it everything is infinite or zero
_BITS_OF_A_DIGIT: Final = 3.321928094887362
_MAX_DIGITS: Final = 12  # of an exponent
_HALF: Final = 2560
_SHIFT: Final[int] = 10**_HALF
_DECIMALS: Final = 17
_ONE: Final[int] = 10**_DECIMALS
_USUAL_FLOAT_TEXT: Final = 64
_FLOAT_WORK: Final = 2000
_LONG_FLOAT_WORK: Final = 500_000
_KNOWN_NUMBERS: Final = 1024
# Nearly all numbers have this form and take microseconds; any other may take a millisecond.
_USUAL_FLOAT: Final = re.compile(
    rb"([+-]?)([0-9]{1,40})(?:\.([0-9]{0,40}))?(?:e([+-]?[0-9]{1,2}))?"
)
_FLOAT: Final = re.compile(
    rb"([+-]?)(?:(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:e([+-]?\d+))?"
    rb"|0x(?:([\da-f]+)(?:\.([\da-f]*))?|\.([\da-f]+))(?:p([+-]?\d+))?)",
    re.IGNORECASE,
)
_INFINITE: Final = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)

_Float: TypeAlias = tuple[int, int]
"""A mantissa of up to 64 bits and an exponent: mantissa * 2 ** exponent."""


def _add(store: KeyStore, key: bytes, amount: int) -> bytes:
    record = store.get(key)
    old, expires_at_ms = (record[0], record[1]) if record else (b"0", 0)
    number = parse_integer(old)
    if number is None:
        return NOT_AN_INTEGER
    number += amount
    if not INT64_MIN <= number <= INT64_MAX:
        return _OVERFLOW
    store.put(key, (b"%d" % number, expires_at_ms, store.revision, STRING))
    return resp.integer(number)


def incr(store: KeyStore, arguments: list[bytes]) -> bytes:
    """INCR key."""
    return _add(store, arguments[1], 1)


def decr(store: KeyStore, arguments: list[bytes]) -> bytes:
    """DECR key."""
    return _add(store, arguments[1], -1)


def incrby(store: KeyStore, arguments: list[bytes]) -> bytes:
    """INCRBY key increment."""
    return _add(store, arguments[1], integer(arguments[2]))


def decrby(store: KeyStore, arguments: list[bytes]) -> bytes:
    """DECRBY key decrement."""
    amount = integer(arguments[2])
    if amount == INT64_MIN:
        return resp.error("ERR decrement would overflow")
    return _add(store, arguments[1], -amount)


def incrbyfloat(store: KeyStore, arguments: list[bytes]) -> bytes:
    """INCRBYFLOAT key increment."""
    record = store.get(arguments[1])
    old = _parse_float(store, record[0]) if record else (0, 0)
    amount = _parse_float(store, arguments[2])
    total = None if old is None or amount is None else _sum(old, amount)
    if total is None:
        return _NOT_FINITE
    text = _print_float(total)
    if len(text) > _USUAL_FLOAT_TEXT:
        store.left -= _LONG_FLOAT_WORK
    store.set(arguments[1], text, record[1] if record else 0, TEXT_STRING)
    return resp.bulk(text)


def _parse_float(store: KeyStore, text: bytes) -> _Float | None:
    """Parse a number like C's ``strtold``, rounded to the format; None if it is infinite."""
    usual = _usual_float(text) if len(text) <= _USUAL_FLOAT_TEXT else None
    if usual is None:
        store.left -= _LONG_FLOAT_WORK
        return _parse_any_float(text)
    store.left -= _FLOAT_WORK
    return usual


@functools.lru_cache(_KNOWN_NUMBERS)  # a client that counts adds the same amount again and again
def _usual_float(text: bytes) -> _Float | None:
    """Parse a number in the usual form; None if it has another form."""
    usual = _USUAL_FLOAT.fullmatch(text)
    if usual is None:
        return None
    sign, whole, fraction, power = usual.groups(b"")
    number = _from_decimal(int(whole + fraction), int(power or 0) - len(fraction))
    assert number is not None, "numbers of this form are never too large"
    return (-number[0], number[1]) if sign == b"-" else number


def _parse_any_float(text: bytes) -> _Float | None:
    """Parse a number in any form, also hexadecimal."""
    found = _FLOAT.fullmatch(text) if len(text) <= _MAX_FLOAT_TEXT else None
    if found is None:
        if _INFINITE.fullmatch(text):
            return None
        raise CommandError(_NOT_A_FLOAT)
    sign, whole, fraction, bare, power, hex_whole, hex_fraction, hex_bare, hex_power = found.groups(
        b""
    )
    hexadecimal = bool(hex_whole or hex_bare)
    before, after = (
        (hex_whole, hex_fraction or hex_bare) if hexadecimal else (whole, fraction or bare)
    )
    digits = int(before + after, 16) if hexadecimal else _integer(before + after)
    if not digits:
        return 0, 0
    exponent = _exponent(hex_power if hexadecimal else power)
    shift = exponent - (4 * len(after) if hexadecimal else len(after))
    size = digits.bit_length() + shift * (1 if hexadecimal else _BITS_OF_A_DIGIT)
    number = None
    if abs(size) < _MAX_SIZE:
        number = _round(digits, shift) if hexadecimal else _from_decimal(digits, shift)
    if number is None or not number[0]:  # overflow or underflow: strtold reports both
        raise CommandError(_NOT_A_FLOAT)
    return (-number[0], number[1]) if sign == b"-" else number


def _from_decimal(digits: int, shift: int) -> _Float | None:
    """Round ``digits * 10**shift`` to the format; `digits` is not negative."""
    if shift >= 0:
        return _round(digits * 10**shift, 0)
    divisor = 10**-shift
    more = max(_MANTISSA_BITS + 2 - digits.bit_length() + divisor.bit_length(), 0)
    quotient, rest = divmod(digits << more, divisor)
    # One more bit says whether a remainder is left, so that rounding is that of the exact number.
    return _round(quotient << 1 | bool(rest), -more - 1)


def _sum(one: _Float, other: _Float) -> _Float | None:
    exponent = min(one[1], other[1])
    return _round((one[0] << one[1] - exponent) + (other[0] << other[1] - exponent), exponent)


def _round(mantissa: int, exponent: int) -> _Float | None:
    """Round to 64 bits of precision, half to even; None on overflow."""
    extra = max(mantissa.bit_length() - _MANTISSA_BITS, _LEAST_EXPONENT - exponent)
    if extra > 0:
        mantissa, exponent = _shifted(mantissa, extra), exponent + extra
    return (mantissa, exponent) if mantissa.bit_length() + exponent <= _MAX_EXPONENT else None


def _shifted(number: int, bits: int) -> int:
    """Divide by a power of two, rounding half to even."""
    quotient = number >> bits
    rest, half = number - (quotient << bits), 1 << bits - 1
    return quotient + (rest > half or (rest == half and quotient & 1))


def _print_float(number: _Float) -> bytes:
    """Print like C's ``%.17Lf``, without trailing zeros."""
    mantissa, exponent = abs(number[0]) * _ONE, number[1]
    scaled = mantissa << exponent if exponent >= 0 else _shifted(mantissa, -exponent)
    whole, decimals = divmod(scaled, _ONE)
    text = _decimal(whole)
    if decimals:
        text = f"{text}.{decimals:0{_DECIMALS}}".rstrip("0")
    return (f"-{text}" if number[0] < 0 and text != "0" else text).encode()


def _exponent(text: bytes) -> int:
    """Parse an exponent; a very long one becomes another one that overflows as well."""
    size = int(text.lstrip(b"+-").lstrip(b"0")[:_MAX_DIGITS] or b"0")
    return -size if text[:1] == b"-" else size


def _integer(digits: bytes) -> int:
    """Parse up to 5119 digits, in two halves: Python refuses more than 4300 at once."""
    return int(digits[:-_HALF] or b"0") * _SHIFT + int(digits[-_HALF:])


def _decimal(number: int) -> str:
    """Print up to 4933 digits, in two halves for the same reason."""
    high, low = divmod(number, _SHIFT)
    return f"{high}{low:0{_HALF}}" if high else str(low)


HANDLERS: Final[dict[str, Handler]] = {
    "decr": decr,
    "decrby": decrby,
    "incr": incr,
    "incrby": incrby,
    "incrbyfloat": incrbyfloat,
}
"""Handlers by command name. The service has checked the number of arguments already."""
