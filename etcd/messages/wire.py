"""A few bytes of protobuf, written without an object.

Rows of the state are protobuf messages already, and a reply is its header and its body one after
the other. To decode them only to encode them again would cost most of the time of a large range.
"""

from typing import Final

__all__ = ["field", "varint"]

_LOW: Final = 0x7F
_MORE: Final = 0x80


def varint(number: int) -> bytes:
    """Encode a number, 0 or more, as protobuf does."""
    out = bytearray()
    while number > _LOW:
        out.append(number & _LOW | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """Encode a field that has a message, a string or bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content
