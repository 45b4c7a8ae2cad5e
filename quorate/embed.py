"""A member inside of your own trio program.

::

    async with quorate.open_node(config) as node:
        await node.kv.set("greeting", "hello")

runs the member, its key-value store and its client port for the length of the block. With a
state machine of your own (``open_node(config, service)``) there is no client port: the program
talks to it through :meth:`Node.command` and :meth:`Node.query`, on any member.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from .errors import ConfigurationError, check_interpreter
from .keyvalue.embedded.client import KeyValue
from .keyvalue.embedded.gathering import Gathering
from .keyvalue.embedded.session import open_session
from .keyvalue.port.listener import ClientPort, ClientPortLimits
from .keyvalue.service import KeyValueService
from .node import Member, NodeStatus, Topology, open_member
from .node.one_error import one_error
from .node.store_opening import check_arguments

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from .node import NodeConfig, Service, Transition


_MAX_FLAGS: Final = 255


class Node:
    """A running member, as the program that embeds it sees it.

    Attributes:
        member: the member itself.
        client_address: host and port where Redis clients are served; None without the
            key-value store.
    """

    def __init__(
        self, member: Member, kv: KeyValue | None, client_address: tuple[str, int] | None
    ) -> None:
        self.member = member
        self.client_address = client_address
        self._kv = kv

    @property
    def kv(self) -> KeyValue:
        """The replicated key-value store.

        Raises:
            ConfigurationError: the node was opened with another state machine.
        """
        if self._kv is None:
            raise ConfigurationError("this node runs a service of its own, not the key-value store")
        return self._kv

    def session(
        self, *, timeout_s: float = 300.0, patience_s: float = 60.0
    ) -> AbstractAsyncContextManager[KeyValue]:
        """Give the store with writes that are done exactly once, for the length of a block.

        A write is sent again until it is answered; see docs/sessions.md.

        Args:
            timeout_s: how long the session lives without a write, in seconds: 1 to 86,400.
            patience_s: for how long a write is sent again, in seconds.

        Raises:
            ConfigurationError: the node was opened with another state machine; or, as the block
                begins, one of the two is no such number.
        """
        return open_session(self.kv.endpoint, timeout_s=timeout_s, patience_s=patience_s)

    async def command(self, payload: bytes, flags: int = 0) -> bytes:
        """Have a command recorded, replicated and applied; see `Member.command`.

        Raises:
            TypeError: the payload is no bytes, or the flags are not one byte.
            RequestError: see `Member.command`.
        """
        _check_flags(flags)
        return await self.member.command(payload, flags)

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        """Answer a query linearizably; see `Member.query`.

        Raises:
            TypeError: as for `command`.
            RequestError: see `Member.query`.
        """
        _check_flags(flags)
        return await self.member.query(payload, flags)

    def status(self) -> NodeStatus:
        """What this member says of itself now."""
        return self.member.status()

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        return self.member.topology

    def observe(self, observer: Callable[[Transition], None]) -> None:
        """Have `observer` told of every transition of the election."""
        self.member.observe(observer)

    async def wait(self) -> None:
        """Wait until the whole cluster is told to stop (`quorate control shutdown`), or cancelled.

        A member that fails ends the whole block with its error.
        """
        await self.member.core.terminated.wait()


def _check_flags(flags: object) -> None:
    if not (isinstance(flags, int) and 0 <= flags <= _MAX_FLAGS):
        raise TypeError(f"flags = {flags!r:.60}: expected one byte, 0 to {_MAX_FLAGS}")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@one_error
@asynccontextmanager
async def open_node(
    config: NodeConfig, service: Service | None = None
) -> AsyncGenerator[Node, None]:
    """Run a member for the length of the block; leave the block to stop it in order.

    What the block raises comes out of it as it is. A failure of the member ends the block, and
    comes out as one error.

    Args:
        config: what the member is told.
        service: a state machine of your own, instead of the key-value store.

    Raises:
        ConfigurationError: `config` is no NodeConfig, or `service` lacks methods of a Service.
        StorageError: the store is another member's, is in use, or is damaged.
        OSError: an address can't be bound.
    """
    check_interpreter()
    check_arguments(config, service)
    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    if service is not None:
        async with open_member(config, service, rng=rng, clock_ms=_wall_clock_ms) as member:
            yield Node(member, None, None)
        return
    store = KeyValueService.open(
        config.directory / "tables", cluster=config.cluster, member_id=config.member_id
    )
    try:
        async with (
            open_member(config, store, rng=rng, clock_ms=_wall_clock_ms) as member,
            trio.open_nursery() as nursery,
        ):
            port = _client_port(member, config)
            address = await nursery.start(port.run)
            gathering = Gathering(member, config.limits.max_request_bytes)
            await nursery.start(gathering.run)
            yield Node(member, KeyValue(member, gathering), address)
            await port.drain()  # while the member still answers
            await member.close()
            await port.close()
            nursery.cancel_scope.cancel()
    finally:
        store.close()


def _client_port(member: Member, config: NodeConfig) -> ClientPort:
    """Make the port of Redis clients, and that of those which follow the leader, if asked for."""
    limits = ClientPortLimits(
        max_clients=config.limits.max_clients, request_bytes=config.limits.max_request_bytes
    )
    return ClientPort(
        member,
        config.client_listen_host,
        config.own.client_port,
        limits,
        redirect_port=config.own.redirect_port or None,
        redirect=config.redirect,
    )
