"""The client ports of all simulated members: one for each run of a member, as in production."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, Never, TypeVar, cast

import trio

from ...keyvalue.access.directory import Directory
from ...keyvalue.access.verifier import Verifier
from ...keyvalue.clients.port_access import PortAccess
from ...keyvalue.clients.port_state import ClientPortLimits, PortState
from ...keyvalue.port.leader_users import follow_users
from ...keyvalue.port.watch_pushes import WatchPushes
from ...keyvalue.programs.watch import LocalWatches
from ...node.protocol.signal import Signal
from ..door import Serials
from ..store import Store
from ..watching.watched import Watched
from .gateway import NumberingGateway
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ...node import Member, Service
    from ..watching.facts import Fact
    from .rulebook import RuleBook

T = TypeVar("T")

FIRST_SERIAL: Final = 1 << 40
"""The numbers of ports' commands begin here, and so differ from those that doors give."""


class _NoHashing:
    """Takes as long as to hash a password, and finds every password wrong."""

    async def read(self, fn: Callable[[], T]) -> T:  # noqa: ARG002 - it is not called
        """See `Offload`."""
        await trio.sleep(0.08)
        return cast("T", b"")


class Ports:
    """The client ports of a cluster.

    Args:
        rng: draws what is random in them.
        tell: receives the facts.
        rules: sees all changes of users, and all writes.
    """

    def __init__(self, rng: Random, tell: Callable[[Fact], None], rules: RuleBook) -> None:
        self._rng = rng
        self._tell = tell
        self._rules = rules
        self._serials = Serials()
        self._serials.last = FIRST_SERIAL
        self._ids = itertools.count(1)
        self._open: dict[int, PortState] = {}

    def connect(self, i: int, *, remote: bool = False) -> Session | None:
        """Connect to a member, perhaps as a stranger; None if it does not listen."""
        port = self._open.get(i)
        return None if port is None else Session(next(self._ids), port, remote=remote)

    async def accompany(self, member: Member, service: Service) -> Never:
        """Serve clients while a member runs, in its process: paused and killed with it."""
        i, timeouts = member.config.member_id, member.config.timeouts
        users = None
        watched = (
            cast("Watched[Service]", service).service if isinstance(service, Watched) else None
        )
        if isinstance(watched, Store):
            users = watched.users
            self._rules.attend(watched)
        timeout = timeouts.leader_heartbeat_timeout
        access = PortAccess(
            Directory(users, settled=False),
            Verifier([_NoHashing()]),
            self._rng.randbytes,
            spread_s=2 * timeout,
            stale_after_s=timeout,
        )
        wake = Signal()
        gateway = NumberingGateway(member, self._serials, self._tell)
        port = PortState(gateway, ClientPortLimits(), access=access, wake=wake.notify)
        gateway.later = port.resume_later
        pushes = None
        if isinstance(watched, Store):
            # Without replays of the log: a watch that is far behind is lost.
            pushes = port.watches = WatchPushes(LocalWatches(watched.changes, member=member), port)
        self._open[i] = port
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow_users, port)
                if pushes is not None:
                    nursery.start_soon(pushes.run)
                nursery.start_soon(access.verifier.run)
                nursery.start_soon(access.penalties.run)
                while True:
                    if not port.unfinished:
                        await wake.wait()
                    await trio.lowlevel.checkpoint()
                    port.begin_turn(trio.current_time())
                    for _ in range(len(port.unfinished)):
                        port.unfinished.popleft()()
                    port.end_turn()
        finally:
            if self._open.get(i) is port:
                del self._open[i]
            for connection in [*port.clients.values()]:
                connection.close()
