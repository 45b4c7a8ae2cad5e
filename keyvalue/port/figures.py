"""The figures of a client port, as Prometheus reads them."""

from ...metrics import Family
from ...metrics.family import counter, gauge, histogram, labelled
from ..clients.port_state import PortState

__all__ = ["port_families"]


def port_families(port: PortState) -> list[Family]:
    """Return all figures of a client port (`ClientPort.state`) as they are now."""
    counters = port.counters
    return [
        counter(
            "quorate_commands_total",
            "Commands by name; a name that is no command counts as unknown.",
            labelled("command", counters.by_command),
        ),
        counter(
            "quorate_command_errors_total",
            "Errors that clients got, by their first word.",
            labelled("error", counters.errors),
        ),
        histogram(
            "quorate_command_duration_seconds",
            "Time from the turn of the port that read a command to its reply.",
            labelled("kind", counters.durations),
        ),
        counter(
            "quorate_stale_reads_total",
            "Reads that were answered from this member's own, perhaps older, state.",
            counters.stale_reads,
        ),
        counter(
            "quorate_redirections_total",
            "Commands for which a cluster client was sent to the leader.",
            counters.redirections,
        ),
        *_clients(port),
    ]


def _clients(port: PortState) -> list[Family]:
    counters = port.counters
    refused = {
        "too_many": counters.refused_connections,
        "tls": counters.failed_handshakes,
        "protocol": counters.protocol_errors,
        "no_login": counters.closed_strangers,
        "input": counters.refused_clients,
        "does_not_read": counters.slow_clients,
    }
    return [
        gauge("quorate_clients_connected", "Clients that are connected.", len(port.clients)),
        gauge("quorate_clients_max", "Clients that may be connected.", port.limits.max_clients),
        counter(
            "quorate_client_connections_total",
            "Clients that were accepted.",
            counters.connections,
        ),
        counter(
            "quorate_clients_refused_total",
            "Clients that were refused or closed by this member, by reason.",
            labelled("reason", refused),
        ),
        counter(
            "quorate_client_input_bytes_total",
            "Bytes of commands received.",
            counters.input_bytes,
        ),
        counter(
            "quorate_client_output_bytes_total",
            "Bytes of replies sent.",
            counters.output_bytes,
        ),
        gauge(
            "quorate_client_unread_bytes",
            "Bytes of replies that clients have not read.",
            port.unread_bytes,
        ),
        gauge(
            "quorate_client_watches",
            "Watches of clients (QUORATE.WATCH).",
            len(port.watches or ()),
        ),
        counter(
            "quorate_client_watch_pushes_total",
            "Log entries whose changes were pushed to clients, counted for each watch.",
            counters.watch_pushes,
        ),
    ]
