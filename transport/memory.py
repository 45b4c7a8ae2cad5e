"""A network in memory, for tests and simulations: latency, cuts, resets and refusals at will.

Each member gets its own view, ``network.host("a")``, and listens at ``Address("a", port)``; so the
network knows who dials whom. Bytes take the latency of their direction, drawn from a generator of
that direction, and keep their order. What is under way or arrived and not yet read is limited by
a window, as in a kernel: when the receiver does not read, the sender's `send_nowait` takes nothing
more.

- `cut` stops all bytes from one host to another, without a sign of it: dials hang, data stall and
  arrive after `heal`. It is the partition of a network.
- `break_links` resets the connections between two hosts; what was under way is lost. It is the
  reboot of a switch, or of a member.
- `refuse` makes a host refuse new connections, as if nobody listened.

There are no threads, no tasks and no clock but trio's here: a receiver that waits for bytes under
way sleeps until they arrive. Under ``MockClock(autojump_threshold=0)``, and with a seeded
scheduler, the same seed gives the same run.
"""

import errno
import os
from collections import deque
from random import Random
from typing import Final, Never, TypeAlias

import attrs
import trio

from .network import Address, ConnectionHandler

WINDOW_BYTES: Final = 256 << 10

_FIRST_FREE_PORT: Final = 49152
_Route: TypeAlias = tuple[str, str]


