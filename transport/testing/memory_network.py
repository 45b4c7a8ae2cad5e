"""A network in memory, for tests and simulations, with latency, cuts, resets and refusals.

Each member gets its own view, ``network.host("a")``, and listens at ``Address("a", port)``; so the
network knows which host dials which. Bytes take the latency of their direction, drawn from that
direction's own generator, and keep their order. They travel in segments, as in packets. A window
limits the bytes that are on their way or unread, as in a kernel: if the receiver does not read, the
sender's `send_nowait` takes nothing more.

- `cut` silently stops all bytes from one host to another: dials hang, bytes stall and arrive after
  `heal`. This is a partition.
- `set_pace` makes a direction slow: in seconds, or in bytes per second.
- `break_links` resets the connections between two hosts; bytes on their way are lost. This is the
  reboot of a switch, or of a member. `half_break` resets only the ends at one host: bytes it sent
  still arrive, and the other end notices when it sends.
- `mute` is the death of a process: bytes it sent still arrive, and then the end.
- `unplug` is the loss of power: nothing leaves the host any more, no byte and no end of a
  connection.
  `plug` starts it again: other hosts' ends of its old connections are reset.
- `refuse` makes a host refuse new connections, as if nobody listened.

There are no threads, no tasks and no clock except trio's. A receiver sleeps until bytes arrive.
Under ``MockClock(autojump_threshold=0)`` and with a seeded scheduler, one seed always gives the
same run.
"""

import errno
import os
from random import Random
from typing import Final, Never

import trio

from ..identity import Identity
from ..network import Address, ConnectionHandler
from .direction import Direction, Pace, Route

_FIRST_FREE_PORT: Final = 49152


