"""The places for connections of a web port, and the connection that gives way to a new one.

A new connection always gets a place: it may be the probe that decides whether this member is
restarted. If all places are taken, one connection ends for it. That is one without the token, if
there is any; of these, one of the address with the most places; of these, the one that began its
present wait or answer first. So a flood from one address costs that address, and a probe, which
asks at once, is answered before its turn to give way. A stream never gives way: there are fewer
streams than places.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Generator


@attrs.define(eq=False)
class Place:
    """The place of one connection.

    Args:
        host: address of the other end, without a port.
        since: when it began to wait for the present request, or to answer it (trio's clock).
        scope: ends the connection.
        known: its last request had the token of the port.
        streams: its answer is a stream.
        target: of the last request, for the log.
    """

    host: str
    since: float = attrs.field(factory=trio.current_time)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    known: bool = False
    streams: bool = False
    target: str = ""

    def begin(self) -> None:
        """Note that a wait for a request, or an answer, begins now."""
        self.since = trio.current_time()


class Places:
    """All places of a port.

    Args:
        most: how many there are; more than streams.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[Place, None] = {}  # the oldest connection first

    @contextmanager
    def take(self, host: str) -> Generator[Place]:
        """Hold a place in this block, which is cancelled if the connection has to give way."""
        if len(self._taken) >= self._most:
            self._make_room()
        place = Place(host)
        self._taken[place] = None
        with place.scope:
            try:
                yield place
            finally:
                self._taken.pop(place, None)

    def _make_room(self) -> None:
        counts = Counter(place.host for place in self._taken if not place.known)
        last = min(
            (place for place in self._taken if not place.streams),
            key=lambda place: (place.known, -counts[place.host], place.since),
        )
        # Now, not when its task has ended: the next new connection must choose another one.
        del self._taken[last]
        last.scope.cancel()
