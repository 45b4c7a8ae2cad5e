"""A client's access to the cluster: it sends to one member and waits for one of three outcomes.

An operation is acknowledged with a reply, refused (it never has an effect), or unknown: the client
gave up waiting, or the member lost the request. A process that is paused or dead does not answer.
Its client waits until its patience ends, or until the connection is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ..errors import NoLeaderError, RequestError, UnknownOutcomeError
from ..node.requests.request import UNSTAMPED
from .watching.facts import Answered, Asked, Refused
from .watching.watched import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from random import Random

    from ..node import Member, Service
    from ..node.requests.request import Stamp
    from .watching.facts import Fact
    from .world import World

T = TypeVar("T")

PATIENCE: Final = (0.4, 2.0, 12.0)
"""How long a client waits, in heartbeat timeouts; one of them is chosen each time."""

_NAMES: Final = re.compile(
    rb"\*\d+\r\n\$\d+\r\n([A-Z.]{1,40})\r\n(?:\$\d+\r\n([^\r\n]{1,80})\r\n)?"
)
"""A command of the key-value store, and its key if it has one. Values are never recorded."""


@attrs.frozen
class _Call:
    """An operation under way: where, its number, since when, and its names."""

    at: int
    serial: int
    since: float
    names: Mapping[str, str]


class Serials:
    """Serial numbers of operations."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Return a new number."""
        self.last += 1
        return self.last


class Door:
    """One client's access to the cluster.

    Args:
        client: number of the client.
        world: the cluster.
        rng: chooses the member, the network delay and the patience.
        tell: receives the facts.
        serials: shared by all clients.

    Attributes:
        counts: number of answers, refusals and unknown outcomes.
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
        self.world = world
        self.tell = tell
        self.serials = serials

    async def command(
        self,
        payload: bytes,
        flags: int = 0,
        stamp: Stamp = UNSTAMPED,
        *,
        among: Sequence[int] = (),
    ) -> bytes:
        """Execute a command through one of some members; return the service's reply.

        Raises:
            NoLeaderError: the command was not executed, and never will be.
            UnknownOutcomeError: the command may have been executed, or may still be.
        """
        serial = self.serials.next()
        sealed = seal(serial, payload)
        return await self._ask(
            serial,
            payload,
            among,
            # Its number stands for a user: what the member has let in goes into the log.
            lambda member: member.command(sealed, flags, stamp, self.client),
            query=False,
        )

    async def query(self, payload: bytes, flags: int = 0, *, among: Sequence[int] = ()) -> bytes:
        """Execute a query; return the service's reply.

        Raises:
            RequestError: the query was not answered.
        """
        serial = self.serials.next()
        return await self._ask(
            serial, payload, among, lambda member: member.query(payload, flags), query=True
        )

    async def _ask(
        self,
        serial: int,
        payload: bytes,
        among: Sequence[int],
        ask: Callable[[Member], Awaitable[bytes]],
        *,
        query: bool,
    ) -> bytes:
        self.tell(Asked(serial, 0 if query else self.client))
        timeouts, latency = self.world.setting.timeouts, self.world.setting.latency
        patience = self.rng.choice(PATIENCE) * timeouts.leader_heartbeat_timeout
        at = self.rng.choice(among or self.world.present)
        way_back = latency * self.rng.random()
        call = _Call(at, serial, trio.current_time(), self._named(payload, query=query))
        if call.names:
            self.world.trace.show("client", at, client=self.client, status="called", **call.names)
        try:
            with trio.move_on_after(patience):
                await trio.sleep(latency * self.rng.random())
                reply = await self.at_member(at, ask)
                await trio.sleep(way_back)
                point, reply = unseal(reply)
                self._done("ok", call, reply)
                self.tell(Answered(serial, point, query))
                return reply
        except NoLeaderError:
            self._done("fail", call)
            self.tell(Refused(serial))
            raise
        except RequestError:
            self._done("unknown", call)
            raise
        self._done("unknown", call)
        raise UnknownOutcomeError("the client gave up waiting")

    async def at_member(self, at: int, ask: Callable[[Member], Awaitable[T]]) -> T:
        """Ask one member something, for as long as it takes.

        Raises:
            NoLeaderError: it does not run.
        """
        host = self.world.hosts[at]
        await host.awake()
        if host.member is None:
            raise NoLeaderError("nobody listens")
        reply = await ask(host.member)
        await host.awake()
        return reply

    def _done(self, status: str, call: _Call, reply: bytes = b"") -> None:
        self.counts[status] += 1
        took = trio.current_time() - call.since
        names, trace = call.names, self.world.trace
        words = call.serial, reply
        trace.tell(
            "client",
            call.at,
            *words,
            more={**names, "took": took},
            client=self.client,
            status=status,
        )

    def _named(self, payload: bytes, *, query: bool) -> dict[str, str]:
        """Return the names of an operation and its key, for a recording."""
        if not self.world.trace.has_file:
            return {}
        found = _NAMES.match(payload)
        if found is None:
            return {"op": "query" if query else "command"}
        op, key = (text.decode("latin-1") for text in found.groups(b""))
        return {"op": op, "key": key} if key else {"op": op}
