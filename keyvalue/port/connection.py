"""One client's socket: what comes in, what goes out, and what happens when that is slow.

A connection is an object, not a task. :mod:`.listener` calls :meth:`Connection.on_event` when the
socket is ready. Its :class:`~.conversation.Conversation` knows what the bytes mean.

**End of input.** A client that has sent everything may close its sending half and wait for the
replies. TCP does not tell that from a client that has closed its socket. So the end of the stream
is not a hang-up: what was read before it is done and answered, and then the connection is closed;
half a command, or a transaction without its EXEC, is dropped. A reset is a hang-up, whether it
comes by itself or in answer to a reply: it withdraws a request that was not sent yet. A client that
is gone without a word, while its request waits for long, is found by TCP's keepalive.

**Back-pressure.** While a request is under way the client is read ahead only so far. Replies that
the socket does not take are kept and sent when it does. Reading goes on until `output_bytes` of
them wait, because a client may write all its commands before it reads the first reply. From there
on the connection is *congested*: its commands are neither read nor done until the client has read
again. While half of what all clients together may leave unread is used up, a connection is
congested as soon as any reply waits. A client that reads nothing at all for
:data:`STALLED_SECONDS` is closed. So is, at the limit for all clients, the one that has read
nothing for longest.

**Ending in order.** To close a socket with unread bytes resets the connection, and a reset may
overtake the last replies. So when we end it, after a broken protocol or since the member stops,
only our direction is closed at first, and what the client still sends is read and thrown away
until it closes too, or has had its time.
"""

import fcntl
import logging
import select
import socket
import struct
import sys
import termios
from collections import deque
from typing import Final, Protocol

from ...errors import OversizedRequestError
from ...node.requests.gateway import Request, RequestKind
from ..native.resp_reader import count_untrusted
from ..protocol.parser import CommandParser
from .client_state import PortState, Session
from .conversation import Conversation

__all__ = ["RECEIVE_BYTES", "STALLED_SECONDS", "WAIT_READABLE", "Connection", "Poller"]

RECEIVE_BYTES: Final = 64 * 1024
"""Read from one client in one turn, at most. Larger, and one client delays all others; smaller, and
large values need more turns."""

STALLED_SECONDS: Final = 60.0
"""A client that reads no replies for so long is closed. Shorter, and a client that was suspended
for a moment loses its connection; longer, and its replies take memory from other clients."""

_READ: Final = select.EPOLLIN
_INT_BYTES: Final = struct.calcsize("i")

WAIT_READABLE: Final = _READ
"""What a new connection waits for. A reset is reported always."""

_log = logging.getLogger("quorate.keyvalue")


class Poller(Protocol):
    """Calls :meth:`Connection.on_event`."""

    def watch(self, fileno: int, events: int) -> None:
        """Change the events that a connection waits for."""
        ...

    def linger(self, connection: "Connection") -> None:
        """A connection has sent its last reply, and waits for the client to close."""
        ...

    def forget(self, connection: "Connection") -> None:
        """A connection is about to close its socket."""
        ...


