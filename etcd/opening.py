"""Puts the etcd port of a member together."""

from __future__ import annotations

import logging
from functools import partial
from ipaddress import ip_address
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from ..log_events import log_event
from ..metrics import exposition
from ..transport import Address
from .access.logged_tokens import LoggedTokens
from .access.users import ReplicatedUsers
from .backend.announce import announce
from .backend.backend import Backend
from .messages import rpc_pb2 as rpc
from .messages.requests import Op
from .port.figures import etcd_families, etcd_status
from .port.listener import EtcdPort
from .services.context import PortContext
from .state.library import require_library
from .watching.hub import WatchHub

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from typing import Never

    from ..keyvalue.clients.port_access import PortAccess
    from ..metrics import Family, Histogram
    from ..node import Member, NodeConfig
    from .state.machine import EtcdState

__all__ = ["EtcdServer", "make_etcd_server"]

_log: Final = logging.getLogger("quorate.etcd")


@attrs.frozen(eq=False)
class EtcdServer:
    """The etcd port of a member, and what works behind it.

    Args:
        backend: reaches the cluster and the state.
        port: serves the clients.
        name: of the member, for clients.
        url: where clients reach it.
        families: returns the figures of the port and the keyspace.
        durations: of calls, by kind: ``read`` or ``write``.
    """

    backend: Backend
    port: EtcdPort
    name: str
    url: str
    families: Callable[[], list[Family]]
    durations: Mapping[str, Histogram]

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Serve until cancelled; `started` with the host and port that were bound.

        Raises:
            OSError: they can't be bound.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.backend.run)
            bound: tuple[str, int] = await nursery.start(self.port.run)
            words = "clients of etcd are served at %(address)s, and sent to %(url)s"
            where = str(Address(*bound))
            log_event(_log, logging.INFO, "etcd_listens", words, address=where, url=self.url)
            task_status.started(bound)
            # Not before it listens: members send clients to this URL from then on.
            nursery.start_soon(announce, self.backend, self.name, (self.url,))
        raise AssertionError("only cancellation ends it")  # pragma: no cover - never reached


def make_etcd_server(
    member: Member,
    config: NodeConfig,
    state: EtcdState,
    *,
    access: PortAccess,
    protected: bool,
    families: Callable[[], list[Family]],
) -> EtcdServer:
    """Make the etcd port of a member.

    Args:
        member: takes the requests.
        config: of the member.
        state: of the keyspace, as this member has applied it.
        access: the users, which the port of Redis's clients keeps new enough.
        protected: clients of other machines are served only as users.
        families: returns the figures of the other parts of the member.

    Raises:
        ConfigurationError: the protobuf library is not that of other members.
    """
    require_library()
    backend = _backend(member, config, state)
    users = ReplicatedUsers(
        access, partial(_leased_keys, backend), LoggedTokens(backend), protected=protected
    )

    def own_families() -> list[Family]:
        return etcd_families(port, context)

    def figures() -> str:
        return exposition([*families(), *own_families()])

    context = PortContext(backend, WatchHub(state), users, figures=figures)
    port = EtcdPort(
        context,
        config.etcd_host,
        config.etcd.port,
        tls=_tls_of(member, config),
        most=config.limits.max_clients,
        protected=protected,
        audited=access.audit.refused,
    )
    member.etcd_status = partial(etcd_status, port, context)
    url, name = _url_of(config), f"member-{config.member_id}"
    return EtcdServer(backend, port, name, url, own_families, context.durations)


def _backend(member: Member, config: NodeConfig, state: EtcdState) -> Backend:
    # Lease ids must differ among members that start at one moment.
    rng = Random(SystemRandom().getrandbits(64))  # noqa: S311 - ids, not secrets
    most = config.limits.max_request_bytes
    return Backend(member, state, rng, config.cluster, max_request_bytes=most)


async def _leased_keys(backend: Backend, lease: int) -> tuple[int, Sequence[bytes]]:
    """Return a revision, and the keys of a lease then."""
    request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True).SerializeToString()
    revision, body = await backend.ask(Op.LEASE_TIME_TO_LIVE, request)
    return revision, rpc.LeaseTimeToLiveResponse.FromString(body).keys


def _url_of(config: NodeConfig) -> str:
    """Return where clients are sent; warn if that leads to their own machine."""
    url = config.etcd.url(config.own.host)
    if _is_here(urlsplit(url).hostname) and not all(_is_here(each.host) for each in config.peers):
        words = (
            "clients at other machines are sent to %(url)s, which is their own machine: expected "
        )
        words += "advertise in the table [etcd]"
        log_event(_log, logging.WARNING, "etcd_url_local", words, url=url)
    return url


def _is_here(host: str | None) -> bool:
    """Whether a host is that of each machine itself, as far as its text says so."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _tls_of(member: Member, config: NodeConfig) -> Callable[[], ssl.SSLContext] | None:
    """Return TLS for clients; None if the port speaks none."""
    watch = member.access.watch
    if not config.etcd.tls or watch is None:
        return None

    def context() -> ssl.SSLContext:
        # Asked for with each connection: new files are taken into use without a restart.
        found = watch.material.etcd
        assert found is not None, "the files are loaded with it if [etcd] has tls"
        return found

    return context
