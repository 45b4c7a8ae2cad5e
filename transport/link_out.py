"""Our link to one peer: dialled again and again, with a queue in front of it.

A frame is offered to the network at once. What the network does not take waits in a queue of
bounded size, which one task empties as the network becomes ready. When the queue is full a message
is dropped: senders of consensus messages repeat themselves; a forwarded reply is lost. The live
log can't: a frame of it that does not fit closes the link, the peer sees its stream end, and asks
for the log anew.

Nothing but the answer to our hello ever comes back over this connection, so waiting to receive is
waiting for its end.
"""

import logging
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Never

import trio

from ..errors import HandshakeError
from .limits import FLUSH_BYTES, JOIN_BYTES, LinkLimits
from .messages import (
    Hello,
)
from .network import Address, Connection, Network
from .streams import WEATHER, describe, dial

log = logging.getLogger("quorate.transport")


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
        self._hello = hello
        self._on_up = on_up
        self._limits = limits
        self._rng = rng
        self._connection: Connection | None = None
        self._queue: deque[bytes | memoryview] = deque()
        self._queued = 0  # bytes in the queue
        self._filled = trio.Event()  # the queue has something
        self._nudged = trio.Event()  # the peer has shown that it is there
        self._said = ""  # the last reason that was logged

    @property
    def connected(self) -> bool:
        """Whether a connection is there to send on."""
        return self._connection is not None

    def send(self, frame: bytes) -> bool:
        """Send a frame, now or from the queue; False if there is no link, or no room."""
        connection = self._connection
        if connection is None:
            return False
        rest: bytes | memoryview = frame
        if self._queue:
            if self._queued + len(frame) > self._limits.queue_bytes:
                return False
        else:
            try:
                taken = connection.send_nowait(frame)
            except WEATHER as error:
                self.close(describe(error))
                return False
            if taken == len(frame):
                return True
            rest = memoryview(frame)[taken:]
            self._filled.set()
        self._queue.append(rest)
        self._queued += len(rest)
        return True

    def close(self, reason: str) -> None:
        """Close the link at once; what waits in the queue is lost. It is dialled anew by itself."""
        if self._connection is not None:
            self._say(reason)
            self._connection.close()
            self._connection = None
            self._queue.clear()
            self._queued = 0

    def nudge(self) -> None:
        """The peer has just dialled us: if there is no link to it, dial it now, not later."""
        self._nudged.set()

    async def run(self) -> Never:
        """Keep the link up."""
        failures = 0
        while True:
            try:
                connection, decoder, rest = await dial(
                    self._network, self._address, self._hello, self._limits
                )
            except WEATHER as error:
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
        log.info("link to member %d at %s is up", self._hello.called_member_id, self._address)
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
        except WEATHER as error:
            self.close(describe(error))
            return False

    async def _empty_queue(self, connection: Connection) -> None:
        try:
            while True:
                await self._filled.wait()
                await connection.wait_writable()
                self._flush(connection)
        except WEATHER as error:
            self.close(describe(error))  # which ends _sends_more too

    def _flush(self, connection: Connection) -> None:
        """Hand to the network what it takes, within bounds; other tasks want their turn."""
        sent = 0
        while self._queue and sent < FLUSH_BYTES:
            chunk = self._next_chunk()
            taken = connection.send_nowait(chunk)
            self._queued -= taken
            sent += taken
            if taken < len(chunk):
                self._queue.appendleft(memoryview(chunk)[taken:])
                return
        if not self._queue:
            self._filled = trio.Event()

    def _next_chunk(self) -> bytes | memoryview:
        """Take the first frame from the queue, joined with more if they are small."""
        chunk = self._queue.popleft()
        if len(chunk) >= JOIN_BYTES or not self._queue:
            return chunk
        chunks, size = [chunk], len(chunk)
        while self._queue and size < JOIN_BYTES:
            chunks.append(self._queue.popleft())
            size += len(chunks[-1])
        return b"".join(chunks)

    def _say(self, reason: str, level: int = logging.INFO) -> None:
        """Log why there is no link, once until the reason changes or the link is up again."""
        if reason != self._said:
            self._said = reason
            member = self._hello.called_member_id
            log.log(level, "no link to member %d at %s: %s", member, self._address, reason)
