"""The types that a state, an argument or a result may have, and their bytes (msgpack).

A type is checked when its class is created, so that no member begins with a state that it could not
save. Three things are refused, each with what to use instead:

- a type that msgspec does not know, or that says nothing (`Any`, `object`)
- a set: its order depends on the process, so members that iterate over it would differ
- a mutable object inside of a state: nobody would see its changes. Dicts and lists are tracked.
"""

from __future__ import annotations

import re
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, Union, cast

import msgspec
from msgspec import inspect, msgpack

from ..errors import ConfigurationError
from .tracked import TrackedDict, TrackedList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .tracked import UndoLog

__all__ = [
    "DECODING_ERRORS",
    "ENCODING_ERRORS",
    "Codec",
    "Shape",
    "check_type",
    "without_addresses",
]

T = TypeVar("T")

ENCODING_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises for a value without bytes; UnicodeEncodeError is a ValueError."""

DECODING_ERRORS: Final = (msgspec.DecodeError, RecursionError, ValueError)
"""What msgspec raises for bytes that are not of the type."""

_OPAQUE: Final = (inspect.AnyType, inspect.CustomType, inspect.RawType, inspect.ExtType)
_SETS: Final = (inspect.SetType, inspect.FrozenSetType)
_BUFFERS: Final = (inspect.ByteArrayType, inspect.MemoryViewType)
_CONTAINERS: Final = (inspect.ListType, inspect.DictType)
_OPTIONAL: Final = 2
"""Types in a union of one type and None."""


def _plain(value: object) -> object:
    """Return what msgspec encodes in place of a tracked list."""
    if isinstance(value, TrackedList):
        return list(cast("Any", value))
    raise TypeError(f"a {type(value).__name__} has no bytes")


_ENCODE: Final = msgpack.Encoder(enc_hook=_plain).encode


def check_type(declared: object, where: str, *, state: bool = False) -> None:
    """Check that values of a type can be carried, and held in a state.

    Args:
        declared: the type.
        where: what has it, for the error.
        state: it is the type of a part of the state.

    Raises:
        ConfigurationError: it is none; the message says what to use.
    """
    try:
        found = inspect.type_info(cast("type", declared))
        msgpack.Decoder(cast("type", declared))
    except (TypeError, NameError) as error:
        raise _refused(where, declared, str(error)) from None
    for node, depth in _nodes(found, 0, set()):
        if isinstance(node, _OPAQUE):
            raise _refused(where, declared, "expected a type that msgspec can decode, not Any")
        if isinstance(node, _SETS):
            raise _refused(
                where, declared, "the order of a set differs between members: use dict[T, None]"
            )
        if isinstance(node, _BUFFERS):
            raise _refused(where, declared, "use bytes")
        if state:
            _check_frozen(node, depth, declared, where)


def _check_frozen(node: inspect.Type, depth: int, declared: object, where: str) -> None:
    """Check that a part of a state is immutable, or a dict or list that is tracked."""
    if isinstance(node, _CONTAINERS) and depth:
        raise _refused(
            where, declared, "a dict or list inside of another type is not tracked: use a tuple"
        )
    cls = getattr(node, "cls", None)
    if isinstance(node, inspect.StructType):
        frozen = node.cls.__struct_config__.frozen
    elif isinstance(node, inspect.DataclassType):
        parameters = getattr(cls, "__dataclass_params__", None)
        frozen = parameters.frozen if parameters else _is_frozen_attrs(cls)
    else:
        frozen = not isinstance(node, inspect.TypedDictType)
    if not frozen:
        raise _refused(
            where, declared, f"{getattr(cls, '__name__', cls)} is mutable: make it frozen"
        )


def _is_frozen_attrs(cls: object) -> bool:
    return getattr(getattr(cls, "__setattr__", None), "__name__", "") == "_frozen_setattrs"


def _refused(where: str, declared: object, why: str) -> ConfigurationError:
    name = declared.__name__ if isinstance(declared, type) else str(declared)
    return ConfigurationError(f"{where}: type {name}: {why}")


def _nodes(node: inspect.Type, depth: int, seen: set[object]) -> Iterator[tuple[inspect.Type, int]]:
    """Yield the parts of a type, each with whether something untracked holds it."""
    yield node, depth
    tracked = isinstance(node, _CONTAINERS)
    optional = isinstance(node, inspect.UnionType) and len(node.types) == _OPTIONAL
    optional = optional and cast("inspect.UnionType", node).includes_none
    below = depth if tracked or optional else depth + 1
    cls = getattr(node, "cls", None)
    if cls is not None:
        if cls in seen:
            return
        seen.add(cls)
    for part in _parts(node):
        yield from _nodes(part, below, seen)


def _parts(node: inspect.Type) -> Iterator[inspect.Type]:
    for name in ("key_type", "value_type", "item_type"):
        part = getattr(node, name, None)
        if isinstance(part, inspect.Type):
            yield part
    for name in ("item_types", "types"):
        yield from getattr(node, name, ())
    for field in getattr(node, "fields", ()):
        yield field.type


class Codec(Generic[T]):
    """The bytes of values of one type.

    Args:
        declared: the type.
        where: what has it, for errors.
    """

    def __init__(self, declared: type[T], where: str) -> None:
        self.where = where
        self._decoder: msgpack.Decoder[T] = msgpack.Decoder(declared)

    def encode(self, value: object) -> bytes:
        """Return the bytes of a value.

        Raises:
            TypeError: it is not of the type, or has no bytes: a cycle, or a number beyond 64 bits.
        """
        try:
            data = _ENCODE(value)
            self._decoder.decode(data)
        except ENCODING_ERRORS as error:
            raise TypeError(f"{self.where} = {_shown(value)}: {error}") from None
        return data

    def pack(self, value: object) -> bytes:
        """Return the bytes of a value of a state, which was checked before."""
        return _ENCODE(value)

    def copy(self, value: object) -> T:
        """Return a checked copy of a value; errors as in `encode`."""
        try:
            return self._decoder.decode(_ENCODE(value))
        except ENCODING_ERRORS as error:
            raise TypeError(f"{self.where} = {_shown(value)}: {error}") from None

    def decode_untrusted(self, data: bytes) -> T:
        """Return the value of some bytes.

        Raises:
            ValueError: they are none of the type.
        """
        try:
            return self._decoder.decode(data)
        except DECODING_ERRORS as error:
            raise ValueError(f"{self.where}: {error}") from None


def _shown(value: object) -> str:
    try:
        return without_addresses(f"{value!r:.60}")
    except Exception:  # noqa: BLE001 - a program's own repr
        return type(value).__name__


def without_addresses(text: str) -> str:
    """Return a text without addresses in memory: it becomes part of replies, equal on members."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x...", text)


