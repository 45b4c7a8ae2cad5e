"""Puts the web port of a member together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import ConfigurationError
from ..node.upkeep.access import read_secret
from ..node.upkeep.exposure import check_web_exposure, is_loopback
from ..transport import Address, TcpNetwork
from .files import PageFiles
from .guard import Guard
from .readiness import Readiness
from .routes import Routes
from .server import WebServer
from .sse import LiveEvents

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Never

    from ..metrics import Family
    from ..node import Member, NodeConfig
    from ..node.live.relay import Relay
    from ..transport import Network

SHORTEST_TOKEN: Final = 32
"""Characters of a token, at least. Shorter: it can be guessed, since attempts are only slowed down.
Longer: people shorten it."""


@attrs.frozen(eq=False)
class WebPort:
    """The web port of a member.

    Args:
        server: serves connections.
        relay: has the events of all members.
        address: where to listen.
        network: TCP unless a test has another one.
    """

    server: WebServer
    relay: Relay
    address: Address
    network: Network

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Serve until cancelled; `started` with the address that was bound.

        Raises:
            OSError: it can't be bound.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.relay.run)
            try:
                bound: Address = await nursery.start(self.server.run, self.network, self.address)
            except OSError as error:
                error.filename = f"{self.address}, the port of [web]"
                raise
            task_status.started(bound)
        raise AssertionError("only cancellation ends it")  # pragma: no cover - never reached


async def open_guard(config: NodeConfig) -> Guard:
    """Return who may look at a member.

    Raises:
        ConfigurationError: it would be shown to everybody, or there is no good token in its file.
    """
    await check_web_exposure(config)
    token = _read_token(config.web.token_file)
    return Guard(token, local=await is_loopback(config.web.host))


def _read_token(path: str) -> bytes:
    """Read the token of a file; empty without one.

    Raises:
        ConfigurationError: it can't be read, is too short, or others may read it.
    """
    if not path:
        return b""
    name = f'web.token_file = "{path}"'
    make = "openssl rand -hex 32"
    token = read_secret(Path(path), name, make).strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or b" " in token:
        raise ConfigurationError(
            f"{name}: expected {SHORTEST_TOKEN} characters or more, without spaces; "
            f"type: {make} > {path}"
        )
    return token


def make_web_port(
    member: Member,
    config: NodeConfig,
    *,
    families: Callable[[], Iterable[Family]],
    read: Callable[[], Awaitable[object]],
    guard: Guard,
    network: Network | None = None,
) -> WebPort:
    """Make the web port of a member.

    Args:
        member: to be shown.
        config: of the member.
        families: returns its figures.
        read: makes a linearizable read.
        guard: judges who may look.
        network: TCP unless given.
    """
    relay = member.make_relay()
    routes = Routes(
        guard,
        status=member.reporter.status_now,
        health=member.status,
        families=families,
        readiness=Readiness(read, member.status),
        events=LiveEvents(relay),
        files=PageFiles(),
        name=f"{config.cluster}-{config.member_id}",
        audit=member.access.audit,
    )
    server = WebServer(routes.answer, tls=_tls_of(member, config), knows=guard.knows)
    address = Address(config.web.host, config.web.port)
    return WebPort(server, relay, address, network or TcpNetwork())


def _tls_of(member: Member, config: NodeConfig) -> Callable[[], ssl.SSLContext] | None:
    """Return TLS for browsers; None if the port speaks none."""
    watch = member.access.watch
    if not config.web.tls or watch is None:
        return None

    def context() -> ssl.SSLContext:
        # Asked for with each connection: new files are taken into use without a restart.
        found = watch.material.web
        assert found is not None, "the files are loaded with it if [web] has tls"
        return found

    return context
