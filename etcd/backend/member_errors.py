"""Errors of the member in the words of etcd, by which clients decide whether to try again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import NoLeaderError, OversizedRequestError, RefusedError
from ...node.requests.request import QUERY
from ..codes import NO_LEADER, TIMED_OUT, TOO_LARGE, USERS_CHANGED, Code, EtcdError
from .caller import UsersChangedError

if TYPE_CHECKING:
    from ...errors import RequestError
    from ...node.requests.request import RequestKind

__all__ = ["error_of"]

_REPLY_TOO_LARGE: Final = (
    Code.RESOURCE_EXHAUSTED,
    "etcdserver: the reply is too large; read fewer keys at once, by limit and range_end",
)


def error_of(error: RequestError, kind: RequestKind) -> EtcdError:
    """Return the reply for a request that failed in the member.

    Args:
        error: how it failed.
        kind: of the request.
    """
    match error:
        case NoLeaderError():
            return EtcdError(*NO_LEADER)
        case UsersChangedError():
            return EtcdError(*USERS_CHANGED)
        case OversizedRequestError():
            # What we send is bounded, so it is the reply to a query that is too large.
            return EtcdError(*(_REPLY_TOO_LARGE if kind is QUERY else TOO_LARGE))
        case RefusedError():
            return EtcdError(Code.UNAVAILABLE, f"etcdserver: {error}")
        case _:
            return EtcdError(*TIMED_OUT)