class Connection:
    """A client's connection.

    Args:
        client: the socket, non-blocking; the connection owns it.
        session: what is remembered of the client.
        parser: for what it sends.
        port: what it shares with the others.
        poller: it has registered the socket for :data:`WAIT_READABLE`.

    Attributes:
        congested: unread replies have reached the limit, so no more commands are executed.
        read_at: when the client was last seen to read, if replies wait.
    """

    __slots__ = (
        "_conversation",
        "_ended",
        "_events",
        "_finishing",
        "_input_bytes",
        "_kernel_bytes",
        "_lingering",
        "_outgoing",
        "_outgoing_bytes",
        "_poller",
        "_port",
        "_receive",
        "_send",
        "_socket",
        "congested",
        "fileno",
        "read_at",
        "session",
    )

    def __init__(
        self,
        client: socket.socket,
        session: Session,
        parser: CommandParser,
        port: PortState,
        poller: Poller,
    ) -> None:
        self.fileno = client.fileno()
        self.session = session
        self._socket = client
        self._receive = client.recv
        self._send = client.send
        self._port = port
        self._poller = poller
        self._events = WAIT_READABLE
        self._conversation = Conversation(session, parser, port, self)
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._input_bytes = 0  # as the port has counted it
        self._kernel_bytes: int = 0  # sent, and not acknowledged when we last looked
        self._finishing = self._lingering = self._ended = self.congested = False
        self.read_at = 0.0

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """Bytes received and not done yet, and replies not sent yet."""
        return self._conversation.waiting_bytes, self._outgoing_bytes

    @property
    def unfinished_bytes(self) -> int:
        """About what the input takes that could be given up."""
        return self._conversation.unfinished_bytes[0]

    def refuse(self, error: OversizedRequestError) -> None:
        """Give up the unfinished input; then comes the error, and the end in order."""
        self._conversation.refuse(error)
        self._count_input()

    def close(self) -> None:
        """End it at once; a request that was not sent yet is withdrawn."""
        if self.fileno < 0:
            return
        self._conversation.end()
        self._poller.forget(self)
        self.fileno = -1
        self._socket.close()
        self._outgoing.clear()
        self._port.unread_bytes -= self._outgoing_bytes
        self._port.unfinished_bytes -= self._input_bytes
        self._outgoing_bytes = self._input_bytes = 0

    def finish(self) -> None:
        """Read no more, answer what was read, and then end it in order."""
        self._finishing = True
        self._wait_for(self._events & ~_READ)
        self._finish_if_done()

    def on_event(self, events: int) -> bool:
        """Handle events of the socket.

        Args:
            events: as epoll reported them; they may be over.

        Returns:
            Whether plain commands were read and only joined with those of other clients.
        """
        if events & select.EPOLLOUT and self.fileno >= 0:
            self._drain()
        if self.fileno < 0:
            return False
        if events & self._events & _READ:
            return self.on_readable()
        if events & ~(_READ | select.EPOLLOUT):
            self.close()
        return False

    def on_data(self, data: bytes, count: int) -> bool:
        """Take data that was read from the socket.

        Args:
            data: not empty.
            count: `resp_reader.count_untrusted` of it.

        Returns:
            Whether it was only joined with what other clients have sent.
        """
        if count and not self._outgoing and self._conversation.share(data, count):
            return True
        if not self.session.closing:
            self.session.seen_at = self._port.now
            self._feed(data)
        return False

    def on_readable(self) -> bool:
        """Read once, and execute what is complete; returns what `on_data` does."""
        try:
            data = self._receive(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        if data:
            return not self._lingering and self.on_data(data, count_untrusted(data))
        self._ended = True  # nothing is left to read, so closing loses no reply
        self.finish()
        return False

    def _feed(self, data: bytes) -> None:
        port, conversation = self._port, self._conversation
        port.counters.input_bytes += len(data)
        conversation.feed(data)
        if conversation.held_bytes > port.limits.input_bytes:
            self._wait_for(self._events & ~_READ)
        self._count_input()

    def _count_input(self) -> None:
        """Let the port know how much input waits; it may refuse this client upon that."""
        unfinished, under_way = self._conversation.unfinished_bytes
        size = unfinished + under_way
        if size != self._input_bytes and self.fileno >= 0:
            more, self._input_bytes = size - self._input_bytes, size
            self._port.count_input(more)

    def _wait_for(self, events: int) -> None:
        if events != self._events and self.fileno >= 0:
            self._events = events
            self._poller.watch(self.fileno, events)

    # Replies ---------------------------------------------------------------------------------

    def settle(self, reply: bytes) -> bool:
        """See :class:`.joined.Sender`."""
        usual = self._events == WAIT_READABLE and not self._outgoing
        if not (usual and self._conversation.settle()):
            return False
        self._send_reply(reply)
        return True

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """See :class:`.joined.Sender`."""
        return self._conversation.take_over(kind, payload, flags, count)

    def deliver(self) -> None:
        """Send what the conversation has gathered; it is waiting now, or over."""
        replies = self._conversation.replies
        if replies:
            data = replies[0] if len(replies) == 1 else b"".join(replies)
            replies.clear()
            self._send_reply(data)
        if self.fileno < 0:
            return
        if self.session.closing or self._finishing:
            self._wait_for(self._events & ~_READ)
            self._finish_if_done()
        elif not self._events & _READ:
            self._read_on()
        if self._input_bytes:  # there may be less of it now
            self._count_input()

    def _read_on(self) -> None:
        """Read again, unless there is a reason not to."""
        held, ending = self._conversation.held_bytes, self.session.closing or self._finishing
        if not (ending or self.congested) and held <= self._port.limits.input_bytes:
            self._wait_for(self._events | _READ)

    def _send_reply(self, data: bytes) -> None:
        size = len(data)
        self._port.counters.output_bytes += size
        sent = 0
        if not self._outgoing:
            try:
                sent = self._send(data)
            except BlockingIOError:
                pass
            except OSError:
                self.close()
                return
        if sent < size:
            self._defer(memoryview(data)[sent:])

    def _defer(self, data: memoryview) -> None:
        port = self._port
        if not self._outgoing:
            self.read_at = port.now
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        port.unread_bytes += len(data)
        events = self._events | select.EPOLLOUT
        if self._has_enough():
            self.congested = True
            events &= ~_READ
        self._wait_for(events)
        if port.unread_bytes > port.limits.all_output_bytes:
            port.close_slowest()

    def _has_enough(self) -> bool:
        """Whether the client has to read before any more is done for it."""
        limits = self._port.limits
        crowded = self._port.unread_bytes > limits.all_output_bytes // 2
        return self._outgoing_bytes > (0 if crowded else limits.output_bytes)

    def _drain(self) -> None:
        """Go on sending what the socket did not take."""
        try:
            while self._outgoing:
                data = self._outgoing[0]
                sent = self._send(data)
                self._outgoing_bytes -= sent
                self._port.unread_bytes -= sent
                self.read_at = self._port.now
                if sent < len(data):
                    self._outgoing[0] = data[sent:]
                    break
                self._outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if not self._outgoing:
            self._wait_for(self._events & ~select.EPOLLOUT)
        if self.congested and not self._has_enough():
            self.congested = False
            self._conversation.resume()
            self._read_on()
        self._finish_if_done()

    def close_if_stalled(self, now: float) -> None:
        """End it if its client reads nothing; to be called now and then.

        What the socket took was perhaps read since, but too little to make it writable again.
        """
        if not self._outgoing:
            return
        answer = fcntl.ioctl(self.fileno, termios.TIOCOUTQ, bytes(_INT_BYTES))
        kernel_bytes = int.from_bytes(answer, sys.byteorder)
        if kernel_bytes != self._kernel_bytes:
            self._kernel_bytes, self.read_at = kernel_bytes, now
        elif now - self.read_at >= STALLED_SECONDS:
            self._port.close_slow(self, f"read nothing for {now - self.read_at:.0f} s")

    def _finish_if_done(self) -> None:
        """End it if it is to end and the last reply is sent."""
        closing, failed = self.session.closing, self._conversation.failed
        if self._outgoing or (self._lingering and not self._ended):
            return
        if closing and (self._ended or not failed):
            self.close()
        elif closing or (self._finishing and self._conversation.idle):
            self._end_in_order()

    def _end_in_order(self) -> None:
        if self._ended:
            self.close()
            return
        self._conversation.end()
        self._lingering = True
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._wait_for(WAIT_READABLE)
        self._poller.linger(self)
