"""Our link to one peer: dialled again and again, with a queue in front of it.

A frame is offered to the network at once. What the network does not take waits in one of two queues
of bounded size: messages, which include the live log, and behind them bulk, which is large client
requests and replies that members forward. One task empties both as the network becomes ready. So
bulk takes no room from a message, and delays it by one half-sent frame at most.

When a queue is full
--------------------
- A message is dropped: senders of consensus messages repeat them.
- A frame of the live log, which nobody repeats, closes the link. The peer sees its stream end, and
  asks for the log again.
- Bulk is refused. Makers of bulk ask `OutgoingLink.has_room` first.

Only the answer to our hello ever comes back over this connection. So waiting to receive is waiting
for its end.

Where the peer is dialled is the business of `dialling`.
"""

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import attrs
import trio

from ..errors import HandshakeError
from ..log_events import log_event
from .authentication import PeerSecurity
from .dialling import Dialling
from .fields import NULL_VALUE, HelloStatus
from .limits import FLUSH_BYTES, JOIN_BYTES, LinkLimits
from .messages import ForwardReply, ForwardRequest, Hello, Message
from .network import Address, Connection, Network
from .streams import CONNECTION_ERRORS, describe
from .wire import TYPE_AT, numbers_of

log = logging.getLogger("quorate.transport")

MISSED_SECONDS: Final = 10.0
"""How long a peer is unreachable before that is logged as a warning. Shorter: each restart warns.
Longer: an operator learns of a lost member later."""


FORWARDED: Final[frozenset[type[Message]]] = frozenset((ForwardRequest, ForwardReply))
"""What is not counted on a link: it may go as bulk, which other messages overtake."""

_FORWARDED_NUMBERS: Final = numbers_of(FORWARDED)


class Tap:
    """Shows the messages that one member sends and hears, those of some classes.

    Both ends of a link count its messages, and know its number. So the n-th that was sent is the
    n-th that is heard, without a number in any message. Counting never pauses: what is shown may be
    changed at any time, at one end before the other.

    Args:
        first: the number of the first link; random, so that no other process has the same ones.

    Attributes:
        classes: the classes that are shown.
        numbers: theirs in a frame.
        sent: called with receiver, link, n, and the frame, before it leaves.
        heard: called with sender, link, n, and the message, before it takes effect.
    """

    def __init__(self, first: int) -> None:
        self.classes = frozenset[type[Message]]()
        self.numbers = frozenset[int]()
        self.sent: Callable[[int, int, int, bytes], None] = _nothing
        self.heard: Callable[[int, int, int, Message], None] = _nothing
        self._links = itertools.count(first)

    def next_link(self) -> int:
        """Return a number for a link of ours; it fits 31 bits."""
        return next(self._links) & 0x7FFF_FFFF

    def show(self, classes: Iterable[type[Message]]) -> None:
        """Show messages of these classes from now on, and no other ones."""
        self.classes = frozenset(classes) - FORWARDED
        self.numbers = numbers_of(self.classes)


def _nothing(_member: int, _link: int, _n: int, _message: object) -> None:
    """Take a message that nobody wants to see."""


@attrs.define(eq=False)
class Queue:
    """Frames that wait, oldest first, and their size in bytes; the first may be half sent."""

    frames: deque[bytes | memoryview] = attrs.field(factory=deque[bytes | memoryview])
    size: int = 0

    def append(self, frame: bytes | memoryview) -> None:
        """Add a frame, or the rest of one that the network has not taken."""
        self.frames.append(frame)
        self.size += len(frame)

    def take(self) -> bytes | memoryview:
        """Take the first frame, joined with the next ones while all together are small."""
        chunks = [self.frames.popleft()]
        size = len(chunks[0])
        while self.frames and size + len(self.frames[0]) <= JOIN_BYTES:
            chunks.append(self.frames.popleft())
            size += len(chunks[-1])
        self.size -= size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def put_back(self, rest: memoryview) -> None:
        """Put the rest of what was taken back in front."""
        self.frames.appendleft(rest)
        self.size += len(rest)


