"""Decodes payloads of the key-value store, command by command: the usual decoder.

A decoder is any function from payload, flags and the entry's time to :data:`Asked` tuples. A user's
own decoder is named to the source as ``package.module:function``. A decoder reports what a client
*requested*. Whether ``SET ... NX`` succeeded, or what ``INCR`` returned, is in no payload: the jobs
find out by applying the commands (`pipeline.jobs.replay`).
"""

from __future__ import annotations

import importlib
import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import attrs

from ...errors import ConfigurationError, WireError
from ...etcd.messages.requested import requested_untrusted
from ...keyvalue.commands.arguments import INT64_MAX, parse_integer
from ...keyvalue.commands.slots import NAME as SLOTS
from ...keyvalue.commands.table import keys_of, lookup, resolve
from ...keyvalue.protocol.payload import ETCD, PayloadParser

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COPIED", "Asked", "Decoder", "Pattern", "decode_commands", "find_decoder", "pattern_of"]

Asked: TypeAlias = tuple[int, str | None, bytes | None, bytes | None, int | None]
"""Number of the command, operation, key, value, and time of expiry (ms of log time)."""

COPIED: Final = "QUORATE.SLOTS CHUNK"
"""Operation of rows that a partition has got from another one. They were written there, so sums
over several partitions leave these out."""

NOTHING: Final[Asked] = (0, None, None, None, None)

_VALUE_AT: Final = {
    "SET": 2,
    "SETNX": 2,
    "SETEX": 3,
    "PSETEX": 3,
    "GETSET": 2,
    "APPEND": 2,
    "SETRANGE": 3,
    "INCRBY": 2,
    "DECRBY": 2,
    "INCRBYFLOAT": 2,
    "RENAME": 2,
    "RENAMENX": 2,
    "COPY": 2,
}
_PAIRS: Final = frozenset({"MSET", "MSETNX", "WATCH"})
_ONE_KEY: Final = frozenset({"RENAME", "RENAMENX", "COPY"})
_UNIT_MS: Final = {b"EX": 1000, b"PX": 1, b"EXAT": 1000, b"PXAT": 1}
# operation: (place of the number, milliseconds of its unit, whether it counts from now)
_TIME_AT: Final = {
    "SETEX": (2, 1000, True),
    "PSETEX": (2, 1, True),
    "EXPIRE": (2, 1000, True),
    "PEXPIRE": (2, 1, True),
    "EXPIREAT": (2, 1000, False),
    "PEXPIREAT": (2, 1, False),
}
_STEPS: Final = frozenset({SLOTS.upper()})
_ROW_WORDS: Final = 5
"""Words of a row in QUORATE.SLOTS CHUNK."""
_OPTIONS_FROM: Final = {"SET": 3, "GETEX": 2}
_LONGEST_NAME: Final = 32
"""Patterns of longer names are not cached, so that invalid names cannot fill the memory."""


class Decoder(Protocol):
    """The type of a decoder. It must not raise: it also answers for malformed payloads."""

    def __call__(self, payload: bytes, flags: int, timestamp_ms: int, /) -> Iterable[Asked]:
        """Decode the payload of one COMMAND entry; the answer is never empty."""
        ...


def find_decoder(name: str) -> Decoder:
    """Find a decoder by ``package.module:function``; an empty name is the key-value store's.

    Raises:
        ConfigurationError: there is no decoder of this name.
    """
    if not name:
        return decode_commands
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise ConfigurationError(f'decoder = "{name}": expected package.module:function')
    try:
        found: object = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f'decoder = "{name}": {error}') from error
    return cast("Decoder", found)


_PARSER: Final = PayloadParser()


def decode_commands(payload: bytes, flags: int, timestamp_ms: int) -> list[Asked]:
    """Decode a payload of the key-value store: a tuple for each command and each of its keys."""
    if flags & ETCD:
        return _decode_etcd(payload)
    try:
        commands = _PARSER.parse_untrusted(payload)
    except WireError:
        return [NOTHING]
    asked: list[Asked] = []
    for number, arguments in enumerate(commands):
        asked += _decode(number, arguments, timestamp_ms)
    return asked or [NOTHING]


def _decode_etcd(payload: bytes) -> list[Asked]:
    """Decode requests of etcd's keyspace: a tuple for each change, a request being one command."""
    try:
        return [
            (number, *each, None)
            for number, changes in enumerate(requested_untrusted(payload))
            for each in changes
        ]
    except WireError:
        return [NOTHING]


