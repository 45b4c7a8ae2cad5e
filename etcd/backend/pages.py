"""A range of many keys, read in pages, so that the member does other things in between.

To read 100,000 keys takes 0.2 s of one core. The first page says how many keys there are, and which
revision it has seen; the other pages read that revision. So the client gets what one query would
have returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..codes import COMPACTED, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op
from ..messages.wire import varint
from ..state.ranges import is_plain
from ..state.work import ROW_STEPS, Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..state.machine import EtcdState

__all__ = ["PAGE_KEYS", "is_long", "read_in_pages"]

PAGE_KEYS: Final = 5000
"""Some 10 ms. If smaller, a long range takes more round trips; if larger, one page holds up the
member for longer."""

_MORE: Final = b"\x18\x01"  # fields of the reply
_COUNT: Final = b"\x20"


def is_long(state: EtcdState, request: rpc.RangeRequest) -> bool:
    """Say whether to read a range in pages, as far as this member knows how many keys it has."""
    wanted = not 0 < request.limit <= PAGE_KEYS
    if not request.range_end or request.count_only or not wanted or not is_plain(request):
        return False
    return state.count(request.key, request.range_end) > PAGE_KEYS


async def read_in_pages(
    ask: Callable[[Op, bytes], Awaitable[tuple[int, bytes]]], request: rpc.RangeRequest
) -> tuple[int, bytes]:
    """Return revision and body of the reply to a range.

    Args:
        ask: asks for one page; returns the same of it.
        request: is plain.

    Raises:
        EtcdError: the range is too long, or a page could not be read.
    """
    page = rpc.RangeRequest()
    page.CopyFrom(request)
    page.limit = PAGE_KEYS
    revision, body = await ask(Op.RANGE, page.SerializeToString())
    response = rpc.RangeResponse.FromString(body)
    count = response.count
    left = wanted = min(count, request.limit) if request.limit > 0 else count
    Work().look(ROW_STEPS * wanted)  # before all of it is read
    page.revision = request.revision if request.revision > 0 else revision
    work, pieces = Work(), list[bytes]()
    while True:
        pieces.append(body[: len(body) - len(_tail(response.count, more=response.more))])
        work.read(len(body), len(response.kvs))
        left -= len(response.kvs)
        if left <= 0 or not response.more:
            return revision, b"".join([*pieces, _tail(count, more=count > wanted)])
        page.key, page.limit = response.kvs[-1].key + b"\0", min(left, PAGE_KEYS)
        try:
            _, body = await ask(Op.RANGE_PAGE, page.SerializeToString())
        except EtcdError as error:
            if error.code is not COMPACTED[0] or request.revision > 0:
                raise
            # The client has not asked for that revision: all at once.
            return await ask(Op.RANGE, request.SerializeToString())
        response = rpc.RangeResponse.FromString(body)


def _tail(count: int, *, more: bool) -> bytes:
    """Return what is behind the keys in a reply; see `range_body`."""
    return _MORE * more + (_COUNT + varint(count) if count else b"")
