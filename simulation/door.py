"""A client's way into the cluster: it asks some member, waits, and is told one of three things.

An operation is acknowledged with a reply, refused (it has no effect, ever) or unknown: the client
gave up waiting, or the member lost sight of it. A process that is paused or gone does not answer,
so a client that turned to it waits in vain, or is refused by its machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ..errors import NoLeaderError, RequestError, UnknownOutcomeError
from .facts import Answered, Asked, Refused
from .watched import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from ..node import Service
    from .facts import Fact
    from .world import World

PATIENCE: Final = (0.4, 2.0, 12.0)
"""How long a client waits, in heartbeat timeouts; one of them is chosen each time."""


class Serials:
    """Numbers of operations, each one once."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Give a new one."""
        self.last += 1
        return self.last


class Door:
    """The way in for one client.

    Args:
        client: its number.
        world: the cluster.
        rng: whom it asks, how far it is, and how long it waits.
        tell: takes the facts.
        serials: shared by all clients.

    Attributes:
        counts: of answers, refusals and unknown outcomes.
    """

    def __init__(
        self,
        client: int,
        world: World[Service],
        rng: Random,
        tell: Callable[[Fact], None],
        serials: Serials,
    ) -> None:
        self.client = client
        self.rng = rng
        self.counts = {"ok": 0, "fail": 0, "unknown": 0}
        self._world = world
        self._tell = tell
        self._serials = serials

    async def command(self, payload: bytes, flags: int = 0, *, among: Sequence[int] = ()) -> bytes:
        """Have a command done, through one of some members; return the service's reply.

        Raises:
            NoLeaderError: it was not done, and never will be.
            UnknownOutcomeError: nobody knows.
        """
        return await self._ask(payload, flags, among, query=False)

    async def query(self, payload: bytes, flags: int = 0, *, among: Sequence[int] = ()) -> bytes:
        """Have a query answered.

        Raises:
            RequestError: it was not.
        """
        return await self._ask(payload, flags, among, query=True)

    async def _ask(self, payload: bytes, flags: int, among: Sequence[int], *, query: bool) -> bytes:
        serial = self._serials.next()
        self._tell(Asked(serial))
        timeouts, latency = self._world.setting.timeouts, self._world.setting.latency
        patience = self.rng.choice(PATIENCE) * timeouts.leader_heartbeat_timeout
        at = self.rng.choice(among or tuple(self._world.hosts))
        way_back = latency * self.rng.random()
        try:
            with trio.move_on_after(patience):
                await trio.sleep(latency * self.rng.random())
                reply = await self._at(
                    at, payload if query else seal(serial, payload), flags, query
                )
                await trio.sleep(way_back)
                point, reply = unseal(reply)
                self._done("ok", at, serial, reply)
                self._tell(Answered(serial, point, query))
                return reply
        except NoLeaderError:
            self._done("fail", at, serial)
            self._tell(Refused(serial))
            raise
        except RequestError:
            self._done("unknown", at, serial)
            raise
        self._done("unknown", at, serial)
        raise UnknownOutcomeError("the client gave up waiting")

    async def _at(self, at: int, payload: bytes, flags: int, query: bool) -> bytes:  # noqa: FBT001
        host = self._world.hosts[at]
        await host.awake()
        if host.member is None:
            raise NoLeaderError("nobody listens")
        ask = host.member.query if query else host.member.command
        reply = await ask(payload, flags)
        await host.awake()
        return reply

    def _done(self, status: str, at: int, serial: int, reply: bytes = b"") -> None:
        self.counts[status] += 1
        self._world.trace.tell(status, at, self.client, serial, reply)
