"""Histories: what clients asked, what they were answered, and when. One JSON object a line.

::

    {"client": 2, "op": "cas", "key": "r1", "args": ["7", "8"], "result": 1,
     "start_ns": 1200, "end_ns": 1950, "status": "ok"}

A line has exactly these names. Keys and values are bytes. They are written as strings in which each
character is one byte (Latin-1), so any bytes can be read back; numbers and null are written as they
are. Times are nanoseconds of one clock that all clients share and that never goes back.

The ``status`` is what the client knows:

- ``ok``: the operation happened between start and end, with this result.
- ``fail``: it has no effect, ever. The result is null.
- ``unknown``: it may take effect at any time after its start, or never (Jepsen's *info*). The
  result is null.

Lines are in the order in which operations ended. A writer that is killed leaves at most half a
line. Operations that were in flight then are missing, so end a writer in an orderly way.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import attrs

from ..errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

__all__ = [
    "MAX_LINE_BYTES",
    "HistoryWriter",
    "Operation",
    "Status",
    "Value",
    "read_history_untrusted",
]

MAX_LINE_BYTES: Final = 1 << 20
MAX_ARGUMENTS: Final = 64
_MAX_NAME: Final = 32
_MAX_NUMBER: Final = 2**63

Value: TypeAlias = bytes | int | None
"""An argument or a result."""

Status: TypeAlias = Literal["ok", "fail", "unknown"]

_STATUSES: Final = frozenset({"ok", "fail", "unknown"})


@attrs.frozen
class Operation:
    """One operation of one client.

    Args:
        client: number of the client, which waits for at most one operation at a time.
        op: name of the operation, as the checker's specification spells it.
        key: the key that it reads or writes.
        args: its arguments.
        result: the reply; None unless the status is ok.
        start_ns: when the client sent it, in nanoseconds.
        end_ns: when the reply came, or the client gave up, in nanoseconds.
        status: what the client knows of the outcome.
    """

    client: int
    op: str
    key: bytes
    args: tuple[Value, ...]
    result: Value
    start_ns: int
    end_ns: int
    status: Status


_NAMES: Final = tuple(field.name for field in attrs.fields(Operation))


class HistoryWriter:
    """Writes a history as it happens.

    Args:
        file: an open binary file. The caller closes it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def append(self, operation: Operation) -> None:
        """Write one operation.

        Raises:
            OSError: the file can't take it.
        """
        line = {name: _plain(getattr(operation, name)) for name in _NAMES}
        self._file.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")


def _plain(value: object) -> object:
    match value:
        case bytes():
            return value.decode("latin-1")
        case tuple():
            return [_plain(each) for each in cast("tuple[object, ...]", value)]
        case _:
            return value


def read_history_untrusted(file: BinaryIO) -> Iterator[Operation]:
    """Read a history from any source of lines, one line at a time.

    Raises:
        HistoryError: a line is not an operation; names the line, counted from 1, and what was
            expected.
    """
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        try:
            yield decode_operation_untrusted(line)
        except HistoryError as error:
            raise HistoryError(f"line {number}: {error}") from error.__cause__


def decode_operation_untrusted(line: bytes) -> Operation:
    """Read one line of a history.

    Raises:
        HistoryError: it is not an operation.
    """
    if len(line) > MAX_LINE_BYTES:
        raise HistoryError(f"more than {MAX_LINE_BYTES} bytes")
    try:
        pairs: object = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError too
        raise HistoryError(f"not JSON: {error}") from error
    if not isinstance(pairs, _Pairs):
        raise HistoryError("not a JSON object")
    fields = dict(pairs)
    if len(pairs) != len(_NAMES) or fields.keys() != set(_NAMES):
        raise HistoryError(f"has {', '.join(name for name, _ in pairs)}: expected {_EXPECTED}")
    operation = Operation(
        client=_number_untrusted("client", fields["client"]),
        op=_name_untrusted(fields["op"]),
        key=_bytes_untrusted("key", fields["key"]),
        args=_args_untrusted(fields["args"]),
        result=_value_untrusted("result", fields["result"]),
        start_ns=_number_untrusted("start_ns", fields["start_ns"]),
        end_ns=_number_untrusted("end_ns", fields["end_ns"]),
        status=_status_untrusted(fields["status"]),
    )
    if operation.end_ns < operation.start_ns:
        raise HistoryError(f"end_ns {operation.end_ns} is before start_ns {operation.start_ns}")
    if operation.status != "ok" and operation.result is not None:
        raise HistoryError(f'a result with status "{operation.status}": expected null')
    return operation


class _Pairs(list[tuple[str, object]]):
    """An object as read: a name that comes twice is still there."""


_EXPECTED: Final = "exactly " + ", ".join(_NAMES)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs)


def _number_untrusted(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise HistoryError(f"{name} = {value!r:.40}: expected a whole number, 0 to 2^63 - 1")
    return value


def _name_untrusted(value: object) -> str:
    if not (isinstance(value, str) and value.isidentifier() and len(value) <= _MAX_NAME):
        raise HistoryError(f"op = {value!r:.40}: expected a word of up to {_MAX_NAME} letters")
    return value


def _bytes_untrusted(name: str, value: object) -> bytes:
    try:
        return cast("str", value).encode("latin-1")
    except (AttributeError, UnicodeEncodeError) as error:
        raise HistoryError(f"{name} = {value!r:.40}: expected a string of Latin-1") from error


def _value_untrusted(name: str, value: object) -> Value:
    if value is None or isinstance(value, str):
        return None if value is None else _bytes_untrusted(name, value)
    if type(value) is not int or not -_MAX_NUMBER <= value < _MAX_NUMBER:
        raise HistoryError(
            f"{name} = {value!r:.40}: expected a string, a whole number of 64 bits, or null"
        )
    return value


def _args_untrusted(value: object) -> tuple[Value, ...]:
    if type(value) is not list or len(cast("list[object]", value)) > MAX_ARGUMENTS:
        raise HistoryError(f"args = {value!r:.40}: expected a list of up to {MAX_ARGUMENTS}")
    return tuple(_value_untrusted("args", each) for each in cast("list[object]", value))


def _status_untrusted(value: object) -> Status:
    if not isinstance(value, str) or value not in _STATUSES:
        raise HistoryError(f'status = {value!r:.40}: expected "ok", "fail" or "unknown"')
    return cast("Status", value)
