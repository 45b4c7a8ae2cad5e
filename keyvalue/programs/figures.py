"""The figures of a member's watches, as Prometheus reads them."""

from ...metrics import Family
from ...metrics.family import counter, gauge
from .watch import LocalWatches

__all__ = ["watch_families"]


def watch_families(watches: LocalWatches) -> list[Family]:
    """Return all figures of a member's watches as they are now."""
    replays = watches.replays
    return [
        gauge(
            "quorate_watches",
            "Watches of this member: those of clients, and those of its own program.",
            len(watches.watches),
        ),
        counter(
            "quorate_watches_lost_total",
            "Watches that ended because changes were gone, or were read too slowly.",
            watches.lost_count,
        ),
        counter(
            "quorate_watch_replays_total",
            "Replays of the log, for watches of changes that were no longer in memory.",
            0 if replays is None else replays.count,
        ),
        gauge(
            "quorate_watch_replays_waiting",
            "Watches whose replay is under way, or waits for another one to end.",
            0 if replays is None else replays.waiting,
        ),
    ]
