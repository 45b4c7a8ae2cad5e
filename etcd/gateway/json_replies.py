"""Replies as JSON, as etcd's gateway writes them.

Names are as in `rpc.proto`, bytes are base64, 64-bit integers are strings, enums are names, and
what is zero, false or empty is left out. `json_format` of protobuf writes the same in three times
the time, and all at once.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import trio
from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

__all__ = ["encode", "encode_in_turns", "to_json"]

_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_BYTES_OF_A_TURN: Final = 64 << 10
"""JSON that is written at once: some milliseconds. If smaller, a large reply takes longer; if
larger, it holds up the member, which may be the leader."""


def encode(message: Message) -> bytes:
    """Return a message as JSON without spaces."""
    return b"".join(_pieces(message))


async def encode_in_turns(message: Message) -> bytes:
    """Return a message as JSON, as `encode` does; other tasks run in between if it is large.

    A reply with as many keys as one may have takes more than a second to write.
    """
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(message):
        pieces.append(piece)
        size += len(piece)
        if size > _BYTES_OF_A_TURN:
            size = 0
            await trio.lowlevel.checkpoint()
    return b"".join(pieces)


def _pieces(message: Message) -> Iterator[bytes]:
    """Yield a message as JSON, and each that is in it as pieces of its own."""
    text = b"{"
    for field, value in message.ListFields():
        head, write = _head_and_writer(field)
        text += head if text == b"{" else b"," + head
        if write is not None:
            written = b"[%s]" % b",".join(map(write, value)) if field.is_repeated else write(value)
            text += written
            continue
        for index, each in enumerate(value if field.is_repeated else (value,)):
            yield text + (b"," if index else b"[" if field.is_repeated else b"")
            yield from _pieces(each)
            text = b""
        text += b"]" if field.is_repeated else b""
    yield text + b"}"


@cache
def _head_and_writer(field: FieldDescriptor) -> tuple[bytes, Callable[[Any], bytes] | None]:
    """Return a field's name as JSON, and what writes its values; None if they are messages."""
    return b'"%s":' % field.name.encode(), _writer(field)


def _writer(field: FieldDescriptor) -> Callable[[Any], bytes] | None:
    """Return what writes a value of a field; None if it is a message."""
    if field.message_type is not None:
        return None
    if field.enum_type is not None:
        names = {value.number: to_json(value.name) for value in field.enum_type.values}
        return lambda value: names.get(value) or b"%d" % value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: b'"%s"' % b2a_base64(value, newline=False)
    if field.cpp_type in _LONG:
        return lambda value: b'"%d"' % value
    return to_json


def to_json(value: object) -> bytes:
    """Return a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
