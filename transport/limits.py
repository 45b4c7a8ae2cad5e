"""The limits of links, in one place."""

from random import Random
from typing import Final

import attrs

RECEIVE_BYTES: Final = 64 << 10
"""Most bytes taken from the network at once. So many are reserved for each receive, and given back
but for what came: from 128 KiB on that may cost the allocator two calls of the kernel, ten times
what it takes to receive a small message."""

STREAM_RECEIVE_BYTES: Final = 256 << 10
"""Likewise on a stream, where so much is there as a rule, and each receive has its price."""

FLUSH_BYTES: Final = 1 << 20
"""Most bytes that a queue hands to the network before other tasks get their turn."""

JOIN_BYTES: Final = 64 << 10
"""Small frames that wait in a queue are joined up to this size into one send."""

STREAM_JOIN_BYTES: Final = 256 << 10
"""Likewise of frames on a stream, where they are read by as much at once."""

STREAM_JOIN_FRAMES: Final = 64
"""Most frames that are joined on a stream: to encode them holds up all else."""

REMEMBERED_REASONS: Final = 256
"""Reasons for refusing connections that are remembered, to log each once."""


@attrs.frozen
class LinkLimits:
    """What links may take.

    Args:
        queue_bytes: most bytes of messages, the live log among them, that wait for one peer; bulk
            has as many for itself. What finds nothing of its own kind waiting is taken whatever
            its size.
        backoff_shortest: seconds to wait after a first failed dial, at most; doubled by each more.
        backoff_longest: seconds that the wait grows to. A link that lasted longer starts anew.
        dial_seconds: how long connecting may take; the kernel repeats a lost packet after 1 s.
        hello_seconds: how long either side waits for the other's first frame.
        pending_hellos: connections whose hello may be waited for at once; for one more the oldest
            of the host that has most of them is closed.
        streams: that one member may have open to us, or all askers that are no members together.
    """

    queue_bytes: int = 64 << 20
    backoff_shortest: float = 0.02
    backoff_longest: float = 1.0
    dial_seconds: float = 2.0
    hello_seconds: float = 5.0
    pending_hellos: int = 64
    streams: int = 8

    def pause(self, failures: int, rng: Random) -> float:
        """Give the seconds to wait after so many failures in a row (at least one)."""
        doublings = min(failures - 1, 32)
        longest = min(self.backoff_longest, self.backoff_shortest * 2.0**doublings)
        return longest * rng.uniform(0.5, 1.0)
