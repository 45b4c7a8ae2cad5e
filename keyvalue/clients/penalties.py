"""Delays the answers to failed logins, so that guessing passwords takes long.

Each failure from an address doubles the delay, from 50 ms to 3 s. A connection gets no other answer
in that time. Connections from elsewhere, and right passwords, are not delayed. A login that was not
checked, because too many waited, counts as a failure: asking on and on is no way in.

The table of addresses is bounded: the one that has failed least recently is forgotten first. Of
IPv6 addresses the network counts, because whoever has one address there has all of them.
"""

import heapq
import ipaddress
import itertools
import math
from collections.abc import Callable
from typing import Final, Never

import trio

from ...node.protocol.signal import Signal

__all__ = ["Penalties", "network_of"]

FIRST_SECONDS: Final = 0.05

MOST_SECONDS: Final = 3.0
"""The longest delay. Shorter, and guessing is cheap; longer, and clients of a person who mistypes
give up."""

FORGET_SECONDS: Final = 60.0
"""An address without a failure for this long begins anew. Shorter, and guessing slowly costs
nothing; longer, and clients that were corrected are punished for longer."""

MAX_ADDRESSES: Final = 4096
"""Addresses that are remembered (100 bytes each). Fewer, and a few thousand strangers make the port
forget each other's failures."""

_Due = tuple[float, int, Callable[[], None]]


class Penalties:
    """The failed logins of a port, by address, and the answers that wait."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}  # count and time, the newest last
        self._due: list[_Due] = []
        self._order = itertools.count()
        self._begun = Signal()

    def failed(self, peer: str, now: float) -> float:
        """Note a failed login; return for how many seconds its answer waits.

        Args:
            peer: address and port of the client.
            now: of trio's clock.
        """
        network = network_of(peer)
        count, at = self._failures.pop(network, (0, now))
        if now - at > FORGET_SECONDS:
            count = 0
        self._failures[network] = count + 1, now
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        return min(FIRST_SECONDS * (1 << min(count, 30)), MOST_SECONDS)

    def wait(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something later; it must not raise."""
        heapq.heappush(self._due, (trio.current_time() + seconds, next(self._order), call))
        self._begun.notify()

    async def run(self) -> Never:
        """Make the calls that are due, until cancelled."""
        while True:
            await self._begun.wait(self._due[0][0] if self._due else math.inf)
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()


def network_of(peer: str) -> str:
    """Return what counts as one address: the host of a client, or its network."""
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or address.packed[:8].hex())
