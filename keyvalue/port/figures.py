"""The figures of a client port, as Prometheus reads them."""

from typing import cast

from ...metrics import Family
from ...metrics.family import counter, gauge, histogram, labelled
from ..clients.port_state import PortState
from ..slots.cluster_map import META
from ..slots.ranges import Slots, count_of, parse_slots_untrusted
from ..slots.signposts import Signposts
from ..state.ownership import OWNED

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
        *_slots(port.signposts),
    ]


def _slots(signposts: Signposts | None) -> list[Family]:
    """Return the figures of a member of a partition; none without one."""
    if signposts is None or signposts.partition == META:
        return []
    facts = signposts.ownership.facts()
    frozen, importing = _spans(facts, "frozen"), _spans(facts, "importing")
    stale = parse_slots_untrusted(str(facts.get("stale", "")))
    states = {
        "owned": signposts.ownership.states.count(OWNED),
        "frozen": sum(map(count_of, frozen)),
        "importing": sum(map(count_of, importing)),
    }
    found = signposts.map
    return [
        gauge(
            "quorate_slots",
            "Slots of this partition: owned, owned and frozen for a move, or being imported.",
            labelled("state", states),
        ),
        gauge(
            "quorate_slot_moves",
            "Moves of slots under way: out of this partition, once it is frozen, and into it.",
            labelled("direction", {"out": len(frozen), "in": len(importing)}),
        ),
        gauge(
            "quorate_slots_stale",
            "Slots whose rows are still to be deleted here, after a move.",
            count_of(stale),
        ),
        gauge(
            "quorate_map_epoch",
            "Epoch of the newest map that this member has seen; 0 before the first.",
            found.epoch if found is not None else 0,
        ),
    ]


def _spans(facts: dict[str, object], name: str) -> list[Slots]:
    """Return the slots of each move of a kind."""
    found = cast("list[dict[str, str]]", facts.get(name, []))
    return [parse_slots_untrusted(each["slots"]) for each in found]


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
