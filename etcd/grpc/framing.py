"""Messages in the bytes of a call: a flag, a length of four bytes, and the message."""

import struct
from typing import Final

from ..codes import Code, EtcdError

__all__ = ["MAX_MESSAGE_BYTES", "MessageReader", "framed", "only_message_untrusted"]

MAX_MESSAGE_BYTES: Final = 2 << 20
"""A message of a client; etcd's 1.5 MiB for a request, and half a MiB for what is around it. The
state refuses smaller ones by etcd's own text; this bound is for our memory."""

_PREFIX: Final = struct.Struct(">BI")


def framed(message: bytes) -> bytes:
    """Return a message as it stands in the bytes of a call."""
    return _PREFIX.pack(0, len(message)) + message


def only_message_untrusted(data: bytes) -> bytes | None:
    """Return the message if data are one whole message and nothing else, as they mostly are."""
    size = len(data) - _PREFIX.size
    if 0 <= size <= MAX_MESSAGE_BYTES and _PREFIX.unpack_from(data) == (0, size):
        return data[_PREFIX.size :]
    return None


class MessageReader:
    """Takes messages out of the bytes of one call."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Return how many bytes wait."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes of the call; the caller bounds how many wait."""
        self._buffer += data

    def is_whole_untrusted(self) -> bool:
        """Whether a whole message waits.

        Raises:
            EtcdError: it is compressed, or too long. That shows as soon as it begins.
        """
        if len(self._buffer) < _PREFIX.size:
            return False
        flag: int
        length: int
        flag, length = _PREFIX.unpack_from(self._buffer)
        if flag:
            # etcd has no decompressor either, unless a program registers one.
            raise EtcdError(
                Code.UNIMPLEMENTED,
                "grpc: compressed message: this server has no decompressor, send it plain",
            )
        if length > MAX_MESSAGE_BYTES:
            raise EtcdError(
                Code.RESOURCE_EXHAUSTED,
                f"grpc: received message larger than max ({length} vs. {MAX_MESSAGE_BYTES})",
            )
        return len(self._buffer) >= _PREFIX.size + length

    def next_untrusted(self) -> bytes | None:
        """Take the next message; None while it is not whole.

        Raises:
            EtcdError: it is compressed, or too long.
        """
        if not self.is_whole_untrusted():
            return None
        _, length = _PREFIX.unpack_from(self._buffer)
        end = _PREFIX.size + length
        message = bytes(memoryview(self._buffer)[_PREFIX.size : end])
        del self._buffer[:end]
        return message