class OutgoingLink:
    """Our link to one peer.

    Args:
        addresses: where the peer is listed; the first one is dialled first.
        network: dials it.
        hello: our first message; its ``called_member_id`` is the peer.
        on_up: called when a new connection is ready to send.
        on_removed: called with the peer's words each time it answers that we were removed.
        limits: see `LinkLimits`.
        security: proves who we are to the peer, and judges whether it is the peer.
        rng: for the pauses between dials.
        tap: shows what is sent.
    """

    def __init__(
        self,
        *,
        addresses: tuple[Address, ...],
        network: Network,
        hello: Hello,
        on_up: Callable[[], None],
        on_removed: Callable[[str], None],
        limits: LinkLimits,
        security: PeerSecurity,
        rng: Random,
        tap: Tap,
    ) -> None:
        self.hello = hello
        self._tap = tap
        self._number = NULL_VALUE  # of the present link, or of the one that is dialled
        self._count = 0  # messages that were sent on it
        self._dialling = Dialling(
            addresses,
            network=network,
            hello=lambda: attrs.evolve(self.hello, log_session_id=self._number),
            on_failure=self._dial_failed,
            limits=limits,
            security=security,
            rng=rng,
        )
        self._address: Address  # of the connection
        self._on_up = on_up
        self._on_removed = on_removed
        self._limits = limits
        self._connection: Connection | None = None
        self._messages = Queue()
        self._bulk = Queue()
        self._half_sent: Queue | None = None  # the queue whose first frame is out in part
        self._filled = trio.Event()  # something waits
        self._emptied = trio.Event()  # nothing waits any more
        self._logged: dict[Address, str] = {}  # the last reason that was logged for each address
        self._trouble = ""  # the last reason of all
        self._down_since = math.inf
        self._missed = False  # it was logged that the peer is missing
        self.sent_bytes = self.received_bytes = 0
        self._scope = trio.CancelScope()  # of `run`

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All addresses of the peer, in the order in which they are dialled."""
        return self._dialling.addresses

    @property
    def refused(self) -> bool:
        """Whether nobody listened at any of the addresses when they were dialled last."""
        return self._dialling.refused

    @property
    def connected(self) -> bool:
        """Whether there is a connection to send on."""
        return self._connection is not None

    @property
    def trouble(self) -> str:
        """Why there is no connection; empty if there is one, or none was tried yet."""
        return "" if self.connected else self._trouble

    @property
    def has_room(self) -> bool:
        """Whether to make bulk for the peer: less than half a queue of it waits."""
        return self.connected and self._bulk.size < self._limits.queue_bytes // 2

    def send(self, frame: bytes) -> bool:
        """Send a frame, now or from the queue; False if there is no link or no room."""
        # A frame larger than the limit is accepted if its queue is empty: it could never go
        # otherwise.
        waiting = self._messages.size
        if waiting and waiting + len(frame) > self._limits.queue_bytes:
            return False
        return self._send(frame, self._messages)

    def send_bulk(self, frame: bytes) -> bool:
        """Send a frame behind all messages; False if there is no link, or a queue of bulk waits."""
        return self._bulk.size < self._limits.queue_bytes and self._send(frame, self._bulk)

    def _send(self, frame: bytes, queue: Queue) -> bool:
        connection = self._connection
        if connection is None:
            return False
        self.sent_bytes += len(frame)
        if (number := frame[TYPE_AT]) not in _FORWARDED_NUMBERS:
            self._count += 1
            if number in self._tap.numbers:
                self._tap.sent(self.hello.called_member_id, self._number, self._count, frame)
        rest: bytes | memoryview = frame
        # Nothing may overtake a waiting frame, and a half-sent one must be completed first.
        if not (self._messages.size or self._bulk.size):
            try:
                taken = connection.send_nowait(frame)
            except CONNECTION_ERRORS as error:
                self.close(describe(error))
                return False
            if taken == len(frame):
                return True
            rest = memoryview(frame)[taken:]
            self._half_sent = queue if taken else None
            self._filled.set()
            # A new event for each filling: `flush` waits on the one of its time.
            self._emptied = trio.Event()
        queue.append(rest)
        return True

    async def flush(self) -> None:
        """Wait until the network has taken everything, or it is lost with the connection."""
        while self._messages.size or self._bulk.size:
            await self._emptied.wait()

    def list_at(self, addresses: tuple[Address, ...]) -> None:
        """Replace the listed addresses; a connection goes on, and the next dial uses them."""
        self._dialling.list_at(addresses)

    def advertise(self, address: Address) -> None:
        """Note the address that the peer's hello has named; the next dial tries it first."""
        self._dialling.advertise(address)

    def close(self, reason: str) -> None:
        """Close the link at once; waiting frames are lost. It is dialled again by `run`."""
        if self._connection is not None:
            self._note(self._address, reason)
            # Closing wakes `_wait_for_end`. So `_keep` ends, and `run` dials again.
            self._connection.close()
            self._connection = None
            # The peer's side of this stream ends with the connection. A half-sent frame can't be
            # continued on a new one.
            self._messages, self._bulk, self._half_sent = Queue(), Queue(), None
            # Nothing will ever be sent of it, so nobody may go on waiting.
            self._emptied.set()

    def end(self) -> None:
        """Close the link for good; `run` returns."""
        self.close("it is no peer any more")
        self._scope.cancel()

    def nudge(self) -> None:
        """Dial now if there is no link: the peer has just dialled us, so it is up."""
        self._dialling.nudge()

    async def run(self) -> None:
        """Keep the link up until `end`."""
        with self._scope:
            while True:
                self._down_since = trio.current_time()
                # Before the dial, since the hello says it. One that fails used up a number.
                self._number = self._tap.next_link()
                reached = await self._dialling.reach()
                self._address, since = reached.address, trio.current_time()
                unasked = bool(reached.rest or reached.decoder.pending)
                await self._keep(reached.connection, unasked=unasked)
                self._dialling.lost(trio.current_time() - since)

    def _dial_failed(self, address: Address, error: Exception) -> None:
        """Note why a dial has failed."""
        refusal = isinstance(error, HandshakeError)
        self._note(address, describe(error), logging.WARNING if refusal else logging.DEBUG)
        self._warn_if_missed(address, describe(error))
        if (
            isinstance(error, HandshakeError)
            and error.status == HelloStatus.REMOVED
            # The answer may have arrived in the moment in which this link was ended.
            and not self._scope.cancel_called
        ):
            self._on_removed(error.reason)

    def _warn_if_missed(self, address: Address, reason: str) -> None:
        """Warn once that the peer has been unreachable for long."""
        # No part of a member logs that a follower is lost: nothing has to be decided then. But an
        # operator has to know.
        if self._missed or trio.current_time() < self._down_since + MISSED_SECONDS:
            return
        self._missed = True
        log_event(
            log,
            logging.WARNING,
            "link",
            f"no link to member %(peer)d for {MISSED_SECONDS:g} s; %(address)s: %(why)s",
            peer=self.hello.called_member_id,
            direction="out",
            up=False,
            address=str(address),
            why=reason,
        )

    async def _keep(self, connection: Connection, *, unasked: bool) -> None:
        """Use one connection until it ends."""
        if self._scope.cancel_called:
            # The dial may succeed in the moment in which the link is ended. The handler must not
            # hear of a link to a member that is no peer any more.
            connection.close()
            return
        self._connection = connection
        self._count = 0
        # The queues are empty here: `close` has dropped what waited for the old connection.
        self._filled = trio.Event()
        self._logged.clear()
        self._trouble = ""
        log_event(
            log,
            logging.INFO if self._missed else logging.DEBUG,
            "link",
            "link to member %(peer)d at %(address)s is up",
            peer=self.hello.called_member_id,
            direction="out",
            up=True,
            address=str(self._address),
        )
        self._missed = False
        try:
            self._on_up()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._empty_queue, connection)
                if unasked or await self._wait_for_end(connection):
                    self.close("it sent bytes over a link that only we send on")
                else:
                    self.close("it closed the link")
                # The other task may be waiting for frames, and none will come any more.
                nursery.cancel_scope.cancel()
        finally:
            # Usually closed by now. What is left is a cancellation, or a bug in `on_up`.
            self.close("the member stops")

    async def _wait_for_end(self, connection: Connection) -> bool:
        """Wait for the connection's end; True if bytes arrive instead."""
        try:
            # One byte is enough: anything at all breaks the rules of a link.
            return bool(await connection.receive(1))
        except CONNECTION_ERRORS as error:
            self.close(describe(error))
            return False

    async def _empty_queue(self, connection: Connection) -> None:
        try:
            while True:
                await self._filled.wait()
                # Waited for even if there was room a moment ago: `_send_waiting` stops after a
                # bound, and this lets other tasks run.
                await connection.wait_writable()
                self._send_waiting(connection)
        except CONNECTION_ERRORS as error:
            self.close(describe(error))  # ends _wait_for_end, too

    def _send_waiting(self, connection: Connection) -> None:
        """Hand to the network what it takes, up to a bound: other tasks want their turn."""
        sent = 0
        while sent < FLUSH_BYTES:
            # The rest of a half-sent frame first, even of bulk: the peer is inside that frame.
            queue = self._half_sent or (self._messages if self._messages.size else self._bulk)
            if not queue.size:
                self._filled = trio.Event()
                self._emptied.set()
                return
            chunk = queue.take()
            taken = connection.send_nowait(chunk)
            sent += taken
            if taken < len(chunk):
                queue.put_back(memoryview(chunk)[taken:])
                # If the network took nothing, the frame has not begun, and a message may still go
                # before bulk.
                if taken:
                    self._half_sent = queue
                return
            self._half_sent = None

    def _note(self, address: Address, reason: str, level: int = logging.DEBUG) -> None:
        """Note why there is no link; log it once, until the reason at this address changes."""
        self._trouble = f"{address}: {reason}"
        if self._logged.get(address) != reason:
            # What is known about an address that is no longer dialled: strangers could fill memory.
            self._logged = {
                each: why for each, why in self._logged.items() if each in self.addresses
            }
            self._logged[address] = reason
            log_event(
                log,
                level,
                "link",
                "no link to member %(peer)d at %(address)s: %(why)s",
                peer=self.hello.called_member_id,
                direction="out",
                up=False,
                address=str(address),
                why=reason,
            )
