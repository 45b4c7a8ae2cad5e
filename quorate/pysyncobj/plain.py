"""Plain values and their bytes: what PySyncObj pickles.

Unpickling runs code of whoever has sent the bytes, so we do not. A value may be None, a bool, a
number, text, bytes, a list, tuple, dict, set, frozenset or deque, and these within each other. Each
comes back as its own type. They are msgpack with extensions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import msgpack

from ..objects.shapes import without_addresses
from ..objects.tracked import TrackedDict, TrackedList
from .containers import TrackedDeque, TrackedSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..objects.tracked import UndoLog

__all__ = ["decode_untrusted", "encode", "taker"]

MAX_DEPTH: Final = 50
"""How deep values are nested. If smaller, real states are refused. If larger, Python's own limit
comes first, which is not the same everywhere."""

_INT, _TUPLE, _DICT, _SET, _FROZENSET, _DEQUE = range(1, 7)
_LONGEST_INT: Final = 4096
_INT64: Final = range(-(2**63), 2**64)
_SCALARS: Final = (type(None), bool, float, str, bytes)
_pack: Final = msgpack.Encoder().encode


def encode(value: object) -> bytes:
    """Return the bytes of a value.

    Raises:
        TypeError: it is no plain value, or is in a cycle.
    """
    try:
        return _pack(_wire(value, 0))
    except ValueError as error:  # a surrogate has no bytes
        raise TypeError(f"{_shown(value)}: {error}") from None


def _wire(value: Any, depth: int) -> Any:
    """Return what msgpack has for a value."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if value in _INT64 else _extension(_INT, str(_bounded(value)))
    if depth == MAX_DEPTH:
        raise TypeError(f"{_shown(value)}: deeper than {MAX_DEPTH} values, or in a cycle")
    inner = depth + 1
    if kind in (list, TrackedList):
        return [_wire(item, inner) for item in value]
    if kind is tuple:
        return _extension(_TUPLE, [_wire(item, inner) for item in value])
    if kind in (dict, TrackedDict):
        items = [_wire(part, inner) for item in value.items() for part in item]
        return _extension(_DICT, items)
    if kind in (set, frozenset, TrackedSet):
        # Its order differs from process to process, that of the bytes must not.
        packed = sorted(_pack(_wire(item, inner)) for item in value)
        code = _FROZENSET if kind is frozenset else _SET
        return _extension(code, [msgspec.Raw(item) for item in packed])
    if kind in (deque, TrackedDeque):
        return _extension(_DEQUE, [value.maxlen, *[_wire(item, inner) for item in value]])
    raise TypeError(
        f"{_shown(value)}: type {kind.__name__} can't be replicated: expected None, bool, int, "
        "float, str, bytes, list, tuple, dict, set, frozenset or deque"
    )


def _bounded(number: int) -> int:
    if number.bit_length() > _LONGEST_INT:
        raise TypeError(f"a number of {number.bit_length()} bits: at most {_LONGEST_INT}")
    return number


def _extension(code: int, content: object) -> msgpack.Ext:
    return msgpack.Ext(code, _pack(content))


def _shown(value: object) -> str:
    try:
        return without_addresses(f"{value!r:.60}")
    except Exception:  # noqa: BLE001 - a program's own repr
        return type(value).__name__


def decode_untrusted(data: bytes) -> Any:
    """Return the value of some bytes.

    Raises:
        ValueError: they are none.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"no plain value: {error}") from None


def _from_extension(code: int, content: memoryview) -> Any:
    items: Any = _DECODER.decode(content)
    if code == _INT and isinstance(items, str) and len(items) <= _LONGEST_INT:
        return int(items)
    if not isinstance(items, list):
        raise ValueError(f"extension {code} has no list")  # noqa: TRY004 - see decode_untrusted
    several: list[Any] = items  # pyright: ignore[reportUnknownVariableType]
    if code == _TUPLE:
        return tuple(several)
    if code == _DICT:
        return dict(zip(several[::2], several[1::2], strict=True))
    if code == _SET:
        return set(several)
    if code == _FROZENSET:
        return frozenset(several)
    if code == _DEQUE and several:
        return deque(several[1:], several[0])
    raise ValueError(f"extension {code} is not known")


_DECODER: Final = msgpack.Decoder(ext_hook=_from_extension)


def taker(undo: UndoLog) -> Callable[[Any], Any]:
    """Return a function that takes values into a state: checked copies that note their changes."""

    def take(value: Any) -> Any:
        return wrapped(decode_untrusted(encode(value)))

    def wrapped(value: Any) -> Any:
        kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
        if kind is dict:
            items = {key: wrapped(item) for key, item in value.items()}
            return TrackedDict[Any, Any](undo, take, take, items)
        if kind is list:
            return TrackedList[Any](undo, take, map(wrapped, value))
        if kind is set:
            return TrackedSet[Any](undo, take, encode, value)
        if kind is deque:
            return TrackedDeque[Any](undo, take, map(wrapped, value), value.maxlen)
        return tuple(wrapped(item) for item in value) if kind is tuple else value

    return take
