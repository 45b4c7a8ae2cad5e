"""What a method of the API gets to work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from ..backend.caller import Caller
from ..codes import Code, EtcdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from ..access.rights import LeaseNeed
    from ..backend.backend import Backend
    from ..messages.requests import Op
    from ..watching.hub import WatchHub

__all__ = ["ATTEMPTS", "Call", "Outlet", "StreamMethod", "UnaryMethod", "Users"]


ATTEMPTS: Final = 5
"""How often a request is begun anew when users or keys change after it was allowed. If smaller, a
lease that gets keys all the time is hardly revoked; if larger, a client waits longer before it is
asked to try again."""


class Outlet(Protocol):
    """The stream of replies of one call."""

    async def send(self, reply: bytes, /) -> None:
        """Send an encoded reply; wait while the client does not read.

        Raises:
            trio.BrokenResourceError: the client is gone.
        """
        ...


class Users(Protocol):
    """Who may call, and what."""

    @property
    def enabled(self) -> bool:
        """Whether clients have to show a token."""
        ...

    def knows(self, token: str) -> bool:
        """Whether it is known whose token it is, and who the users are; if not, `learn` it first.

        Args:
            token: that a caller shows; empty for none.
        """
        ...

    async def learn(self, token: str) -> None:
        """Find out what `knows` asks for, as long as a request waits for a leader.

        A token that nobody has given stays unknown.

        Raises:
            EtcdError: there is no leader that knows.
        """
        ...

    @property
    def version(self) -> int:
        """The version of the users; 0 before the first change, and while they are unknown."""
        ...

    @property
    def names(self) -> list[str]:
        """The names of all users."""
        ...

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return name and number of the user that has a token; (None, 0) for a caller without one.

        Without authentication every caller is (None, 0), whatever token it shows.

        Raises:
            EtcdError: the token is unknown or over.
        """
        ...

    def check(self, user: str | None, path: str, message: bytes | None) -> Sequence[LeaseNeed]:
        """Raise unless a user may do what a request asks for.

        Returns what it needs of leases, which is not checked yet: see `check_leases`.

        Does nothing without authentication.

        Args:
            user: its name, or None for a caller without a token.
            path: of gRPC, which names the method.
            message: the request, encoded. None before the first request of a method that streams:
                then only a login is checked, and its service must check each request.

        Raises:
            EtcdError: it may not, or the method needs a token.
        """
        ...

    async def check_leases(self, user: str, needs: Sequence[LeaseNeed]) -> int:
        """Raise unless a user may do this with the keys that leases have, which the leader says.

        Returns the revision at which they had these keys, 0 if no lease was asked for.

        Raises:
            EtcdError: it may not, or there is no leader.
        """
        ...

    def state_of(self, user: str | None) -> object:
        """Return what a user is now, to be compared; None is a caller without a token."""
        ...

    async def wait_revised(self, user: str | None, state: object) -> None:
        """Wait until a user is known to be something else than it was.

        Args:
            user: its name, or None.
            state: what it was, of `state_of`.
        """
        ...

    async def authenticate(self, name: str, password: str) -> str:
        """Return a new token for a user.

        Raises:
            EtcdError: name or password is wrong, or there is no authentication.
        """
        ...


@attrs.frozen
class Call:
    """One call of a client.

    Args:
        backend: reaches the cluster and the state.
        hub: watches the state.
        user: name of the user that calls; None without authentication.
        principal: number of that user, recorded with commands; 0 without authentication.
        users: judges callers.
        checked: revision at which the user might do this with all keys of the leases that the
            request names; 0 if its rights do not hang on these.
        rules: version of the users by which the call was allowed.
        path: of gRPC, which names the method.
        message: the request, encoded; None before the first one of a method that streams.
    """

    backend: Backend
    hub: WatchHub
    user: str | None = None
    principal: int = 0
    users: Users | None = None
    checked: int = 0
    rules: int = 0
    path: str = ""
    message: bytes | None = None

    @property
    def caller(self) -> Caller:
        """Who sends the requests of the call, which are sent only while the same users hold."""
        return Caller(self.principal, self.rules, self.users)

    async def ask(self, op: Op, message: bytes) -> bytes:
        """Make a request that is a part of the call; return the reply with its header.

        The call may have waited for long, so it is checked again that the user may make it.

        Raises:
            EtcdError: the reply is an error, or the user may not make the call any more.
        """
        users = self.users
        if users is None:
            return await self.backend.call(op, message, caller=self.caller)
        left = ATTEMPTS
        while True:
            left -= 1
            if not users.knows(""):
                await users.learn("")
            users.check(self.user, self.path, self.message)
            caller = Caller(self.principal, users.version, users)
            try:
                return await self.backend.call(op, message, caller=caller)
            except EtcdError as error:
                if error.code is not Code.ABORTED or not left:
                    raise


# A request comes decoded, a reply goes encoded, since most replies never were objects. Both raise
# `EtcdError`. A method that is called is cancelled when its client goes or its time is over.
UnaryMethod: TypeAlias = "Callable[[Call, Message], Awaitable[bytes]]"
StreamMethod: TypeAlias = "Callable[[Call, AsyncIterator[Message], Outlet], Awaitable[None]]"
