"""Blocks of headers that are the same each time are coded once.

hpack in Python takes 24 µs for the headers of one call, which is more than all the rest of it.

Replies
    Our headers are few and repeat. They are written without the dynamic table, so the bytes of a
    block depend on its headers alone, and are remembered for all connections.

Requests
    A client writes a header in full once, and by its index from then on. A block of indices alone
    changes nothing in the decoder, so the same bytes mean the same headers until a block comes that
    adds to the table. A client with another `grpc-timeout` each time gains nothing by this.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from .frames import Fault, Http2Error

if TYPE_CHECKING:
    from collections.abc import Sequence

    Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

__all__ = ["MAX_HEADER_BYTES", "NO_TABLE", "HeaderBlock", "RequestDecoder", "encoded"]

MAX_HEADER_BYTES: Final = 16 << 10
"""Headers of a call, coded or not. A token is some 200 bytes."""

NO_TABLE: Final = b"\x20"
"""In front of a block it says that we need no dynamic table, whatever the client offers."""

_REMEMBERED: Final = 256
"""Blocks of replies; one for each text of an error that occurs often."""

_BLOCKS: Final = 32
"""Blocks of requests of one connection: one for each method that its client calls."""

_INDEXED: Final = 0x80  # the lowest byte that is an index of a header, less one
_LONG_INDEX: Final = 0xFF  # an index of more than one byte

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE: Final = re.compile(rb"[^\0\r\n]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_OF_REQUESTS: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED: Final = frozenset((b":method", b":scheme", b":path"))
_OF_HTTP_1: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


@functools.lru_cache(_REMEMBERED)
def encoded(headers: Headers) -> bytes:
    """Return the block of these headers."""
    return Encoder().encode([(name, value, True) for name, value in headers])


@attrs.frozen
class HeaderBlock:
    """Headers of a client, and what they can be.

    Args:
        headers: as they came.
        request: they can begin a request.
        trailers: they can end one.
        length: of the data that come with the request, if it says so.
    """

    headers: Headers
    request: bool
    trailers: bool
    length: int | None


class RequestDecoder:
    """Decodes headers, and remembers blocks that change nothing in the table."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._known: dict[bytes, HeaderBlock] = {}

    def decode_untrusted(self, data: bytes) -> HeaderBlock:
        """Return the headers of a block.

        Raises:
            Http2Error: they can't be decoded, or are too long.
        """
        known = self._known.get(data)
        if known is not None:
            return known
        try:
            found = self._decoder.decode(data, raw=True)
        except OversizedHeaderListError as error:
            text = f"headers of more than {MAX_HEADER_BYTES} bytes"
            raise Http2Error(Fault.ENHANCE_YOUR_CALM, text) from error
        except (HPACKError, IndexError, TypeError, ValueError) as error:
            raise Http2Error(Fault.COMPRESSION_ERROR, "headers can't be decoded") from error
        block = _judged_untrusted(tuple((bytes(name), bytes(value)) for name, value in found))
        if data and min(data) > _INDEXED and max(data) < _LONG_INDEX:
            if len(self._known) < _BLOCKS:
                self._known[data] = block
        else:
            self._known.clear()
        return block


def _judged_untrusted(headers: Headers) -> HeaderBlock:
    """Say what headers can be, by RFC 9113, 8.2 and 8.3."""
    names = [name for name, _ in headers]
    pseudo = [name for name in names if name.startswith(b":")]
    values = dict(headers)
    length = values.get(b"content-length")
    well_formed = (
        all(_NAME.fullmatch(name.removeprefix(b":")) for name in names)
        and all(_VALUE.fullmatch(value) for _, value in headers)
        and _OF_HTTP_1.isdisjoint(names)
        and values.get(b"te", b"trailers") == b"trailers"
        and (length is None or _LENGTH.fullmatch(length) is not None)
    )
    return HeaderBlock(
        headers,
        request=well_formed and _is_whole(names, pseudo) and bool(values[b":path"]),
        trailers=well_formed and not pseudo,
        length=int(length) if length is not None and well_formed else None,
    )


def _is_whole(names: Sequence[bytes], pseudo: Sequence[bytes]) -> bool:
    """Whether headers that begin with a colon are first, each once, and there are enough."""
    first, once = names[: len(pseudo)], set(pseudo)
    return first == pseudo and len(once) == len(pseudo) and _NEEDED <= once <= _OF_REQUESTS
