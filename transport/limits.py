"""The limits of links, in one place."""

from random import Random
from typing import Final

import attrs

RECEIVE_BYTES: Final = 64 << 10
"""Most bytes taken from the network at once. Python reserves that many for each receive and gives
the rest back. From 128 KiB on this can cost two system calls, ten times the price of receiving a
small message; much less splits batches into many receives."""

STREAM_RECEIVE_BYTES: Final = 256 << 10
"""The same for a stream. There that much usually is available, and each receive has its price."""

FLUSH_BYTES: Final = 1 << 20
"""Most bytes that a queue hands to the network before other tasks get their turn. With more,
heartbeats come late; with less, more switches."""

JOIN_BYTES: Final = 64 << 10
"""Small waiting frames are joined up to this size into one send. Joining copies, so large ones go
alone."""

STREAM_JOIN_BYTES: Final = 256 << 10
"""The same for frames of a stream, whose reader takes as much at once."""

STREAM_JOIN_FRAMES: Final = 64
"""Most frames joined on a stream: encoding them holds up everything else."""

REMEMBERED_REASONS: Final = 256
"""Most reasons for refusing connections that are remembered, to log each once. Bounds memory, and
the log, against strangers."""


@attrs.frozen
class LinkLimits:
    """Limits of links.

    Args:
        queue_bytes: most bytes of messages, live log included, that wait for one peer; bulk has as
            many for itself. A frame larger than the limit is accepted if its queue is empty.
            Smaller: a slow peer loses the live log sooner. Larger: it takes more memory.
        backoff_shortest: bound in seconds of the wait after a first failed dial. Each further
            failure doubles it. The wait is drawn between half of the bound and all of it.
        backoff_longest: most that the wait grows to. A link that lasted longer than this starts
            anew.
        dial_seconds: timeout of connecting. The kernel repeats a lost packet after 1 s: below that,
            one lost packet fails the dial. Larger: a new dial to a peer that is back comes later.
        alternative_seconds: how long a dial is waited for before another address of the peer is
            tried, too. Smaller: more connections that nobody needs. Larger: a peer that has moved,
            and whose old address is silent, is reached later.
        hello_seconds: timeout of the other side's first frame. Smaller: a busy member is taken for
            a dead one. Larger: a silent stranger keeps its connection for longer.
        pending_hellos: most connections whose hello is waited for. One more closes the oldest
            connection of the host that has most of them.
        streams: most open streams per member, and per certificate of clients and tools; those
            without certificates share one such number.
    """

    queue_bytes: int = 64 << 20
    backoff_shortest: float = 0.02
    backoff_longest: float = 1.0
    dial_seconds: float = 2.0
    alternative_seconds: float = 0.5
    hello_seconds: float = 5.0
    pending_hellos: int = 64
    streams: int = 8

    def pause(self, failures: int, rng: Random) -> float:
        """Return the seconds to wait after this many failures in a row (at least one)."""
        doublings = min(failures - 1, 32)
        longest = min(self.backoff_longest, self.backoff_shortest * 2.0**doublings)
        return longest * rng.uniform(0.5, 1.0)
