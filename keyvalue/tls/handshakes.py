"""Clients whose TLS handshake is under way, and what they may cost.

A handshake takes about half a millisecond of processor, and after an outage all clients come back
at once. Done one after the other, two thousand of them would hold up heartbeats for a second, and
the member would lose its term. So they are done in slices:

- A slice is :data:`SLICE_SECONDS` at most. Between two slices, all other tasks of the member that
  can run do run.
- At most :data:`MAX_PENDING` handshakes are under way. While there are as many, no more clients are
  accepted: they wait in the kernel's queue, and cost nothing.
- Each has :data:`HANDSHAKE_SECONDS`. A stranger that connects and says nothing is closed sooner if
  its place is needed, first those of the host that has most of them. Clients that wait for *us* are
  not: after an outage that would be most of them, and they would come back. Nor are those of a host
  whose handshakes get done: it may be busy with as many as we are.

One task does all this. An ``epoll`` of its own, level-triggered, remembers which clients have sent
something: one that a slice has no time for is reported again.
"""

import errno
import math
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Never

import attrs
import trio

from ...errors import HandshakeError
from ...node.protocol.signal import Signal
from ...transport.strangers import OnceLog
from .socket import TlsSocket

__all__ = [
    "HANDSHAKE_SECONDS",
    "MAX_PENDING",
    "SILENT_SECONDS",
    "SLICE_SECONDS",
    "Arrival",
    "Handshakes",
]

SLICE_SECONDS: Final = 0.002
"""How long handshakes keep the event loop in a row. Smaller: fewer handshakes in each turn of a
busy member, so clients are back later. Larger: heartbeats and commits wait for longer. The last
handshake of a slice may exceed it by half a millisecond."""

MAX_PENDING: Final = 512
"""Handshakes under way. Fewer: silent strangers fill the places sooner. More: each takes about 50
KiB, and clients at the end of the queue run into the time limit."""

HANDSHAKE_SECONDS: Final = 5.0
"""Time limit of a handshake. Smaller: busy clients fail to connect. Larger: a silent stranger keeps
a place for longer."""

SILENT_SECONDS: Final = 1.0
"""After this time, one that has sent nothing that waits for us may lose its place to another one.
Smaller: clients on slow networks lose theirs. Larger: strangers hold up clients for longer."""

_LOOK_AGAIN_SECONDS: Final = 0.1
_DROPPED_BYTES: Final = 4 << 10
_IN_A_ROW: Final = 8  # reported by one look; more are not done in a slice


@attrs.define(eq=False)
class Arrival:
    """A client that has connected to a TLS port.

    Args:
        socket: of the client.
        address: where it connects from.
        at_redirect_port: it came through the port for cluster clients.
        since: when (trio's clock).
        authorities: the CAs that its certificate may be of, each as DER.
        refused: its handshake has failed, and it may still read why.
    """

    socket: TlsSocket
    address: tuple[str, int]
    at_redirect_port: bool
    since: float
    authorities: frozenset[bytes] = frozenset()
    refused: bool = False


