"""Commands that count: strings that are integers, or floating-point numbers.

INCRBYFLOAT computes as Redis does on x86-64, in the 80-bit format with 64 bits of precision, but
in exact integers, so the result is the same on every machine: replicas that computed in their own
hardware's formats could drift apart.
"""

import re
from fractions import Fraction
from typing import Final

from . import resp
from .arguments import INT64_MAX, INT64_MIN, NOT_AN_INTEGER, CommandError, integer, parse_integer
from .store import STRING, TEXT_STRING, KeyStore
from .strings import Handler

_OVERFLOW: Final = resp.error("ERR increment or decrement would overflow")
_NOT_A_FLOAT: Final = resp.error("ERR value is not a valid float")
_NOT_FINITE: Final = resp.error("ERR increment would produce NaN or Infinity")

_MANTISSA_BITS: Final = 64
_LEAST_EXPONENT: Final = -16445  # of the last bit of the smallest numbers
_LIMIT: Final = 1 << 16384
_MAX_FLOAT_TEXT: Final = 5119
_MAX_SIZE: Final = 16_600  # bits; beyond it everything is infinite or zero
_BITS_OF_A_DIGIT: Final = 3.321928094887362
_MAX_DIGITS: Final = 12  # of an exponent
_HALF: Final = 2560
_SHIFT: Final[int] = 10**_HALF
_DECIMALS: Final = 17
_FLOAT: Final = re.compile(
    rb"([+-]?)(?:(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:e([+-]?\d+))?"
    rb"|0x(?:([\da-f]+)(?:\.([\da-f]*))?|\.([\da-f]+))(?:p([+-]?\d+))?)",
    re.IGNORECASE,
)
_INFINITE: Final = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)


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
    old = _parse_float(record[0] if record else b"0")
    amount = _parse_float(arguments[2])
    total = None if old is None or amount is None else _round(old + amount)
    if total is None:
        return _NOT_FINITE
    text = _print_float(total)
    store.set(arguments[1], text, record[1] if record else 0, TEXT_STRING)
    return resp.bulk(text)


def _parse_float(text: bytes) -> Fraction | None:
    """Read a number as C's ``strtold`` does, rounded to the format; None for an infinite one."""
    if _INFINITE.fullmatch(text):
        return None
    found = _FLOAT.fullmatch(text)
    if found is None or len(text) > _MAX_FLOAT_TEXT:
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
        return Fraction(0)
    exponent = _exponent(hex_power if hexadecimal else power)
    base, shift = (2, exponent - 4 * len(after)) if hexadecimal else (10, exponent - len(after))
    size = digits.bit_length() + shift * (1 if hexadecimal else _BITS_OF_A_DIGIT)
    number = _round(Fraction(digits) * Fraction(base) ** shift) if abs(size) < _MAX_SIZE else None
    if not number:  # too large for the format, or so small that nothing is left
        raise CommandError(_NOT_A_FLOAT)
    return -number if sign == b"-" else number


def _round(number: Fraction) -> Fraction | None:
    """Round to 64 bits of precision, half to even; None if it is too large for the format."""
    if not number:
        return number
    exponent = abs(number.numerator).bit_length() - number.denominator.bit_length()
    if abs(number) < Fraction(2) ** exponent:
        exponent -= 1
    last_bit = Fraction(2) ** max(exponent - _MANTISSA_BITS + 1, _LEAST_EXPONENT)
    rounded = round(number / last_bit) * last_bit
    return rounded if abs(rounded) < _LIMIT else None


def _print_float(number: Fraction) -> bytes:
    """Print as C's ``%.17Lf`` does, and cut the zeros at the end."""
    scaled = round(abs(number) * 10**_DECIMALS)
    whole, decimals = divmod(scaled, 10**_DECIMALS)
    text = f"{_decimal(whole)}.{decimals:0{_DECIMALS}}".rstrip("0").rstrip(".")
    return (f"-{text}" if number < 0 and text != "0" else text).encode()


def _exponent(text: bytes) -> int:
    """Read an exponent, or one that is as much too large."""
    size = int(text.lstrip(b"+-").lstrip(b"0")[:_MAX_DIGITS] or b"0")
    return -size if text[:1] == b"-" else size


def _integer(digits: bytes) -> int:
    """Read up to 5119 digits: Python refuses to at once beyond 4300."""
    return int(digits[:-_HALF] or b"0") * _SHIFT + int(digits[-_HALF:])


def _decimal(number: int) -> str:
    """Print up to 4933 digits, likewise."""
    high, low = divmod(number, _SHIFT)
    return f"{high}{low:0{_HALF}}" if high else str(low)


HANDLERS: Final[dict[str, Handler]] = {
    "decr": decr,
    "decrby": decrby,
    "incr": incr,
    "incrby": incrby,
    "incrbyfloat": incrbyfloat,
}
"""Commands by name; :mod:`.service` has checked the number of arguments."""