class Shape:
    """The type of one part of the state, and how values of it are taken into the state.

    Args:
        declared: the type.
        where: what has it, for errors.
        undo: notes the changes.

    Raises:
        ConfigurationError: a state can't hold it.
    """

    def __init__(self, declared: Any, where: str, undo: UndoLog) -> None:
        self.codec: Codec[Any] = Codec(declared, where)
        self._wrap = _wrapper(declared, where, undo)

    @property
    def tracked(self) -> bool:
        """Whether values of it have tracked dicts or lists."""
        return self._wrap is not None

    def take(self, value: object) -> Any:
        """Return a checked copy of a value, with tracked dicts and lists.

        Raises:
            TypeError: it is not of the type.
        """
        return self.wrap(self.codec.copy(value))

    def wrap(self, copied: Any) -> Any:
        """Return a value that is a checked copy already, with tracked dicts and lists."""
        return copied if self._wrap is None else self._wrap(copied)


def _wrapper(declared: Any, where: str, undo: UndoLog) -> Callable[[Any], Any] | None:
    """Return what makes tracked containers of a type; None if values of it have none."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    inside = f"{where}[...]"
    if origin is Annotated:
        return _wrapper(arguments[0], where, undo)
    if origin in (Union, types.UnionType):
        # A union of more cannot have a dict or a list in it: `check_type` has refused it.
        for inner in arguments:
            if make := _wrapper(inner, where, undo):
                return lambda value: None if value is None else make(value)
        return None
    if origin is dict:
        key = Shape(arguments[0], f"a key of {where}", undo)
        return _dict_wrapper(key, Shape(arguments[1], inside, undo), undo)
    if origin is list:
        item = Shape(arguments[0], inside, undo)
        # Most have no containers within: those are taken as they are, in C.
        items: Callable[[Any], Any] = (
            (lambda each: map(item.wrap, each)) if item.tracked else list[Any]
        )
        return lambda value: TrackedList[Any](undo, item.take, items(value))
    return None


def _dict_wrapper(key: Shape, item: Shape, undo: UndoLog) -> Callable[[Any], Any]:
    def wrap(value: dict[Any, Any]) -> Any:
        if item.tracked:
            value = {name: item.wrap(each) for name, each in value.items()}
        return TrackedDict(undo, key.take, item.take, value)

    return wrap