def _decode(number: int, arguments: list[bytes], now: int) -> list[Asked]:
    name = arguments[0]
    if len(name) > _LONGEST_NAME or (pattern := pattern_of(name, len(arguments))) is None:
        return _decode_whole(number, arguments, now)
    key, value = pattern.key, pattern.value
    return [
        (
            number,
            pattern.operation,
            arguments[key] if key else None,
            arguments[value] if value else None,
            None,
        )
    ]


def _decode_whole(number: int, arguments: list[bytes], now: int) -> list[Asked]:
    spec = lookup(arguments[0])
    if spec is None:
        return [(number, arguments[0][:64].decode("ascii", "replace").upper(), None, None, None)]
    operation = spec.name.upper()
    if not spec.takes(len(arguments)):
        return [(number, operation, None, None, None)]
    if spec.name == SLOTS:
        return _decode_slots(number, arguments)
    if operation in _PAIRS:
        pairs = zip(arguments[1::2], arguments[2::2], strict=False)
        return [(number, operation, key, value, None) for key, value in pairs] or [
            (number, operation, None, None, None)
        ]
    keys = keys_of(spec, arguments)
    place = _VALUE_AT.get(operation, 0)
    value = arguments[place] if 0 < place < len(arguments) else None
    expires_at = _expires_at(operation, arguments, now)
    if operation in _ONE_KEY:
        keys = keys[:1]
    return [(number, operation, key, value, expires_at) for key in keys] or [
        (number, operation, None, value, expires_at)
    ]


def _decode_slots(number: int, arguments: list[bytes]) -> list[Asked]:
    """Decode QUORATE.SLOTS: a row for each key that was copied, else one that says which step."""
    spec = resolve(arguments)
    if spec is None:
        return [(number, SLOTS.upper(), None, None, None)]
    operation, rows = spec.name.upper().replace("|", " "), arguments[4:]
    if operation != COPIED or not rows or len(rows) % _ROW_WORDS:
        return [(number, operation, None, None, None)]
    found: list[Asked] = []
    for at in range(0, len(rows), _ROW_WORDS):
        key, value, expires_at_ms, _, tag = rows[at : at + _ROW_WORDS]
        gone = tag == b"-"
        moment = None if gone else _moment(expires_at_ms, 1, 0)
        found.append((number, operation, key, None if gone else value, moment or None))
    return found


@attrs.frozen
class Pattern:
    """The meaning that all commands with one name and number of arguments share.

    Args:
        operation: name of the operation.
        key: number of the argument that is the key, 0 for none.
        value: number of the argument that is the value, 0 for none.
    """

    operation: str | None
    key: int
    value: int


@lru_cache(maxsize=1024)
def pattern_of(name: bytes, count: int) -> Pattern | None:
    """Return a command's pattern, if its name and number of arguments determine its meaning.

    Returns:
        None for a command that may set an expiry, and for one that is not exactly one row.
    """
    spec = lookup(name)
    operation = "" if spec is None else spec.name.upper()
    if (
        operation in _STEPS
        or operation in _TIME_AT
        or count > _OPTIONS_FROM.get(operation, count) + 1
    ):
        return None
    found = _decode_whole(0, [name, *(b"%d" % place for place in range(1, count))], 0)
    if len(found) != 1:
        return None
    _, operation_told, key, value, _ = found[0]
    return Pattern(operation_told, int(key or 0), int(value or 0))


def _expires_at(operation: str, arguments: list[bytes], now: int) -> int | None:
    if operation in _TIME_AT:
        place, unit_ms, relative = _TIME_AT[operation]
        return _moment(arguments[place], unit_ms, now if relative else 0)
    if operation in _OPTIONS_FROM:
        words = arguments[_OPTIONS_FROM[operation] :]
        for word, text in itertools.pairwise(words):
            unit = word.upper()
            if unit in _UNIT_MS:
                return _moment(text, _UNIT_MS[unit], 0 if unit.endswith(b"AT") else now)
    return None


def _moment(text: bytes, unit_ms: int, base_ms: int) -> int | None:
    number = parse_integer(text)
    moment = None if number is None else base_ms + number * unit_ms
    # the time in microseconds must fit 64 bits
    return moment if moment is not None and abs(moment) <= INT64_MAX // 1000 else None
