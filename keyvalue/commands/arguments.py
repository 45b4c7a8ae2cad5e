"""Arguments of commands, read as Redis reads them, and the errors it words for them."""

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
    """Word the error for a number of arguments that can't be, though the arity permits it."""
    return resp.error(f"ERR wrong number of arguments for '{command}' command")


def parse_integer(text: bytes) -> int | None:
    """Return the 64-bit integer that `text` is the only spelling of, else None.

    So ``+1``, ``01``, ``-0``, `` 1`` and ``1_0`` are none.
    """
    if len(text) > _MAX_DIGITS:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if b"%d" % number == text and INT64_MIN <= number <= INT64_MAX else None


def integer(text: bytes) -> int:
    """Read an integer argument.

    Raises:
        CommandError: it is none.
    """
    number = parse_integer(text)
    if number is None:
        raise CommandError(NOT_AN_INTEGER)
    return number


def expiry(text: bytes, *, unit_ms: int, base_ms: int, command: str) -> int:
    """Read when a key is to expire, as SET, SETEX and GETEX take it: it must be positive.

    Args:
        text: the argument.
        unit_ms: 1000 for seconds, 1 for milliseconds.
        base_ms: log time for a duration, 0 for a point in time.
        command: for the text of the error.

    Returns:
        Cluster time in milliseconds.

    Raises:
        CommandError: it is not an integer, not positive, or too far away.
    """
    number = integer(text)
    if number <= 0 or number * unit_ms + base_ms > INT64_MAX:
        raise CommandError(invalid_expire_time(command))
    return number * unit_ms + base_ms


def invalid_expire_time(command: str) -> bytes:
    """Word the error for an expiry that can't be."""
    return resp.error(f"ERR invalid expire time in '{command}' command")
