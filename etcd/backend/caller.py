"""Who sends a request, by which users it was allowed, and until when it may wait.

A request may wait, for a leader mostly, and the users may change in that time. etcd checks a
request as it applies it; if the users have changed since it was allowed, it begins again. Here a
client's request is sent only while the users are those by which it was allowed, as this member
knows them. A leader compares their version with its own, too, unless the users were never changed
as far as the member knew. If they have changed, nothing was done, and the port begins again, within
the time that the request had at first.

What a member sends for several clients, or for none, has no caller: renewals of leases and of
tokens, which change nothing that a client reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import trio

from ...errors import RequestError
from ..codes import NO_LEADER, EtcdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ...node.requests.request import Request

__all__ = ["ANYBODY", "LEADER_WAIT_S", "Caller", "Rules", "UsersChangedError", "in_time"]

T = TypeVar("T")

LEADER_WAIT_S: Final = 2.0
"""Seconds for which a request waits for a leader. If smaller, elections cause errors. If larger,
clients such as Patroni give up first, and have no time left for another member."""


class UsersChangedError(RequestError):
    """The users have changed since a request was allowed, which was not sent."""


class _Versioned(Protocol):
    @property
    def version(self) -> int:
        """Changes with each change; -1 while the users are unknown."""
        ...


class Rules:
    """The users of one version, by which requests were allowed; checks them as `Request.recheck`.

    All requests that they have allowed share it, so that one look is enough for all that wait.

    Args:
        users: as they are now, which must be known.

    Attributes:
        version: of the users.
    """

    __slots__ = ("_users", "version")

    def __init__(self, users: _Versioned) -> None:
        self._users = users
        self.version = users.version

    def __call__(self, request: Request) -> Sequence[Request]:
        """Return the request if the users are the same; if not, end it and return nothing."""
        if self._users.version != self.version:
            request.done(UsersChangedError("the users have changed; nothing was done"))
            return ()
        request.recheck = self
        return (request,)


class Caller(NamedTuple):
    """Who sends a request.

    Args:
        principal: number of the user.
        rules: by which the request was allowed; None where nobody has to be allowed anything.
        deadline: when the request fails unless it was sent by then (trio's clock); 0 for
            `LEADER_WAIT_S` from the time at which it is signed.
    """

    principal: int = 0
    rules: Rules | None = None
    deadline: float = 0.0

    def sign(self, request: Request) -> None:
        """Note the caller in a request before it is sent."""
        request.principal = self.principal
        request.deadline = self.deadline or trio.current_time() + LEADER_WAIT_S
        if self.rules is not None:
            request.rules, request.recheck = self.rules.version, self.rules


ANYBODY: Final = Caller()
"""Nobody in particular, who may do everything."""


async def in_time(deadline: float, function: Callable[[], Awaitable[T]]) -> T:
    """Call a function that only asks, and return its result if it has one by a deadline.

    Raises:
        EtcdError: it has none by then, which a leader would have given.
    """
    with trio.move_on_at(deadline):
        return await function()
    raise EtcdError(*NO_LEADER)
