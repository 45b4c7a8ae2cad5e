"""What a port of this API shares among all its connections, whichever protocol they speak."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
import trio

from ..codes import AUTH_NOT_ENABLED, Code, EtcdError
from .call import Call, Users
from .stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backend.backend import Backend
    from ..methods import Method
    from ..watching.hub import WatchHub
    from .rights import LeaseNeed

__all__ = ["Everybody", "PortContext", "Users"]


class Everybody:
    """No authentication: everybody may do everything."""

    enabled = False
    known = True
    version = 0

    @property
    def names(self) -> list[str]:
        """There are none."""
        return []

    async def wait_known(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return nobody in particular."""
        del token
        return None, 0

    def check(self, user: str | None, path: str, message: bytes | None) -> Sequence[LeaseNeed]:
        """Allow it."""
        del user, path, message
        return ()

    async def check_leases(self, user: str, needs: Sequence[LeaseNeed]) -> None:
        """Allow it."""
        del user, needs
        await trio.lowlevel.checkpoint()

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
        requests: how many calls with one reply have ended, by method and code.
    """

    backend: Backend
    hub: WatchHub
    users: Users = attrs.field(factory=Everybody)
    stopping: Stopping = attrs.field(factory=Stopping)
    figures: Callable[[], str] = str
    requests: Counter[tuple[str, Code]] = attrs.field(factory=Counter[tuple[str, Code]])

    def count(self, method: Method, code: Code) -> None:
        """Count the end of a call with one reply."""
        self.requests[method.name, code] += 1

    def admit(self, token: str, path: str, message: bytes | None) -> Call | None:
        """Return what a method gets, if the caller may call it; None if that takes a while.

        Then `admit_when_known` finds out.

        Args:
            token: that the caller shows; empty for none.
            path: of gRPC, which names the method.
            message: the request, encoded; None where it comes as a stream, see `Users.check`.

        Raises:
            EtcdError: it may not.
        """
        if not self.users.known:
            return None
        user, principal = self.users.identify(token)
        if self.users.check(user, path, message):
            return None
        return Call(self.backend, self.hub, user, principal, self.users)

    async def admit_when_known(self, token: str, path: str, message: bytes | None) -> Call:
        """Return what a method gets; ask the leader if the user's rights hang on that.

        Args:
            token: see `admit`.
            path: see `admit`.
            message: see `admit`.

        Raises:
            EtcdError: the caller may not call it, or there was no leader for too long.
        """
        if not self.users.known:
            await self.users.wait_known()
        user, principal = self.users.identify(token)
        needs = self.users.check(user, path, message)
        if needs and user is not None:
            await self.users.check_leases(user, needs)
        return Call(self.backend, self.hub, user, principal, self.users)
