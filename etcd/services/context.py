"""What a port of this API shares among all its connections, whichever protocol they speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from ..codes import AUTH_NOT_ENABLED, EtcdError
from .call import Call
from .stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..backend.backend import Backend
    from ..watching.hub import WatchHub

__all__ = ["Everybody", "PortContext", "Users"]


class Users(Protocol):
    """Who may call, and what."""

    @property
    def enabled(self) -> bool:
        """Whether clients have to show a token."""
        ...

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return name and number of the user that has a token; (None, 0) for a caller without one.

        Without authentication every caller is (None, 0), whatever token it shows.

        Raises:
            EtcdError: the token is unknown or over.
        """
        ...

    def check(self, user: str | None, path: str, message: bytes) -> None:
        """Raise unless a user may do what a request asks for.

        Does nothing without authentication. Of a method whose requests are a stream the message is
        empty; its service checks each request.

        Args:
            user: its name, or None for a caller without a token.
            path: of gRPC, which names the method.
            message: the request, encoded.

        Raises:
            EtcdError: it may not, or the method needs a token.
        """
        ...

    async def authenticate(self, name: str, password: str) -> str:
        """Return a new token for a user.

        Raises:
            EtcdError: name or password is wrong, or there is no authentication.
        """
        ...


class Everybody:
    """No authentication: everybody may do everything."""

    enabled = False

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return nobody in particular."""
        del token
        return None, 0

    def check(self, user: str | None, path: str, message: bytes) -> None:
        """Allow it."""

    async def authenticate(self, name: str, password: str) -> str:  # noqa: ARG002
        """Raise: there is nothing to log in to."""
        raise EtcdError(*AUTH_NOT_ENABLED)


@attrs.frozen
class PortContext:
    """What all connections of a port share.

    Args:
        backend: reaches the cluster and the state.
        hub: watches the state.
        users: judges callers.
        stopping: tells connections that the port stops.
        figures: returns the figures of the member in the text of Prometheus.
    """

    backend: Backend
    hub: WatchHub
    users: Users = attrs.field(factory=Everybody)
    stopping: Stopping = attrs.field(factory=Stopping)
    figures: Callable[[], str] = str

    def admit(self, token: str, path: str, message: bytes) -> Call:
        """Return what a method gets, if the caller may call it.

        Args:
            token: that the caller shows; empty for none.
            path: of gRPC, which names the method.
            message: the request, encoded; empty where requests are a stream.

        Raises:
            EtcdError: it may not.
        """
        user, principal = self.users.identify(token)
        self.users.check(user, path, message)
        return Call(self.backend, self.hub, user, principal, self.users)
