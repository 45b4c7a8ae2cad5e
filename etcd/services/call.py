"""What a method of the API gets to work with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import attrs
import trio

from ..backend.caller import LEADER_WAIT_S, Caller, in_time
from ..codes import Code, EtcdError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from ..access.rights import LeaseNeed
    from ..backend.backend import Backend
    from ..backend.caller import Rules
    from ..messages.requests import Op
    from ..watching.hub import WatchHub

__all__ = ["REVISED", "Attempts", "Call", "Outlet", "StreamMethod", "UnaryMethod", "Users"]

T = TypeVar("T")

REVISED: Final = (Code.UNAVAILABLE, "etcdserver: the user was changed; call again")

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
        """The version of the users; 0 before the first change, and -1 while they are unknown."""
        ...

    @property
    def rules(self) -> Rules | None:
        """The users as they are now, by which a request is allowed; None if all always are.

        They must be known.
        """
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

    async def authenticate(self, name: str, password: str, peer: str = "") -> str:
        """Return a new token for a user.

        Args:
            name: of the user.
            password: of the user.
            peer: address and port of the client: failures there delay the next answers, and
                addresses take turns.

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
        rules: the users by which the call was allowed; None if all always are.
        state: of the user as it was let in, see `Users.state_of`.
        path: of gRPC, which names the method.
        message: the request, encoded; None before the first one of a method that streams.
        peer: address and port of the client; empty if unknown.
    """

    backend: Backend
    hub: WatchHub
    user: str | None = None
    principal: int = 0
    users: Users | None = None
    checked: int = 0
    rules: Rules | None = None
    state: object = None
    path: str = ""
    message: bytes | None = None
    peer: str = ""

    @property
    def caller(self) -> Caller:
        """Who sends the requests of the call, which are sent only while the same users hold."""
        return Caller(self.principal, self.rules)

    async def ask(self, op: Op, message: bytes) -> bytes:
        """Make a request that is a part of the call; return the reply with its header.

        Raises:
            EtcdError: the reply is an error, or the user may not make the call any more.
        """
        return await self.send(lambda caller: self.backend.call(op, message, caller=caller))

    async def send(self, request: Callable[[Caller], Awaitable[T]]) -> T:
        """Send a request that is a part of the call, and return its result.

        The call may have waited for long, so it is checked again that the user may make it, and
        that it is what it was when it was let in. So it is if the users change while it waits.

        Args:
            request: sends it for a caller.

        Raises:
            EtcdError: `request` has raised it, or the user may not make the call any more.
        """
        attempts = Attempts(trio.current_time() + LEADER_WAIT_S)
        while True:
            caller = await self._checked(attempts.deadline)
            try:
                return await request(caller)
            except EtcdError as error:
                attempts.go_on_after(error)

    async def _checked(self, deadline: float) -> Caller:
        users = self.users
        if users is None:
            return self.caller._replace(deadline=deadline)
        if not users.knows(""):
            await in_time(deadline, partial(users.learn, ""))
        users.check(self.user, self.path, self.message)
        # It may have another password, and whoever waits here knows only the one before.
        if users.state_of(self.user) != self.state:
            raise EtcdError(*REVISED)
        return Caller(self.principal, users.rules, deadline)


@attrs.define
class Attempts:
    """Begins a request anew when the users or the keys that its rights hang on have changed.

    Args:
        deadline: nothing is begun after it (trio's clock); each attempt fails unless it was sent by
            then.
    """

    deadline: float
    _left: int = ATTEMPTS

    def go_on_after(self, error: EtcdError) -> None:
        """Return if the request shall be begun anew, since nothing was done; else raise the error.

        Raises:
            EtcdError: the given one.
        """
        self._left -= 1
        if error.code is not Code.ABORTED or not self._left or trio.current_time() > self.deadline:
            raise error


# A request comes decoded, a reply goes encoded, since most replies never were objects. Both raise
# `EtcdError`. A method that is called is cancelled when its client goes or its time is over.
UnaryMethod: TypeAlias = "Callable[[Call, Message], Awaitable[bytes]]"
StreamMethod: TypeAlias = "Callable[[Call, AsyncIterator[Message], Outlet], Awaitable[None]]"
