"""Our link to one peer: dialled again and again, with a queue in front of it.

A frame is offered to the network at once. What the network does not take waits in one of two queues
of bounded size, which one task empties as the network becomes ready: messages, the live log among
them, and behind them bulk, which is whatever the protocol does not wait for. So however much bulk
there is, it takes no room from a message, and delays it by the one frame that is half sent.

When its queue is full a message is dropped: senders of consensus messages repeat themselves. What
nobody repeats, above all the live log, can't be: a frame of it that does not fit closes the link,
the peer sees its stream end, and asks for the log anew. Bulk is refused while there is still room
for what is being made, see `OutgoingLink.has_room`.

Nothing but the answer to our hello ever comes back over this connection, so waiting to receive is
waiting for its end.
"""

import logging
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Never

import attrs
import trio

from ..errors import HandshakeError
from .limits import FLUSH_BYTES, JOIN_BYTES, LinkLimits
from .messages import Hello
from .network import Address, Connection, Network
from .streams import CONNECTION_ERRORS, describe, dial

log = logging.getLogger("quorate.transport")


@attrs.define(eq=False)
class Queue:
    """Frames that wait, oldest first, and their size in bytes; the first may be half sent."""

    frames: deque[bytes | memoryview] = attrs.field(factory=deque[bytes | memoryview])
    size: int = 0

    def append(self, frame: bytes | memoryview) -> None:
        """Add a frame, or what the network has not taken of it."""
        self.frames.append(frame)
        self.size += len(frame)

    def take(self) -> bytes | memoryview:
        """Take the first frame, joined with more if all of them are small."""
        chunks = [self.frames.popleft()]
        size = len(chunks[0])
        while self.frames and size + len(self.frames[0]) <= JOIN_BYTES:
            chunks.append(self.frames.popleft())
            size += len(chunks[-1])
        self.size -= size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def put_back(self, rest: memoryview) -> None:
        """Put back the rest of what was taken."""
        self.frames.appendleft(rest)
        self.size += len(rest)


class OutgoingLink:
    """Our link to one peer.

    Args:
        address: where the peer listens.
        network: through which to dial it.
        hello: what we say first; its ``called_member_id`` is the peer.
        on_up: called when a new connection is ready to send.
        limits: see `LinkLimits`.
        rng: for the pauses between dials.
    """

    def __init__(
        self,
        *,
        address: Address,
        network: Network,
        hello: Hello,
        on_up: Callable[[], None],
        limits: LinkLimits,
        rng: Random,
    ) -> None:
        self.refused = False  # the last dial found nobody listening
        self._address = address
        self._network = network
        self.hello = hello
        self._on_up = on_up
        self._limits = limits
        self._rng = rng
        self._connection: Connection | None = None
        self._messages = Queue()
        self._bulk = Queue()
        self._half_sent: Queue | None = None  # the queue whose first frame is out in part
        self._filled = trio.Event()  # something waits
        self._emptied = trio.Event()  # nothing waits any more
        self._nudged = trio.Event()  # the peer has shown that it is there
        self._said = ""  # the last reason that was logged

    @property
    def connected(self) -> bool:
        """Whether a connection is there to send on."""
        return self._connection is not None

    @property
    def trouble(self) -> str:
        """Why there is no connection; empty if there is one, or none was tried yet."""
        return "" if self.connected or not self._said else f"{self._address}: {self._said}"

    @property
    def has_room(self) -> bool:
        """Whether bulk may be made for the peer: less than half a queue of it waits."""
        return self.connected and self._bulk.size < self._limits.queue_bytes // 2

    def send(self, frame: bytes) -> bool:
        """Send a frame, now or from the queue; False if there is no link, or no room."""
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
        rest: bytes | memoryview = frame
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
            self._emptied = trio.Event()
        queue.append(rest)
        return True

    async def flush(self) -> None:
        """Wait until the network has taken what waits, or it is lost with the connection."""
        while self._messages.size or self._bulk.size:
            await self._emptied.wait()

    def close(self, reason: str) -> None:
        """Close the link at once; what waits is lost. It is dialled anew by itself."""
        if self._connection is not None:
            self._say(reason)
            self._connection.close()
            self._connection = None
            self._messages, self._bulk, self._half_sent = Queue(), Queue(), None
            self._emptied.set()

    def nudge(self) -> None:
        """The peer has just dialled us: if there is no link to it, dial it now, not later."""
        self._nudged.set()

    async def run(self) -> Never:
        """Keep the link up."""
        failures = 0
        while True:
            try:
                connection, decoder, rest = await dial(
                    self._network, self._address, self.hello, self._limits
                )
            except CONNECTION_ERRORS as error:
                self.refused = isinstance(error, ConnectionRefusedError)
                refusal = isinstance(error, HandshakeError)
                self._say(describe(error), logging.WARNING if refusal else logging.INFO)
            else:
                self.refused = False
                up_since = trio.current_time()
                await self._keep(connection, unasked=bool(rest or decoder.pending))
                if trio.current_time() - up_since > self._limits.backoff_longest:
                    failures = 0
            failures += 1
            self._nudged = trio.Event()
            with trio.move_on_after(self._limits.pause(failures, self._rng)):
                await self._nudged.wait()
                failures = 0

    async def _keep(self, connection: Connection, *, unasked: bool) -> None:
        """Use one connection until it ends."""
        self._connection = connection
        self._filled = trio.Event()
        self._said = ""
        log.info("link to member %d at %s is up", self.hello.called_member_id, self._address)
        try:
            self._on_up()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._empty_queue, connection)
                if unasked or await self._sends_more(connection):
                    self.close("it sent something over a link that is ours to send on")
                else:
                    self.close("it closed the link")
                nursery.cancel_scope.cancel()
        finally:
            self.close("the member stops")

    async def _sends_more(self, connection: Connection) -> bool:
        """Wait for the connection's end, or for what must not come."""
        try:
            return bool(await connection.receive(1))
        except CONNECTION_ERRORS as error:
            self.close(describe(error))
            return False

    async def _empty_queue(self, connection: Connection) -> None:
        try:
            while True:
                await self._filled.wait()
                await connection.wait_writable()
                self._flush(connection)
        except CONNECTION_ERRORS as error:
            self.close(describe(error))  # which ends _sends_more too

    def _flush(self, connection: Connection) -> None:
        """Hand to the network what it takes, within bounds; other tasks want their turn."""
        sent = 0
        while sent < FLUSH_BYTES:
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
                if taken:
                    self._half_sent = queue
                return
            self._half_sent = None

    def _say(self, reason: str, level: int = logging.INFO) -> None:
        """Log why there is no link, once until the reason changes or the link is up again."""
        if reason != self._said:
            self._said = reason
            member = self.hello.called_member_id
            log.log(level, "no link to member %d at %s: %s", member, self._address, reason)