class MemoryNetwork:
    """Hosts and the connections between them.

    Args:
        rng: one number is drawn from it now; each direction between two hosts gets a generator of
            its own, so that traffic in one does not change the latencies in another.
        latency: seconds that bytes take from one host to another, at least.
        jitter: seconds that they take longer, at most, drawn evenly.
    """

    def __init__(self, rng: Random, *, latency: float = 0.0005, jitter: float = 0.0) -> None:
        self._seed = rng.getrandbits(64)
        self._latency = latency
        self._jitter = jitter
        self._generators: dict[_Route, Random] = {}
        self._cuts: dict[_Route, None] = {}
        self._refusing: dict[str, None] = {}
        self._changed = trio.Event()
        self._directions: dict[int, _Direction] = {}
        self._made = 0
        self.listeners: dict[Address, tuple[trio.Nursery, ConnectionHandler]] = {}

    def host(self, name: str) -> "MemoryHost":
        """Give the network as the host of that name sees it."""
        return MemoryHost(self, name)

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Let no byte pass from `source` to `target`, nor, if `both`, the other way."""
        self._cuts[source, target] = None
        if both:
            self._cuts[target, source] = None

    def heal(self, source: str, target: str, *, both: bool = True) -> None:
        """Undo a `cut`: what stalled goes on."""
        self._cuts.pop((source, target), None)
        if both:
            self._cuts.pop((target, source), None)
        self._wake()

    def break_links(self, one: str, other: str) -> None:
        """Reset all connections between two hosts, as both ends notice at once."""
        for direction in list(self._directions.values()):
            if direction.route in {(one, other), (other, one)}:
                direction.reset()

    def refuse(self, name: str, *, refused: bool = True) -> None:
        """Make the host refuse new connections, or take them again."""
        if refused:
            self._refusing[name] = None
        else:
            self._refusing.pop(name, None)

    def is_cut(self, route: _Route) -> bool:
        """Tell whether nothing passes from the first host to the second."""
        return route in self._cuts

    def is_refusing(self, name: str) -> bool:
        """Tell whether the host refuses new connections by `refuse`."""
        return name in self._refusing

    def draw_latency(self, route: _Route) -> float:
        """Give the seconds that the next bytes take."""
        if not self._jitter:
            return self._latency
        if route not in self._generators:
            text = f"{self._seed}/{route[0]}>{route[1]}"
            self._generators[route] = Random(text)  # noqa: S311 - simulated, and seeded
        return self._latency + self._generators[route].uniform(0.0, self._jitter)

    async def travel(self, route: _Route) -> None:
        """Wait as long as one packet takes, and while the route is cut."""
        await trio.sleep(self.draw_latency(route))
        while self.is_cut(route):
            await self._changed.wait()

    def join(self, source: str, address: Address) -> "tuple[MemoryConnection, MemoryConnection]":
        """Make a connection; give the dialling and the listening end."""
        there = self._direction((source, address.host))
        back = self._direction((address.host, source))
        own = Address(source, _FIRST_FREE_PORT + self._made // 2)
        return MemoryConnection(str(address), there, back), MemoryConnection(str(own), back, there)

    def free_port(self, host: str) -> int:
        """Give the lowest port of `host` at which nobody listens."""
        port = _FIRST_FREE_PORT
        while Address(host, port) in self.listeners:
            port += 1
        return port

    def _direction(self, route: _Route) -> "_Direction":
        number = self._made
        self._made += 1
        direction = _Direction(route, self, number)
        self._directions[number] = direction
        return direction

    def forget(self, number: int) -> None:
        """Drop a direction both of whose ends are closed."""
        self._directions.pop(number, None)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for direction in list(self._directions.values()):
            direction.wake()


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
        ours, theirs = network.join(self.name, address)
        nursery.start_soon(_handle, handler, theirs)
        try:
            await network.travel(back)
        except BaseException:
            ours.close()
            raise
        return ours

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


@attrs.define(eq=False)
class _Direction:
    """The bytes of one connection from one host to another.

    Args:
        route: the two hosts.
        network: whose cuts and latencies count.
        number: under which the network knows it.
    """

    route: _Route
    network: MemoryNetwork
    number: int
    under_way: deque[tuple[float, bytes]] = attrs.Factory(deque[tuple[float, bytes]])
    window: int = WINDOW_BYTES  # bytes that may be sent still
    ended: bool = False  # the sending end was closed
    abandoned: bool = False  # the receiving end was closed
    broken: bool = False  # the connection was reset
    changed: trio.Event = attrs.Factory(trio.Event)

    def wake(self) -> None:
        """Let whoever waits at either end look again."""
        self.changed.set()
        self.changed = trio.Event()

    def put(self, data: bytes) -> None:
        """Send `data`; ``b""`` is the end."""
        arrival = trio.current_time() + self.network.draw_latency(self.route)
        if self.under_way:  # nothing overtakes
            arrival = max(arrival, self.under_way[-1][0])
        self.under_way.append((arrival, data))
        self.window -= len(data)
        self.wake()

    def reset(self) -> None:
        """Break it, and lose what is under way."""
        self.broken = True
        self.under_way.clear()
        self.wake()

    async def wait_arrival(self) -> None:
        """Wait until something has arrived, or nothing will."""
        while not (self.broken or self.abandoned):
            arrival = float("inf")
            if self.under_way and not self.network.is_cut(self.route):
                arrival = self.under_way[0][0]
                if arrival <= trio.current_time():
                    return
            with trio.move_on_at(arrival):
                await self.changed.wait()

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
        self.wake()
        return b"".join(taken)


class MemoryConnection:
    """One end of a connection in memory; see `network.Connection`."""

    def __init__(self, peer: str, outgoing: _Direction, incoming: _Direction) -> None:
        self.peer = peer
        self._outgoing = outgoing
        self._incoming = incoming

    def send_nowait(self, data: bytes | memoryview) -> int:
        """See `Connection`."""
        self._check()
        outgoing = self._outgoing
        if outgoing.abandoned and not outgoing.network.is_cut(outgoing.route):
            raise trio.BrokenResourceError("the other end closed the connection")
        room = min(len(data), outgoing.window)
        if room:
            outgoing.put(bytes(data[:room]))
        return room

    async def wait_writable(self) -> None:
        """See `Connection`."""
        await trio.lowlevel.checkpoint()
        outgoing = self._outgoing
        while not (outgoing.window or outgoing.ended or outgoing.abandoned or outgoing.broken):
            await outgoing.changed.wait()
        if outgoing.ended:
            raise trio.ClosedResourceError

    async def receive(self, max_bytes: int) -> bytes:
        """See `Connection`."""
        await trio.lowlevel.checkpoint()
        await self._incoming.wait_arrival()
        self._check()
        return self._incoming.take(max_bytes)

    def _check(self) -> None:
        if self._outgoing.ended:
            raise trio.ClosedResourceError
        if self._outgoing.broken:
            raise trio.BrokenResourceError("the connection was reset")

    def close(self) -> None:
        """See `Connection`. The end travels behind the data; what is on its way here is lost."""
        outgoing, incoming = self._outgoing, self._incoming
        if outgoing.ended:
            return
        outgoing.put(b"")
        outgoing.ended = True
        incoming.abandoned = True
        incoming.under_way.clear()
        incoming.wake()
        for direction in (outgoing, incoming):
            if direction.ended and direction.abandoned:
                direction.network.forget(direction.number)
