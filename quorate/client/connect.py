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
from typing import TYPE_CHECKING

import anyio

from ..errors import NoLeaderError, WireError
from ..keyvalue.retry import Retry
from ..node.one_error import one_error
from .dialling import Dialler
from .group import Group, StoreOptions
from .partitioned.groups import Groups
from .partitioned.map_reply import decode_reply_untrusted
from .partitioned.placement import Placement
from .partitioned.store import PartitionedKeyValue
from .partitioned.watches import PartitionedWatches
from .routing import Routes
from .settings import check_login, check_times, members_of
from .watch import RemoteWatches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from ..transport import Address
    from .partitioned.map_reply import MapReply
    from .secure import ClientTls
    from .settings import Member

__all__ = ["connect", "open_through"]


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
    options = StoreOptions(exactly_once, session_timeout_s, patience_s, rng or SystemRandom())
    first = Group(Routes(dialler, members), options)
    store: Group | Groups = first
    watches = RemoteWatches(dialler, members, patience_s=patience_s, rng=options.rng)
    kv: KeyValue = first.kv
    try:
        await first.endpoint.open()
        found = await _map_of(first, options)
        if found is not None:  # from here on, each partition has connections of its own
            await first.aclose()
            placement = Placement(dialler, members, found, options.rng)
            store = Groups(dialler, placement, options)
            kv = PartitionedKeyValue(store, placement, options)
            watches = PartitionedWatches(dialler, placement, options)
        kv.watches = watches
        async with _running(store):
            yield kv
    finally:
        with anyio.CancelScope(shield=True):  # nothing here waits for a member
            await store.aclose()
            await watches.aclose()


async def _map_of(group: Group, options: StoreOptions) -> MapReply | None:
    """Ask for the map of the cluster; None if it has no partitions.

    Raises:
        NoLeaderError: no member has said so in time.
    """
    retry = Retry(anyio.current_time, anyio.current_time() + options.patience_s, rng=options.rng)
    while True:
        reply = await group.endpoint.ask_map()
        if reply is None:
            return None
        try:
            return decode_reply_untrusted(reply)
        except WireError as error:  # a machine that has just begun knows no map yet
            pause = retry.pause_s()
            if pause is None:
                raise NoLeaderError(f"no map of the cluster: {error}") from None
        await anyio.sleep(pause)


@one_error
@asynccontextmanager
async def _running(store: Group | Groups) -> AsyncGenerator[None]:
    """Run the tasks of a client."""
    async with anyio.create_task_group() as tasks:
        store.start(tasks)
        try:
            yield
        finally:
            await store.finish()
        tasks.cancel_scope.cancel()
