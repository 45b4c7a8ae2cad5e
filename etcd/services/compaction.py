"""Compaction on a client's request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ..backend.catching_up import HELD_S
from ..messages.requests import Op

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ..messages import rpc_pb2 as rpc
    from .call import Call

__all__ = ["compact"]

_LOOK_S: Final = 0.01
"""Between two looks whether this member has compacted. If smaller, waiting takes more work; if
larger, replies come later by as much."""


async def compact(call: Call, request: Message) -> bytes:
    """Serve ``Compact``; answer once this member has compacted, too.

    A compaction changes no revision, so the reply is not held as that of a write is. A watch that
    the client begins next must get `compacted`, as with etcd, and not what was compacted elsewhere.

    Raises:
        EtcdError: the leader has refused it, or there is none.
    """
    backend, asked = call.backend, cast("rpc.CompactionRequest", request)
    message = asked.SerializeToString()
    reply = await call.ask(Op.COMPACT, message)
    with trio.move_on_after(HELD_S):
        # Nothing reports a compaction, and it is too rare to add that.
        while backend.state.compacted < asked.revision and backend.has_leader:  # noqa: ASYNC110
            await trio.sleep(_LOOK_S)
    return reply
