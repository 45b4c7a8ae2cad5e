"""Who sends a request, and by which users it was allowed.

A request may wait, for a leader mostly, and the users may change in that time. etcd checks a
request as it applies it; if the users have changed since it was allowed, it begins again. Here a
request is sent only while the users are those by which it was allowed; the leader compares their
version, too. If they have changed, nothing was done, and the port begins again.

Two things are not so:

- Before the very first change of users there is no version to compare: a member that lags serves
  everybody until it has applied that change, see "When a change takes effect" in docs/users.md.
- Renewals of leases and of tokens have no caller. Those of one moment share an entry, whoever asks.
  So one that waits for a leader is made although its user is gone since: once, and after 2 s at
  most. It shows nothing, and keeps a lease or a token for its time to live and no longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ...errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...node.requests.request import Request

__all__ = ["ANYBODY", "Caller", "UsersChangedError"]


class UsersChangedError(RequestError):
    """The users have changed since a request was allowed, which was not sent."""


class _Versioned(Protocol):
    @property
    def version(self) -> int:
        """Changes with each change."""
        ...


class Caller(NamedTuple):
    """Who sends a request.

    Args:
        principal: number of the user.
        rules: version of the users by which the request was allowed.
        users: that version, as it is now; None where nobody has to be allowed anything.
    """

    principal: int = 0
    rules: int = 0
    users: _Versioned | None = None

    def sign(self, request: Request) -> None:
        """Note the caller in a request before it is sent."""
        request.principal = self.principal
        if self.users is not None:
            request.rules, request.recheck = self.rules, self._check_again

    def _check_again(self, request: Request) -> Sequence[Request]:
        if self.users is not None and self.users.version != self.rules:
            request.done(UsersChangedError("the users have changed; nothing was done"))
            return ()
        request.recheck = self._check_again
        return (request,)


ANYBODY: Final = Caller()
"""Nobody in particular, who may do everything."""
