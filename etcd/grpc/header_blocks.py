"""Blocks of headers that are the same each time are coded once.

hpack in Python takes 24 µs for the headers of one call, which is as much as all the rest of it.

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
from typing import TYPE_CHECKING, Any, Final

from hpack import Decoder, Encoder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpack import HeaderTuple

__all__ = ["ReplyEncoder", "RequestDecoder"]

_REMEMBERED: Final = 256
"""Blocks of replies; one for each text of an error that occurs often."""

_BLOCKS: Final = 32
"""Blocks of requests of one connection: one for each method that its client calls."""

_INDEXED: Final = 0x80  # the lowest byte that is an index of a header, less one
_LONG_INDEX: Final = 0xFF  # an index of more than one byte
_TABLE_OF_SIZE_0: Final = b"\x20"


@functools.lru_cache(_REMEMBERED)
def _block(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return Encoder().encode([(name, value, True) for name, value in headers])


class ReplyEncoder(Encoder):
    """Encodes headers without the dynamic table."""

    def encode(self, headers: Iterable[Any] | dict[Any, Any], huffman: bool = True) -> bytes:  # noqa: ARG002, FBT001, FBT002 - as h2 calls it
        """Return the block of these headers."""
        block = _block(tuple((name, value) for name, value, *_ in headers))
        # The client has changed the size of our table, and must hear of ours: we need none.
        if self.header_table.resized:
            self.header_table.resized = False
            return _TABLE_OF_SIZE_0 + block
        return block


class RequestDecoder(Decoder):
    """Decodes headers, and remembers blocks that change nothing in the table."""

    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._known: dict[bytes, Iterable[HeaderTuple]] = {}

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:  # noqa: FBT001, FBT002 - as h2 calls it
        """Return the headers of a block."""
        known = self._known.get(data)
        if known is not None:
            return known
        headers = super().decode(data, raw)
        if data and min(data) > _INDEXED and max(data) < _LONG_INDEX:
            if len(self._known) < _BLOCKS:
                self._known[data] = headers
        else:
            self._known.clear()
        return headers
