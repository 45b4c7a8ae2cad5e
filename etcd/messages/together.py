"""Requests of several clients in one entry of the log, and their replies.

::

    payload   mark      u8     15, which is no `Op`
              for each request: size u32, and the payload that it has alone

    reply     code      u8     0; one of an error if nothing was done, as for a request alone
              revision  i64    behind the last request
              for each request: size u32, and the reply that it gets alone

They do not depend on each other: each has its own revision and reply, and may fail alone.
"""

import struct
from collections.abc import Iterable
from typing import Final

from ...errors import WireError
from .requests import decode_reply, encode_reply

__all__ = [
    "MAX_TOGETHER",
    "encode_replies",
    "encode_together",
    "payloads_untrusted",
    "replies_in_untrusted",
]

MAX_TOGETHER: Final = 64
"""Requests in one entry that are applied; how many a member joins is its own matter. If larger, an
entry may hold up the member for longer: 64 puts are one millisecond. Part of the state machine."""

_MARK: Final = b"\x0f"
_SIZE: Final = struct.Struct("<I")


def encode_together(payloads: Iterable[bytes]) -> bytes:
    """Encode the payload of an entry that has several requests."""
    return _MARK + _parts(payloads)


def payloads_untrusted(payload: bytes) -> list[bytes]:
    """Return the payloads of the requests in the payload of an entry, which is often one.

    Raises:
        WireError: they are cut, or too many.
    """
    if payload[:1] != _MARK:
        return [payload]
    return _split_untrusted(payload, 1, MAX_TOGETHER)


def encode_replies(revision: int, replies: Iterable[bytes]) -> bytes:
    """Encode the reply to requests that came together; the revision is that behind the last."""
    return encode_reply(revision, _parts(replies))


def replies_in_untrusted(reply: bytes, count: int) -> tuple[int, list[bytes]]:
    """Return the revision of a reply to `count` requests that came together, and each one's reply.

    Raises:
        EtcdError: none of them was done, or a member without this keyspace has answered.
        WireError: the reply is malformed, or has another number of replies.
    """
    try:
        revision, body = decode_reply(reply)
    except ValueError as error:  # an unknown code, or a text that is no UTF-8
        raise WireError(f"reply to requests of etcd: {error}") from None
    replies = _split_untrusted(body, 0, count)
    if len(replies) < count:
        raise WireError(f"{len(replies)} replies to requests of etcd: expected {count}")
    return revision, replies


def _parts(contents: Iterable[bytes]) -> bytes:
    pack = _SIZE.pack
    return b"".join([piece for each in contents for piece in (pack(len(each)), each)])


def _split_untrusted(data: bytes, at: int, most: int) -> list[bytes]:
    parts: list[bytes] = []
    end = len(data)
    while at < end:
        # Checked here: many sizes of zero would become a list many times as large as the data.
        if len(parts) == most:
            raise WireError(f"over {most} requests of etcd in one: expected {most} at most")
        start = at + _SIZE.size
        if start > end:
            raise WireError(f"requests of etcd: {end - at} bytes left, expected a size of 4 bytes")
        at = start + _SIZE.unpack_from(data, at)[0]
        if at > end:
            raise WireError(f"requests of etcd: expected {at - start} bytes, found {end - start}")
        parts.append(data[start:at])
    return parts