class MemoryNetwork:
    """Hosts and the connections between them.

    Args:
        rng: one number is drawn from it now. Each direction between two hosts gets a generator of
            its own, so traffic in one does not change latencies in another.
        latency: of every direction without a `Pace` of its own.
        jitter: likewise.
    """

    def __init__(self, rng: Random, *, latency: float = 0.0005, jitter: float = 0.0) -> None:
        self._seed = rng.getrandbits(64)
        self._pace = Pace(latency, jitter)
        self._paces: dict[Route, Pace] = {}
        self._generators: dict[Route, Random] = {}
        self._cuts: dict[Route, None] = {}
        self._refusing: dict[str, None] = {}
        self._unplugged: dict[str, None] = {}
        self._changed = trio.Event()
        self._directions: dict[int, Direction] = {}
        self._made = 0
        self.listeners: dict[Address, tuple[trio.Nursery, ConnectionHandler]] = {}

    def host(self, name: str) -> "MemoryHost":
        """Return the network as the host of that name sees it."""
        return MemoryHost(self, name)

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Stop all bytes from `source` to `target` and, with `both`, the other way."""
        for route in _routes(source, target, both=both):
            self._cuts[route] = None
            self._hurry(route)

    def heal(self, source: str, target: str, *, both: bool = True) -> None:
        """Undo a `cut`: stalled bytes go on."""
        for route in _routes(source, target, both=both):
            self._cuts.pop(route, None)
            self._hurry(route)
        self._wake()

    def set_pace(self, source: str, target: str, pace: Pace | None, *, both: bool = True) -> None:
        """Set a direction's pace; None restores the network's. Bytes on their way speed up."""
        for route in _routes(source, target, both=both):
            if pace is None:
                self._paces.pop(route, None)
            else:
                self._paces[route] = pace
            for direction in list(self._directions.values()):
                if direction.route == route:
                    direction.hurry_up()

    def break_links(self, one: str, other: str) -> None:
        """Reset all connections between two hosts; both ends notice at once."""
        for direction in list(self._directions.values()):
            if direction.route in _routes(one, other):
                direction.reset()

    def half_break(self, one: str, other: str) -> None:
        """Reset the connections between two hosts at `one` only."""
        for direction in list(self._directions.values()):
            if direction.route == (one, other):
                direction.break_source()
            elif direction.route == (other, one):
                direction.break_target()

    def unplug(self, name: str) -> None:
        """Silence a host: nothing leaves or reaches it until `plug`."""
        self._unplugged[name] = None
        for direction in list(self._directions.values()):
            if direction.route[0] == name:
                direction.silent = True

    def mute(self, name: str) -> None:
        """Send only the ends over a host's present connections."""
        for direction in list(self._directions.values()):
            if direction.route[0] == name:
                direction.mute = True

    def plug(self, name: str) -> None:
        """Undo `unplug`, if there was one: all earlier connections are reset."""
        if name not in self._unplugged:
            return
        del self._unplugged[name]
        self._wake()
        for direction in list(self._directions.values()):
            if name in direction.route:
                direction.reset()

    def refuse(self, name: str, *, refused: bool = True) -> None:
        """Make the host refuse new connections, or accept them again."""
        if refused:
            self._refusing[name] = None
        else:
            self._refusing.pop(name, None)

    def is_cut(self, route: Route) -> bool:
        """Whether nothing passes from the first host to the second."""
        return route in self._cuts or route[1] in self._unplugged

    def is_refusing(self, name: str) -> bool:
        """Whether the host refuses new connections by `refuse`."""
        return name in self._refusing

    def draw_latency(self, route: Route) -> float:
        """Return the seconds that the next bytes take."""
        pace = self.pace(route)
        if not pace.jitter:
            return pace.latency
        if route not in self._generators:
            text = f"{self._seed}/{route[0]}>{route[1]}"
            self._generators[route] = Random(text)  # noqa: S311 - simulated, and seeded
        return pace.latency + self._generators[route].uniform(0.0, pace.jitter)

    def pace(self, route: Route) -> Pace:
        """Return the pace of a direction."""
        return self._paces.get(route, self._pace)

    async def travel(self, route: Route) -> None:
        """Wait as long as one packet takes, and while the route is cut."""
        await trio.sleep(self.draw_latency(route))
        while self.is_cut(route) or route[0] in self._unplugged:
            await self._changed.wait()

    def join(self, source: str, address: Address) -> "tuple[MemoryConnection, MemoryConnection]":
        """Make a connection; return the dialling and the listening end."""
        there = self._direction((source, address.host))
        back = self._direction((address.host, source))
        there.twin, back.twin = back, there
        own = Address(source, _FIRST_FREE_PORT + self._made // 2)
        return MemoryConnection(str(address), there, back), MemoryConnection(str(own), back, there)

    def free_port(self, host: str) -> int:
        """Return the lowest port of `host` at which nobody listens."""
        port = _FIRST_FREE_PORT
        while Address(host, port) in self.listeners:
            port += 1
        return port

    def _direction(self, route: Route) -> Direction:
        number = self._made
        self._made += 1
        direction = Direction(route, self, number)
        self._directions[number] = direction
        return direction

    def forget(self, number: int) -> None:
        """Drop a direction whose ends are both closed."""
        self._directions.pop(number, None)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _hurry(self, route: Route) -> None:
        for direction in self._directions.values():
            if direction.route == route:
                direction.hurry()
                direction.make_room()  # or show that there will be none


def _routes(source: str, target: str, *, both: bool = True) -> tuple[Route, ...]:
    return ((source, target), (target, source)) if both else ((source, target),)


class MemoryHost:
    """The network as one host sees it; see `network.Network`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def connect(self, address: Address) -> "MemoryConnection":
        """See `Network`."""
        network, there, back = self._network, (self.name, address.host), (address.host, self.name)
        await network.travel(there)
        listener = network.listeners.get(address)
        if listener is None or network.is_refusing(address.host):
            await network.travel(back)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        nursery, handler = listener
        near, far = network.join(self.name, address)
        nursery.start_soon(_handle, handler, far)
        try:
            await network.travel(back)
        except BaseException:
            near.close()
            raise
        return near

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """See `Network`."""
        if address.host != self.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{address} is not of host {self.name}")
        listeners = self._network.listeners
        bound = Address(self.name, address.port or self._network.free_port(self.name))
        if bound in listeners:
            raise OSError(errno.EADDRINUSE, f"{bound} is taken")
        async with trio.open_nursery() as nursery:
            listeners[bound] = nursery, handler
            try:
                task_status.started(bound)
                await trio.sleep_forever()
            finally:
                del listeners[bound]
        raise AssertionError("only cancellation ends it")  # pragma: no cover - never reached


async def _handle(handler: ConnectionHandler, connection: "MemoryConnection") -> None:
    try:
        await handler(connection)
    finally:
        connection.close()


class MemoryConnection:
    """One end of a connection in memory; see `network.Connection`."""

    identity: Identity | None = None

    def __init__(self, peer: str, outgoing: Direction, incoming: Direction) -> None:
        self.peer = peer
        self._outgoing = outgoing
        self._incoming = incoming

    def send_nowait(self, data: bytes | memoryview) -> int:
        """See `Connection`."""
        self._check()
        outgoing = self._outgoing
        if outgoing.shows_its_end():
            raise trio.BrokenResourceError("the other end closed the connection")
        room = min(len(data), outgoing.window)
        if room:
            outgoing.put(bytes(data[:room]))
        return room

    async def wait_writable(self) -> None:
        """See `Connection`."""
        await self._outgoing.wait_room()
        if self._outgoing.ended:
            raise trio.ClosedResourceError

    async def receive(self, max_bytes: int) -> bytes:
        """See `Connection`."""
        await self._incoming.wait_arrival()
        self._check()
        return self._incoming.take(max_bytes)

    def _check(self) -> None:
        if self._outgoing.ended:
            raise trio.ClosedResourceError
        if self._outgoing.source_broken or self._incoming.target_broken:
            raise trio.BrokenResourceError("the connection was reset")

    def close(self) -> None:
        """See `Connection`. The end travels behind the bytes; bytes on their way here are lost."""
        outgoing, incoming = self._outgoing, self._incoming
        if outgoing.ended:
            return
        outgoing.put(b"")
        outgoing.ended = True
        incoming.abandoned = True
        incoming.under_way.clear()
        incoming.hurry()
        incoming.make_room()
        outgoing.make_room()
        for direction in (outgoing, incoming):
            if direction.ended and direction.abandoned:
                direction.network.forget(direction.number)