class Handshakes:
    """The handshakes under way at one client port.

    Args:
        admit: takes a client whose handshake is over.
        failed: is called for each that fails, with the address and the reason.
    """

    def __init__(
        self, admit: Callable[[Arrival], None], failed: Callable[[tuple[str, int], str], None]
    ) -> None:
        self._admit = admit
        self._failed = failed
        self._epoll = select.epoll()
        self._pending: dict[int, Arrival] = {}  # by descriptor, the oldest first
        self._log = OnceLog().warn
        self._done_at: dict[str, float] = {}  # the last one that was done, of each host
        self._waiting = trio.CancelScope()
        self._freed = Signal()

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._pending)

    @property
    def full(self) -> bool:
        """Whether no more may begin."""
        return len(self._pending) >= MAX_PENDING

    def begin(self, arrival: Arrival) -> None:
        """Begin a handshake; the client speaks first."""
        self._epoll.register(arrival.socket.fileno(), select.EPOLLIN)
        self._pending[arrival.socket.fileno()] = arrival
        self._waiting.deadline = min(self._waiting.deadline, arrival.since + HANDSHAKE_SECONDS)

    async def room(self) -> None:
        """Wait until another one may begin."""
        while self.full and not self._make_room():
            await self._freed.wait(trio.current_time() + _LOOK_AGAIN_SECONDS)

    async def run(self) -> Never:
        """Do handshakes until cancelled; then close those that are under way."""
        try:
            while True:
                now = trio.current_time()
                oldest = next(iter(self._pending.values()), None)
                until = oldest.since + HANDSHAKE_SECONDS if oldest else math.inf
                with trio.CancelScope(deadline=max(until, now)) as self._waiting:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._slice()
                self._end_overdue()
        finally:
            self.close()

    def close(self) -> None:
        """Close all that are under way; to be called once more than needed does no harm."""
        for arrival in list(self._pending.values()):
            arrival.socket.close()
        self._pending.clear()
        self._epoll.close()

    def _slice(self) -> None:
        ends = time.perf_counter() + SLICE_SECONDS
        # Timeout 0: only `wait_readable` may wait.
        for fileno, _ in self._epoll.poll(0, _IN_A_ROW):
            self._step(self._pending[fileno])
            if time.perf_counter() >= ends:
                break

    def _step(self, arrival: Arrival) -> None:
        try:
            if arrival.refused:
                if not arrival.socket.recv(_DROPPED_BYTES):
                    self._end(arrival)
                return
            done = arrival.socket.shake_hands()
        except HandshakeError as error:
            self._refuse(arrival, str(error))
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(arrival, _in_words(error))
        else:
            if done:
                self._forget(arrival)
                self._note_success(arrival.address[0])
                self._admit(arrival)

    def _note_success(self, host: str) -> None:
        if len(self._done_at) >= MAX_PENDING:
            self._done_at.clear()  # at worst, a client of a busy host has to come back
        self._done_at[host] = trio.current_time()

    def _end_overdue(self) -> None:
        latest = trio.current_time() - HANDSHAKE_SECONDS
        for arrival in [one for one in self._pending.values() if one.since <= latest]:
            self._fail(arrival, f"no TLS handshake within {HANDSHAKE_SECONDS:g} s")

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        """Note that a handshake has failed; close once the client has closed."""
        self._note(arrival, reason)
        arrival.refused = True
        # A close with unread bytes resets the connection, and the client would not learn why.
        try:
            arrival.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(arrival)

    def _make_room(self) -> bool:
        """Close the oldest silent client of the host that has most of them; False without any."""
        latest = trio.current_time() - SILENT_SECONDS
        heard = {fileno for fileno, _ in self._epoll.poll(0, MAX_PENDING)}
        silent = [
            one
            for fileno, one in self._pending.items()
            if one.since <= latest
            and fileno not in heard
            and self._done_at.get(one.address[0], -math.inf) <= latest
        ]
        if not silent:
            return False
        # A flood from one address then costs that address first.
        hosts = Counter(one.address[0] for one in silent)
        host = max(hosts, key=hosts.__getitem__)
        arrival = next(one for one in silent if one.address[0] == host)
        self._fail(arrival, f"{MAX_PENDING} handshakes are under way, and it has sent nothing")
        return True

    def _fail(self, arrival: Arrival, reason: str) -> None:
        if not arrival.refused:
            self._note(arrival, reason)
        self._end(arrival)

    def _note(self, arrival: Arrival, reason: str) -> None:
        self._failed(arrival.address, reason)
        self._log(f"no TLS connection with a client at {arrival.address[0]}: {reason}")

    def _end(self, arrival: Arrival) -> None:
        self._forget(arrival)
        arrival.socket.close()

    def _forget(self, arrival: Arrival) -> None:
        # While the descriptor is open: afterwards its number may be that of another client.
        with suppress(OSError):
            self._epoll.unregister(arrival.socket.fileno())
        del self._pending[arrival.socket.fileno()]
        self._freed.notify()


def _in_words(error: OSError) -> str:
    return f"the connection is lost: {errno.errorcode.get(error.errno or 0, error)}"
