"""Parsing of command arguments as Redis does it, with the texts of its errors."""

from typing import Final

from ..protocol import resp
from ..protocol.resp import CommandError

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_MAX_DIGITS: Final = 20

NOT_AN_INTEGER: Final = resp.error("ERR value is not an integer or out of range")
SYNTAX_ERROR: Final = resp.error("ERR syntax error")
NO_SUCH_KEY: Final = resp.error("ERR no such key")
TOO_LONG: Final = resp.error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")


def arity_error(command: str) -> bytes:
    """The error for a number of arguments that the arity permits and the command does not."""
    return resp.error(f"ERR wrong number of arguments for '{command}' command")


def parse_integer(text: bytes) -> int | None:
    """Return a 64-bit integer, or None if `text` is not its canonical spelling.

    So ``+1``, ``01``, ``-0``, `` 1`` and ``1_0`` are refused, as by Redis.
    """
    if len(text) > _MAX_DIGITS:
        return None
    try:
        number = int(text)  # accepts more than Redis does; the comparison below refuses the rest
    except ValueError:
        return None
    return number if b"%d" % number == text and INT64_MIN <= number <= INT64_MAX else None


def integer(text: bytes) -> int:
    """Parse an integer argument.

    Raises:
        CommandError: it is not an integer.
    """
    number = parse_integer(text)
    if number is None:
        raise CommandError(NOT_AN_INTEGER)
    return number


def expiry(text: bytes, *, unit_ms: int, base_ms: int, command: str) -> int:
    """Parse the expiry of SET, SETEX and GETEX, which must be positive.

    Args:
        text: the argument.
        unit_ms: 1000 for seconds, 1 for milliseconds.
        base_ms: log time for a duration, 0 for a point in time.
        command: name of the command, for the error.

    Returns:
        The log time of the expiry in milliseconds.

    Raises:
        CommandError: it is not an integer, not positive, or too far away.
    """
    number = integer(text)
    if number <= 0 or number * unit_ms + base_ms > INT64_MAX:
        raise CommandError(invalid_expire_time(command))
    return number * unit_ms + base_ms


def invalid_expire_time(command: str) -> bytes:
    """The error for an impossible expiry."""
    return resp.error(f"ERR invalid expire time in '{command}' command")
