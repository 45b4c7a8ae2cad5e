"""Connect a program to a running cluster: the same :class:`KeyValue` as in a member.

::

    async with quorate.connect(["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"]) as kv:
        await kv.set("greeting", "hello")

It works on trio and on asyncio. One client serves all tasks of a program. It finds the leader,
keeps a few connections to it, and sends the commands of many tasks together.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import anyio

from ..node.one_error import one_error
from .dialling import Dialler
from .endpoint import RemoteEndpoint
from .joined import JoinedKeyValue, PlainKeyValue, StampedKeyValue
from .lanes import Lanes
from .routing import Routes
from .settings import check_login, check_times, members_of
from .watch import RemoteWatches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from ..transport import Address
    from .secure import ClientTls
    from .settings import Member

__all__ = ["connect", "open_through"]

_CLOSE_SECONDS: Final = 1.0
"""For the end of the session. Smaller, and a busy cluster keeps it until it times out. Larger, and
a program ends late while no member answers."""


@asynccontextmanager
async def connect(
    members: Iterable[Member],
    *,
    tls: ClientTls | None = None,
    user: str | None = None,
    password: str | None = None,
    exactly_once: bool = True,
    session_timeout_s: float = 300.0,
    patience_s: float = 60.0,
) -> AsyncGenerator[KeyValue]:
    """Connect to a cluster for the length of the block; yield its key-value store.

    The block begins once a member answers. There may be no leader yet: requests wait for one.

    Args:
        members: client ports of some members, ``"host:port"`` or ``(host, port)``; best of all.
        tls: with TLS: the CA that is trusted, and our certificate; None without TLS.
        user: to log in as; None for the user ``default``.
        password: of the user.
        exactly_once: writes travel in a session, and one whose reply is lost is sent again.
            Without, such a write raises `UnknownOutcomeError`.
        session_timeout_s: how long the session lives without a write, in seconds: 1 to 86,400. A
            longer outage ends it.
        patience_s: how long a request is sent again, in seconds: 0 to 86,400.

    Raises:
        ConfigurationError: an argument is malformed or out of range.
        NoLeaderError: no member answered for `patience_s`.
        HandshakeError: what answers is no member, or TLS does not fit.
        KeyValueError: the user or its password is wrong.
    """
    given = members_of(members)
    check_login(tls, user, password)
    check_times(session_timeout_s=session_timeout_s, patience_s=patience_s)
    dialler = Dialler(tls=tls, user=user, password=password)
    async with open_through(
        dialler,
        given,
        exactly_once=exactly_once,
        session_timeout_s=session_timeout_s,
        patience_s=patience_s,
    ) as kv:
        yield kv


@asynccontextmanager
async def open_through(
    dialler: Dialler,
    members: Sequence[Address],
    *,
    exactly_once: bool,
    session_timeout_s: float,
    patience_s: float,
    rng: Random | None = None,
) -> AsyncGenerator[KeyValue]:
    """Connect through a dialler; see `connect`.

    `rng` draws pauses, and the members of watches; None for the system's randomness.
    """
    rng = rng or SystemRandom()
    routes = Routes(dialler, members)
    lanes = Lanes(routes)
    endpoint = RemoteEndpoint(routes, lanes, patience_s=patience_s, rng=rng)
    kv = (
        StampedKeyValue(endpoint, timeout_s=session_timeout_s, patience_s=patience_s, rng=rng)
        if exactly_once
        else PlainKeyValue(endpoint)
    )
    kv.watches = watches = RemoteWatches(dialler, members, patience_s=patience_s, rng=rng)
    await endpoint.open()
    try:
        async with _running(kv, endpoint):
            yield kv
    finally:
        with anyio.CancelScope(shield=True):  # nothing here waits for a member
            await lanes.aclose()
            await watches.aclose()


@one_error
@asynccontextmanager
async def _running(kv: JoinedKeyValue, endpoint: RemoteEndpoint) -> AsyncGenerator[None]:
    """Run the tasks of a client."""
    async with anyio.create_task_group() as tasks:
        kv.start(tasks, endpoint)
        try:
            yield
        finally:
            await _finish(kv)
        tasks.cancel_scope.cancel()


async def _finish(kv: JoinedKeyValue) -> None:
    """Take no more commands, and close the session if the cluster answers."""
    kv.finish()
    if isinstance(kv, StampedKeyValue):
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await kv.close()
