"""One direction of a connection in memory: the bytes on their way, and who waits for them.

Nothing here is a task. Who waits for bytes waits in a cancel scope whose deadline is their arrival,
so what changes the arrival moves that deadline, and each arrival wakes its reader once.
"""

from collections import deque
from typing import Final, Protocol, TypeAlias

import attrs
import trio

WINDOW_BYTES: Final = 256 << 10
SEGMENT_BYTES: Final = 1400
"""About what a packet of an Ethernet carries: what is sent in one go arrives piece by piece, and
may be lost from any of them on."""
NEVER: Final = float("inf")

Route: TypeAlias = tuple[str, str]
"""From one host to another."""


@attrs.frozen
class Pace:
    """How fast a direction is.

    Args:
        latency: seconds that bytes take from one host to another, at least.
        jitter: seconds that they take longer, at most, drawn evenly.
        bytes_per_second: how many get through, without end unless given.
    """

    latency: float = 0.0005
    jitter: float = 0.0
    bytes_per_second: float = NEVER


class Ways(Protocol):
    """What a direction asks of the network."""

    def is_cut(self, route: Route) -> bool:
        """Tell whether nothing passes from the first host to the second."""
        ...

    def draw_latency(self, route: Route) -> float:
        """Give the seconds that the next bytes take."""
        ...

    def pace(self, route: Route) -> Pace:
        """Give the pace of a direction."""
        ...

    def forget(self, number: int) -> None:
        """Drop a direction both of whose ends are closed."""
        ...


@attrs.define(eq=False)
class Direction:
    """The bytes of one connection from one host to another.

    Args:
        route: the two hosts.
        network: whose cuts and latencies count.
        number: under which the network knows it.
    """

    route: Route
    network: Ways
    number: int
    twin: "Direction | None" = None  # the other direction of the connection
    under_way: deque[tuple[float, bytes]] = attrs.Factory(deque[tuple[float, bytes]])
    window: int = WINDOW_BYTES  # bytes that may be sent still
    ended: bool = False  # the sending end was closed
    silent: bool = False  # what is sent goes nowhere
    mute: bool = False  # nothing is sent any more but the end
    abandoned: bool = False  # the receiving end was closed
    source_broken: bool = False  # the sending end was reset
    target_broken: bool = False  # the receiving end was reset
    free_at: float = 0.0  # when the next byte may leave, where they leave slowly
    reader: trio.CancelScope | None = None  # of who waits for bytes: its deadline is their arrival
    writer: trio.Event | None = None  # of who waits for room

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
        """Give when bytes arrive that are sent now, or stand first in the queue."""
        now, arrival = trio.current_time(), self.network.draw_latency(self.route)
        speed = self.network.pace(self.route).bytes_per_second
        if speed < NEVER:
            self.free_at = max(self.free_at, now) + len(data) / speed
            arrival += self.free_at - now
        return now + arrival

    def hurry_up(self) -> None:
        """Let what is under way arrive as it would at the present pace, if that is sooner."""
        self.free_at, last = 0.0, 0.0
        for place, (arrival, data) in enumerate(self.under_way):
            last = max(last, min(arrival, self.arrival_of(data)))
            self.under_way[place] = (last, data)
        self.hurry()

    def arrival(self) -> float:
        """When the next bytes arrive, or the end of all; without end if nothing is to come."""
        if self.target_broken or self.abandoned:
            return -NEVER
        if not self.under_way or self.network.is_cut(self.route):
            return NEVER
        return self.under_way[0][0]

    def tells_its_end(self) -> bool:
        """Tell whether the receiving end was closed, and the sending one can know of it."""
        return self.abandoned and not self.silent and not self.network.is_cut(self.route)

    def hurry(self) -> None:
        """Have who waits for bytes wait for those that come first now."""
        if self.reader is not None:
            self.reader.deadline = self.arrival()

    def make_room(self) -> None:
        """Have who waits for room look again."""
        if self.writer is not None:
            self.writer.set()
            self.writer = None

    def reset(self) -> None:
        """Break both ends, and lose what is under way."""
        self.break_source()
        self.break_target()

    def answer_reset(self) -> None:
        """Tell the sending end that the receiving one knows no such connection."""
        self.break_source()
        if self.twin is not None:
            self.twin.break_target()

    def break_source(self) -> None:
        """Break the sending end; what was sent before still arrives."""
        self.source_broken = self.silent = True
        self.make_room()

    def break_target(self) -> None:
        """Break the receiving end, and lose what is under way."""
        self.target_broken = self.silent = True
        self.under_way.clear()
        self.hurry()

    async def wait_arrival(self) -> None:
        """Wait until something has arrived, or nothing will."""
        if self.arrival() <= trio.current_time():
            await trio.lowlevel.checkpoint()
        while (arrival := self.arrival()) > trio.current_time():
            try:
                with trio.CancelScope(deadline=arrival) as self.reader:
                    await trio.sleep_forever()
            finally:
                self.reader = None

    async def wait_room(self) -> None:
        """Wait until something may be sent, or nothing can be."""
        await trio.lowlevel.checkpoint()
        while not (self.window or self.ended or self.tells_its_end() or self.source_broken):
            if self.writer is None:
                self.writer = trio.Event()
            await self.writer.wait()

    def take(self, max_bytes: int) -> bytes:
        """Take bytes that have arrived; the window opens by as much."""
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
