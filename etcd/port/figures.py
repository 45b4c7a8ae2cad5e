"""The figures of etcd's keyspace and its port, as Prometheus and the member's status have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...metrics.family import Sample, counter, gauge, histogram, labelled
from ...node.requests.status import EtcdStatus
from .refusals import NO_USERS, TLS, TOO_MANY

if TYPE_CHECKING:
    from ...metrics import Family
    from ..services.context import PortContext
    from .listener import EtcdPort

__all__ = ["etcd_families", "etcd_status"]


def etcd_status(port: EtcdPort, context: PortContext) -> EtcdStatus:
    """Return what the member's status says of a port and of its keyspace."""
    hub = context.hub
    return EtcdStatus(
        hub.state.revision,
        hub.state.compacted,
        hub.state.key_count,
        hub.state.lease_count,
        hub.watches,
        port.connections,
    )


def etcd_families(port: EtcdPort, context: PortContext) -> list[Family]:
    """Return all figures of a port and of its keyspace as they are now."""
    state = context.hub.state
    return [
        gauge("quorate_etcd_keys", "Keys of etcd's clients that exist.", state.key_count),
        gauge("quorate_etcd_revision", "The last revision of these keys.", state.revision),
        gauge(
            "quorate_etcd_compacted_revision",
            "The first revision that can still be read; 0 while all can.",
            state.compacted,
        ),
        gauge("quorate_etcd_leases", "Leases that exist.", state.lease_count),
        gauge(
            "quorate_etcd_watches_in_step",
            "Watches of this member that have all changes; others read history first.",
            context.hub.count,
        ),
        gauge(
            "quorate_etcd_connections",
            "Connections of etcd's clients to this member.",
            port.connections,
        ),
        counter(
            "quorate_etcd_refused_total",
            "Connections to the etcd port that were refused: too_many, tls or no_users.",
            tuple(
                Sample(port.refusals.counts[kind], (("reason", kind),))
                for kind in (TOO_MANY, TLS, NO_USERS)
            ),
        ),
        histogram(
            "quorate_etcd_request_duration_seconds",
            "Time from the head of a call that reads or changes keys or leases to its reply.",
            labelled("kind", context.durations),
        ),
        counter(
            "quorate_etcd_requests_total",
            "Calls with one reply, by method and code of gRPC.",
            tuple(
                Sample(count, (("method", method), ("code", code.name)))
                for (method, code), count in sorted(context.requests.items())
            ),
        ),
    ]
