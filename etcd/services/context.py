"""What a port of this API shares among all its connections, whichever protocol they speak."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...metrics import Histogram
from ..access.needs import FREE
from ..backend.caller import LEADER_WAIT_S, in_time
from ..codes import AUTH_NOT_ENABLED, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op
from .call import Attempts, Call, Users
from .stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..access.rights import LeaseNeed
    from ..backend.backend import Backend
    from ..backend.caller import Rules
    from ..methods import Method
    from ..watching.hub import WatchHub

__all__ = ["Everybody", "PortContext", "Users"]

_CHECKED: Final = {
    Op.LEASE_REVOKE: Op.LEASE_REVOKE_CHECKED,
    Op.LEASE_TIME_TO_LIVE: Op.LEASE_TIME_TO_LIVE_CHECKED,
}
"""What is done only if a lease got no key since its keys were checked. Both have the lease's id in
their first field.

Puts are not among these. A key of another user that joins the lease between check and put leaves a
lease with keys of both, which neither can revoke or list. Either user can make such a lease without
a race, here and in etcd: it puts its key while the lease has none yet. (etcd checks a single put as
it applies it, but not one in a transaction.) So the check is a help against mistakes, and what it
misses shows and removes nothing. Many puts of one lease at once would keep each other from being
made."""


class Everybody:
    """No authentication: everybody may do everything."""

    enabled = False
    version = 0
    rules = None

    @property
    def names(self) -> list[str]:
        """There are none."""
        return []

    def knows(self, token: str) -> bool:
        """Return True: tokens mean nothing."""
        del token
        return True

    async def learn(self, token: str) -> None:
        """Return at once."""
        del token
        await trio.lowlevel.checkpoint()

    def identify(self, token: str) -> tuple[str | None, int]:
        """Return nobody in particular."""
        del token
        return None, 0

    def check(self, user: str | None, path: str, message: bytes | None) -> Sequence[LeaseNeed]:
        """Allow it."""
        del user, path, message
        return ()

    async def check_leases(self, user: str, needs: Sequence[LeaseNeed]) -> int:
        """Allow it."""
        del user, needs
        await trio.lowlevel.checkpoint()
        return 0

    def state_of(self, user: str | None) -> object:
        """Return the user itself: it never changes."""
        return user

    async def wait_revised(self, user: str | None, state: object) -> None:
        """Wait for ever."""
        del user, state
        await trio.sleep_forever()

    async def authenticate(self, name: str, password: str, peer: str = "") -> str:  # noqa: ARG002
        """Raise: there is nothing to log in to."""
        raise EtcdError(*AUTH_NOT_ENABLED)


_KINDS: Final = {
    "Range": "read",
    "LeaseTimeToLive": "read",
    "LeaseLeases": "read",
    "Put": "write",
    "DeleteRange": "write",
    "Txn": "write",
    "LeaseGrant": "write",
    "LeaseRevoke": "write",
}


@attrs.frozen
class PortContext:
    """What all connections of a port share.

    Args:
        backend: reaches the cluster and the state.
        hub: watches the state.
        users: judges callers.
        stopping: ends connections when the port stops.
        figures: returns the figures of the member in the text of Prometheus.
        peer: address and port of the client; each connection has a context of its own.
        requests: how many calls with one reply have ended, by method and code.
        durations: of those that are one request of the state machine, by kind.
    """

    backend: Backend
    hub: WatchHub
    users: Users = attrs.field(factory=Everybody)
    stopping: Stopping = attrs.field(factory=Stopping)
    figures: Callable[[], str] = str
    peer: str = ""
    requests: Counter[tuple[str, Code]] = attrs.field(factory=Counter[tuple[str, Code]])
    durations: dict[str, Histogram] = attrs.field(
        factory=lambda: {"read": Histogram(), "write": Histogram()}
    )

    def count(self, method: Method, code: Code, began: float) -> None:
        """Count the end of a call with one reply, which began at that time of trio's clock."""
        self.requests[method.name, code] += 1
        # A call that waits by its nature, as for a lock, would say nothing about the cluster.
        if kind := _KINDS.get(method.name):
            self.durations[kind].observe(trio.current_time() - began)

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
        token = _counted(token, path)
        if not self.users.knows(token):
            return None
        user, principal = self.users.identify(token)
        if self.users.check(user, path, message):
            return None
        return self._call((user, principal), path, message, rules=self.users.rules)

    async def admit_when_known(
        self, token: str, path: str, message: bytes | None, deadline: float = 0.0
    ) -> Call:
        """Return what a method gets; ask the leader if the user's rights hang on that.

        Args:
            token: see `admit`.
            path: see `admit`.
            message: see `admit`.
            deadline: when it fails unless that is known (trio's clock); 0 for `LEADER_WAIT_S` from
                now.

        Raises:
            EtcdError: the caller may not call it, or there was no leader for too long.
        """
        deadline = deadline or trio.current_time() + LEADER_WAIT_S
        token = _counted(token, path)
        return await in_time(deadline, partial(self._admit_when_known, token, path, message))

    async def _admit_when_known(self, token: str, path: str, message: bytes | None) -> Call:
        if not self.users.knows(token):
            await self.users.learn(token)
        user, principal = self.users.identify(token)
        needs = self.users.check(user, path, message)
        # Now: the users may change while the leader is asked.
        rules, state = self.users.rules, self.users.state_of(user)
        checked = 0
        if needs and user is not None:
            checked = await self.users.check_leases(user, needs)
        call = self._call((user, principal), path, message, rules=rules)
        return attrs.evolve(call, checked=checked, state=state)

    def _call(
        self, user: tuple[str | None, int], path: str, message: bytes | None, *, rules: Rules | None
    ) -> Call:
        return Call(
            backend=self.backend,
            hub=self.hub,
            user=user[0],
            principal=user[1],
            users=self.users,
            rules=rules,
            path=path,
            message=message,
            peer=self.peer,
        )

    async def call_direct(
        self, op: Op, token: str, path: str, message: bytes, deadline: float = 0.0
    ) -> bytes:
        """Make a call of a method that is one request of the state machine; return the reply.

        A lease may get a key between the check of the user's rights and the request. So a request
        that does something to all its keys is done only if it got none; then all is checked again.
        So it is if the users change before the request is sent.

        Args:
            op: of the method.
            token: see `admit`.
            path: see `admit`.
            message: see `admit`.
            deadline: when it fails unless it was sent by then (trio's clock); 0 for `LEADER_WAIT_S`
                from now.

        Raises:
            EtcdError: the reply is an error, or the caller may not call it.
        """
        attempts = Attempts(deadline or trio.current_time() + LEADER_WAIT_S)
        while True:
            call = await self.admit_when_known(token, path, message, attempts.deadline)
            caller = call.caller._replace(deadline=attempts.deadline)
            sent, content = op, message
            if call.checked and op in _CHECKED:
                sent, lease = _CHECKED[op], rpc.LeaseRevokeRequest.FromString(message).ID
                content = rpc.KeyValue(lease=lease, mod_revision=call.checked).SerializeToString()
            try:
                return await self.backend.call(sent, content, caller=caller)
            except EtcdError as error:
                attempts.go_on_after(error)


def _counted(token: str, path: str) -> str:
    """Return the token that counts: none for what needs none.

    Clients show a token that is over when they log in for a new one, and etcd does not look at it.
    """
    return "" if path in FREE else token
