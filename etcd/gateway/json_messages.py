"""Requests as JSON, as etcd's gateway reads them.

Names are as in `rpc.proto` or in camel case, integers and enums may be numbers or strings, and
bytes are base64. What is unknown is ignored, and null is as if it were not there. A wrong value is
an error with the text of etcd; `json_format.Parse` of protobuf has other texts, and takes wrong
base64 without a word.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import attrs
from google.protobuf.descriptor import FieldDescriptor

from ..codes import TOO_MANY_OPS, Code, EtcdError
from .json_values import Literal, bytes_untrusted, next_value_untrusted, only_value_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor, EnumDescriptor
    from google.protobuf.message import Message

__all__ = ["MAX_PARTS", "decode_untrusted", "fill_untrusted"]

_M = TypeVar("_M", bound="Message")
_Convert: TypeAlias = "Callable[[object], object]"

_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: ("int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: ("int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("uint32", 0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("uint64", 0, (1 << 64) - 1),
}
_MOST_NESTED: Final = 64
"""Messages inside each other; a transaction is two of them, and only transactions nest. If smaller,
transactions fail that the state takes; if larger than 100, protobuf can't read them, and gives no
reason."""
MAX_PARTS: Final = 4096
"""Values in all lists of a request. A transaction has the longest ones, of 1,024 operations and
compares at most. Larger, and a body full of empty ones takes seconds to read."""

_PACKAGE: Final = "quorate.etcd."
_BYTE: Final = 0xFF
_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def decode_untrusted(kind: type[_M], body: bytes) -> _M:
    """Return the message in the body of a request; an empty body has an empty one.

    Raises:
        EtcdError: it is no JSON, or has a value of a wrong type.
    """
    message = kind()
    found = next_value_untrusted(body.decode(errors="replace"))
    if found is not None:
        fill_untrusted(message, found[0])
    return message


def fill_untrusted(message: Message, value: object) -> None:
    """Set the fields of a message.

    Raises:
        EtcdError: a value has a wrong type, or there are too many.
    """
    _Filling().fill(message, value, _MOST_NESTED)


class _Filling:
    """Sets the fields of a message, and of the messages in it."""

    def __init__(self) -> None:
        self._left = MAX_PARTS

    def fill(self, message: Message, value: object, depth: int) -> None:
        """Set the fields of a message, in which so many may lie inside each other."""
        if not depth:
            raise EtcdError(*TOO_MANY_OPS)
        if value is None:
            return
        if not isinstance(value, dict):
            raise _mismatch(value, "map[string]json.RawMessage")
        fields = _fields(cast("Descriptor", message.DESCRIPTOR))
        for name, given in cast("dict[str, object]", value).items():
            field = fields.get(name)
            if field is not None and given is not None:
                self._set(message, field, given, depth - 1)

    def _set(self, message: Message, field: _Field, given: object, depth: int) -> None:
        convert = field.convert
        if field.repeated:
            if not isinstance(given, list):
                raise _mismatch(given, "[]json.RawMessage")
            target = getattr(message, field.name)
            for each in cast("list[object]", given):
                self._count()
                if convert is None:
                    self.fill(target.add(), each, depth)
                else:
                    target.append(convert(each))
        elif convert is None:
            inner = cast("Message", getattr(message, field.name))
            inner.SetInParent()  # an empty one counts, too
            self.fill(inner, given, depth)
        else:
            setattr(message, field.name, convert(given))

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise EtcdError(*TOO_MANY_OPS)


@attrs.frozen
class _Field:
    """One field of a message.

    Args:
        name: as in `rpc.proto`.
        repeated: there may be several.
        convert: makes its value; None for a message.
    """

    name: str
    repeated: bool
    convert: _Convert | None


@cache
def _fields(descriptor: Descriptor) -> dict[str, _Field]:
    """Return the fields of a message by both of their names."""
    found: dict[str, _Field] = {}
    for each in descriptor.fields:
        field = _Field(each.name, each.is_repeated, _converter(each))
        found[each.name] = found[each.camelcase_name] = field
    return found


def _converter(field: FieldDescriptor) -> _Convert | None:
    if field.message_type is not None:
        return None
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes
    if field.type == FieldDescriptor.TYPE_STRING:
        return _string
    if field.type == FieldDescriptor.TYPE_BOOL:
        return _bool
    return _integer(*_INTEGERS[field.cpp_type])


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return bytes_untrusted(value)
    if not isinstance(value, list):
        raise _mismatch(value, "[]uint8")
    numbers = cast("list[object]", value)
    for each in numbers:
        if not _is_integer(each, 0, _BYTE):
            raise _mismatch(each, "uint8")
    return bytes(cast("list[int]", numbers))


def _string(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, Literal):
        raise _mismatch(value, "string")
    return _LONE_SURROGATES.sub("\ufffd", value)


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, "bool")
    return value


def _integer(name: str, least: int, most: int) -> _Convert:
    def convert(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Literal):
            value = only_value_untrusted(value)
        if _is_integer(value, least, most):
            return value
        number = isinstance(value, int | Literal) and not isinstance(value, bool)
        raise _mismatch(value, name, f" {value}"[:64] if number else "")

    return convert


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _enum(kind: EnumDescriptor) -> _Convert:
    numbers = {value.name: value.number for value in kind.values}
    convert = _integer("protoreflect.EnumNumber", *_INTEGERS[FieldDescriptor.CPPTYPE_INT32][1:])

    def named(value: object) -> object:
        if not isinstance(value, str) or isinstance(value, Literal):
            return convert(value)
        if value not in numbers:
            enum = kind.full_name.replace(_PACKAGE, "etcdserverpb.")
            words = f'unknown value "\\"{value:.40}\\"" for enum {enum}'
            raise EtcdError(Code.INVALID_ARGUMENT, words)
        return numbers[value]

    return named


def _mismatch(value: object, expected: str, shown: str = "") -> EtcdError:
    match value:
        case bool():
            found = "bool"
        case int() | Literal():
            found = "number"
        case str():
            found = "string"
        case list():
            found = "array"
        case _:
            found = "object"
    words = f"json: cannot unmarshal {found}{shown} into Go value of type {expected}"
    return EtcdError(Code.INVALID_ARGUMENT, words)
