"""One direction of a connection in memory: bytes on their way, and tasks that wait for them.

Nothing here is a task. A reader waits in a cancel scope whose deadline is the arrival of the next
bytes. Whatever changes the arrival moves the deadline, so each arrival wakes its reader once.
"""

from collections import deque
from typing import Final, Protocol, TypeAlias

import attrs
import trio

WINDOW_BYTES: Final = 256 << 10
SEGMENT_BYTES: Final = 1400
"""About what an Ethernet packet carries. Bytes sent at once arrive in such pieces, and may be lost
from any of them on."""
NEVER: Final = float("inf")

Route: TypeAlias = tuple[str, str]
"""From one host to another."""


@attrs.frozen
class Pace:
    """How fast a direction is.

    Args:
        latency: least seconds that bytes take from one host to the other.
        jitter: most additional seconds, drawn uniformly.
        bytes_per_second: throughput; unlimited by default.
    """

    latency: float = 0.0005
    jitter: float = 0.0
    bytes_per_second: float = NEVER


class Ways(Protocol):
    """What a direction asks the network."""

    def is_cut(self, route: Route) -> bool:
        """Whether nothing passes from the first host to the second."""
        ...

    def draw_latency(self, route: Route) -> float:
        """Return the seconds that the next bytes take."""
        ...

    def pace(self, route: Route) -> Pace:
        """Return the pace of a direction."""
        ...

    def forget(self, number: int) -> None:
        """Drop a direction whose ends are both closed."""
        ...


@attrs.define(eq=False)
class Direction:
    """The bytes of one connection from one host to another.

    Args:
        route: the two hosts.
        network: its cuts and latencies apply.
        number: of this direction in the network.
    """

    route: Route
    network: Ways
    number: int
    twin: "Direction | None" = None  # the other direction of the connection
    under_way: deque[tuple[float, bytes]] = attrs.Factory(deque[tuple[float, bytes]])
    window: int = WINDOW_BYTES  # bytes that may still be sent
    ended: bool = False  # the sending end was closed
    silent: bool = False  # bytes sent get lost
    mute: bool = False  # only the end is still sent
    abandoned: bool = False  # the receiving end was closed
    source_broken: bool = False  # the sending end was reset
    target_broken: bool = False  # the receiving end was reset
    free_at: float = 0.0  # when the next byte may leave, where they leave slowly
    reader: trio.CancelScope | None = None  # its deadline is the next arrival
    writer: trio.Event | None = None  # set when there may be room

    def put(self, data: bytes) -> None:
        """Send `data`; ``b""`` is the end."""
        if self.target_broken and not self.source_broken and not self.network.is_cut(self.route):
            self.answer_reset()
        if self.silent or (self.mute and data):
            return
        first = not self.under_way
        for start in range(0, len(data) or 1, SEGMENT_BYTES):
            segment = data[start : start + SEGMENT_BYTES]
            arrival = self.arrival_of(segment)
            if self.under_way:  # nothing overtakes
                arrival = max(arrival, self.under_way[-1][0])
            self.under_way.append((arrival, segment))
        self.window -= len(data)
        if first:
            self.hurry()

    def arrival_of(self, data: bytes) -> float:
        """Return when bytes arrive that are sent now, or that are first in the queue."""
        now, arrival = trio.current_time(), self.network.draw_latency(self.route)
        speed = self.network.pace(self.route).bytes_per_second
        if speed < NEVER:
            self.free_at = max(self.free_at, now) + len(data) / speed
            arrival += self.free_at - now
        return now + arrival

    def hurry_up(self) -> None:
        """Let bytes on their way arrive as at the present pace, if that is sooner."""
        self.free_at, last = 0.0, 0.0
        for place, (arrival, data) in enumerate(self.under_way):
            last = max(last, min(arrival, self.arrival_of(data)))
            self.under_way[place] = (last, data)
        self.hurry()

    def arrival(self) -> float:
        """Return when the next bytes or the end arrive; infinity if nothing is on its way."""
        if self.target_broken or self.abandoned:
            return -NEVER
        if not self.under_way or self.network.is_cut(self.route):
            return NEVER
        return self.under_way[0][0]

    def shows_its_end(self) -> bool:
        """Whether the receiving end was closed, and the sending end can know it."""
        return self.abandoned and not self.silent and not self.network.is_cut(self.route)

    def hurry(self) -> None:
        """Have the reader wait for the bytes that now come first."""
        if self.reader is not None:
            self.reader.deadline = self.arrival()

    def make_room(self) -> None:
        """Have the writer look for room again."""
        if self.writer is not None:
            self.writer.set()
            self.writer = None

    def reset(self) -> None:
        """Break both ends; bytes on their way are lost."""
        self.break_source()
        self.break_target()

    def answer_reset(self) -> None:
        """Let the sending end learn that the receiving one has no such connection."""
        self.break_source()
        if self.twin is not None:
            self.twin.break_target()

    def break_source(self) -> None:
        """Break the sending end; bytes sent before still arrive."""
        self.source_broken = self.silent = True
        self.make_room()

    def break_target(self) -> None:
        """Break the receiving end; bytes on their way are lost."""
        self.target_broken = self.silent = True
        self.under_way.clear()
        self.hurry()

    async def wait_arrival(self) -> None:
        """Wait until bytes have arrived, or none will."""
        if self.arrival() <= trio.current_time():
            await trio.lowlevel.checkpoint()
        while (arrival := self.arrival()) > trio.current_time():
            try:
                with trio.CancelScope(deadline=arrival) as self.reader:
                    await trio.sleep_forever()
            finally:
                self.reader = None

    async def wait_room(self) -> None:
        """Wait until bytes may be sent, or none can be."""
        await trio.lowlevel.checkpoint()
        while not (self.window or self.ended or self.shows_its_end() or self.source_broken):
            if self.writer is None:
                self.writer = trio.Event()
            await self.writer.wait()

    def take(self, max_bytes: int) -> bytes:
        """Take bytes that have arrived; the window grows by as many."""
        now, taken, room = trio.current_time(), list[bytes](), max_bytes
        while room and self.under_way and self.under_way[0][0] <= now:
            arrival, data = self.under_way[0]
            if not data:  # the end stays, for the next call
                break
            if len(data) > room:
                self.under_way[0] = (arrival, data[room:])
            else:
                self.under_way.popleft()
            taken.append(data[:room])
            room -= len(taken[-1])
        self.window += max_bytes - room
        self.make_room()
        return b"".join(taken)
