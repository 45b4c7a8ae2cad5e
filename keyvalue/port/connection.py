"""One client's socket: reading, sending, back-pressure, and the end of the connection.

A connection is an object, not a task: thousands of tasks would cost a wake-up for each command. The
listener calls :meth:`Connection.on_event` when epoll reports the socket. What the bytes mean is
decided by its :class:`~..conversation.conversation.Conversation`.

End of input
    A client that has sent everything may close its sending half and wait for the replies. For TCP
    that looks the same as a client that has closed its socket. So the end of the stream is not a
    hang-up. Everything that was read is executed and answered, and then the connection is closed.
    Half a command, or a transaction without its EXEC, is dropped.

    A reset is a hang-up: it withdraws a request that was not sent yet. A client that vanishes
    without a reset while its request waits is found by TCP's keepalive.

Back-pressure
    While a request is under way, input is read ahead only up to `input_bytes`. Replies that the
    socket does not take are kept. A client may write all its commands before it reads the first
    reply, so reading goes on until `output_bytes` of replies wait. From there on the connection is
    *congested*: its commands are neither read nor executed until the client reads again.

    There is a budget for all clients together as well. Once half of it is used, a connection is
    congested as soon as any reply waits. At the limit, the client that has read nothing for longest
    is closed. Any client that reads nothing for :data:`STALLED_SECONDS` is closed, too.

Closing in order
    Closing a socket with unread bytes resets the connection, and a reset may overtake the last
    replies. We end connections after a broken protocol, and when the member stops. Then only our
    direction is closed at first. What the client still sends is read and dropped until it closes
    as well, or until its time is up.
"""

import fcntl
import logging
import select
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from ...errors import OversizedRequestError
from ...node.requests.request import Request, RequestKind
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..conversation.conversation import Conversation
from ..native.resp_reader import count_untrusted
from ..protocol.parser import BEFORE_LOGIN, CommandParser
from ..tls.socket import TlsSocket

__all__ = ["RECEIVE_BYTES", "STALLED_SECONDS", "WAIT_READABLE", "Connection", "Poller"]

RECEIVE_BYTES: Final = 64 * 1024
"""Read from one client in one turn, at most. Smaller, and a long pipeline takes more turns; larger,
and other clients wait longer."""

STALLED_SECONDS: Final = 60.0
"""A client that reads none of its replies for this long is closed. Shorter, and a client that was
only suspended for a moment loses its connection; longer, and its replies use up the budget of all
clients."""

_READ: Final = select.EPOLLIN
_INT_BYTES: Final = struct.calcsize("i")

WAIT_READABLE: Final = _READ
"""The events of a new connection. epoll reports a reset in any case."""

_log = logging.getLogger("quorate.keyvalue")


class Poller(Protocol):
    """The listener, as a connection sees it."""

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
    """A client's connection, from the socket to the conversation.

    Args:
        sock: non-blocking, with TLS or without; the connection owns it.
        client: its state, as commands see it.
        parser: parses what the client sends.
        port: shared by all connections.
        poller: has registered the socket for :data:`WAIT_READABLE`.

    Attributes:
        congested: too many replies wait, so no commands are executed.
        fileno: of the socket; -1 once it is closed.
        read_at: when the client was last seen to read, if replies wait (trio's clock).
    """

    __slots__ = (
        "_client_done",
        "_conversation",
        "_events",
        "_input_bytes",
        "_kernel_bytes",
        "_lingering",
        "_no_more_input",
        "_outgoing",
        "_outgoing_bytes",
        "_poller",
        "_port",
        "_receive",
        "_send",
        "_socket",
        "client",
        "congested",
        "fileno",
        "read_at",
    )

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        client: ClientState,
        parser: CommandParser,
        port: PortState,
        poller: Poller,
    ) -> None:
        self.fileno = sock.fileno()
        self.client = client
        self._socket = sock
        # Bound once: each command needs both.
        self._receive = sock.recv
        self._send = sock.send
        self._port = port
        self._poller = poller
        self._events = WAIT_READABLE
        self._conversation = Conversation(client, parser, port, self)
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._input_bytes = 0  # our share in the port's count of unfinished input
        self._kernel_bytes: int = 0  # in the kernel, not acknowledged, when we last looked
        # The three steps of an end in order: we read no more; our direction is closed; the client
        # has closed its direction (which may also come first).
        self._no_more_input = self._lingering = self._client_done = False
        self.congested = False
        self.read_at = 0.0

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """Bytes received and not executed yet; bytes of replies not sent yet."""
        return self._conversation.waiting_bytes, self._outgoing_bytes

    @property
    def unfinished_bytes(self) -> int:
        """About how much memory `refuse` would free."""
        return self._conversation.unfinished_bytes[0]

    def doubt(self) -> None:
        """See `ClientConnection`."""
        self._conversation.doubt()
        if self.client.watches:
            self._port.resume_later(self.client.watches.check_again)

    @property
    def has_room(self) -> bool:
        """See `ClientConnection`."""
        return not self._outgoing and self.fileno >= 0

    def push(self, data: bytes) -> None:
        """See `ClientConnection`."""
        # No reply is in the making: the conversation has handed over all, and nobody else runs now.
        if self.fileno >= 0 and not self._lingering:
            self._send_reply(data)
            if self._outgoing:
                # A push may come long after the latest turn.
                self.read_at = max(self.read_at, trio.current_time())

    def refuse(self, error: OversizedRequestError) -> None:
        """Give up the unfinished input, reply with the error, and close in order."""
        self._conversation.refuse(error)
        self._count_input()

    def close(self) -> None:
        """Close at once; a request that was not sent yet is withdrawn."""
        if self.fileno < 0:
            return
        # First: it withdraws the request that was not sent yet, so that it never takes effect.
        self._conversation.end()
        # Before the descriptor is closed: the kernel may give its number to the next client.
        self._poller.forget(self)
        self.fileno = -1
        self._socket.close()
        self._outgoing.clear()
        # What this client held no longer counts against the budgets of all.
        self._port.unread_bytes -= self._outgoing_bytes
        self._port.unfinished_bytes -= self._input_bytes
        self._outgoing_bytes = self._input_bytes = 0

    def finish(self) -> None:
        """Read no more, answer what was read, and then close in order."""
        self._no_more_input = True
        self._wait_for(self._events & ~_READ)
        self._finish_if_done()

    def on_event(self, events: int) -> bool:
        """Handle events of the socket.

        Args:
            events: as epoll reported them; they may be over.

        Returns:
            Whether plain commands were read and only joined with those of other clients.
        """
        # Send first: that may end the congestion, and then the input is wanted.
        if events & select.EPOLLOUT and self.fileno >= 0:
            self._drain()
        if self.fileno < 0:
            return False
        if events & self._events & _READ:
            return self.on_readable()  # with EPOLLHUP as well: what was sent before is still read
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
        # Not while replies wait: the joined request's reply would have to queue behind them.
        if count and not self._outgoing and self._conversation.join(data, count):
            return True
        if not self.client.closing:
            self.client.seen_at = self._port.now
            self._feed(data)
        return False

    def on_readable(self) -> bool:
        """Read once, and execute what is complete; returns what `on_data` does."""
        # Once, not until the socket is empty: the other clients of the turn wait. The epoll is
        # level-triggered, so what is left is reported again.
        try:
            data = self._receive(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        if data:
            return not self._lingering and self.on_data(data, count_untrusted(data))
        self._client_done = True  # nothing is left to read, so closing loses no reply
        self.finish()
        return False

    def _feed(self, data: bytes) -> None:
        port, conversation = self._port, self._conversation
        port.counters.input_bytes += len(data)
        conversation.feed(data)
        # TCP does the rest: its window fills, and the client has to wait.
        if conversation.held_bytes > self._most_input:
            self._wait_for(self._events & ~_READ)
        self._count_input()

    @property
    def _most_input(self) -> int:
        """How many bytes are read ahead."""
        most = self._port.limits.input_bytes
        return most if self.client.logged_in else min(most, BEFORE_LOGIN.request_bytes)

    def _count_input(self) -> None:
        """Report the waiting input to the port, which may refuse this client because of it."""
        # Only the difference is reported, so the port's sum needs no walk over all clients.
        unfinished, under_way = self._conversation.unfinished_bytes
        size = unfinished + under_way
        if size != self._input_bytes and self.fileno >= 0:
            more, self._input_bytes = size - self._input_bytes, size
            self._port.count_input(more)

    def _wait_for(self, events: int) -> None:
        # A change is a system call, so it is made only if there is one.
        if events != self._events and self.fileno >= 0:
            self._events = events
            self._poller.watch(self.fileno, events)

    # Replies ---------------------------------------------------------------------------------

    def settle(self, reply: bytes) -> bool:
        """See `JoinedClient`."""
        # Any other events mean that the client is congested, finishing, or read no further.
        usual = self._events == WAIT_READABLE and not self._outgoing
        if not (usual and self._conversation.settle()):
            return False
        self._send_reply(reply)
        return True

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """See `JoinedClient`."""
        return self._conversation.take_over(kind, payload, flags, count)

    def check_again(self) -> Sequence[Request]:
        """See `JoinedClient`."""
        return self._conversation.check_again()

    def deliver(self) -> None:
        """Send the gathered replies; the conversation waits now, or is over."""
        # One send for all replies of a pipeline.
        replies = self._conversation.replies
        if replies:
            data = replies[0] if len(replies) == 1 else b"".join(replies)
            replies.clear()
            self._send_reply(data)
        if self.fileno < 0:
            return
        if self.client.closing or self._no_more_input:
            self._wait_for(self._events & ~_READ)
            self._finish_if_done()
        elif not self._events & _READ:
            self._read_on()
        if self._input_bytes:  # some of it was executed
            self._count_input()

    def _read_on(self) -> None:
        """Read again, unless input is held, replies wait, or the end is near."""
        held, ending = self._conversation.held_bytes, self.client.closing or self._no_more_input
        if not (ending or self.congested) and held <= self._most_input:
            self._wait_for(self._events | _READ)

    def _send_reply(self, data: bytes) -> None:
        size = len(data)
        self._port.counters.output_bytes += size
        sent = 0
        # Usually the socket takes everything, and epoll need not be asked. But nothing may overtake
        # replies that wait already.
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
        # From now on the client is watched: see `close_if_stalled`.
        if not self._outgoing:
            self.read_at = port.now
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        port.unread_bytes += len(data)
        events = self._events | select.EPOLLOUT
        if self._has_enough():
            self.congested = True  # the conversation sees it before its next command
            events &= ~_READ
        self._wait_for(events)
        if port.unread_bytes > port.limits.all_output_bytes:
            port.close_slowest()  # it may be this very connection

    def _has_enough(self) -> bool:
        """Whether the client has to read before more of its commands are executed."""
        # From half of the common budget on, slow clients are slowed down before any must be closed.
        limits = self._port.limits
        crowded = self._port.unread_bytes > limits.all_output_bytes // 2
        # Nor does a client that has to log in first get more than its socket takes.
        none = crowded or not self.client.logged_in
        return self._outgoing_bytes > (0 if none else limits.output_bytes)

    def _drain(self) -> None:
        """Send replies that the socket did not take before."""
        try:
            while self._outgoing:
                data = self._outgoing[0]
                sent = self._send(data)
                self._outgoing_bytes -= sent
                self._port.unread_bytes -= sent
                self.read_at = self._port.now
                if sent < len(data):  # the socket is full again
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
            self.client.watches.resume()
        # The held commands first: their replies may congest the connection again.
        if self.congested and not self._has_enough():
            self.congested = False
            self._conversation.resume()
            self._read_on()
        self._finish_if_done()

    def close_if_stalled(self, now: float) -> None:
        """Close the connection if its client reads nothing; to be called from time to time."""
        if not self._outgoing:
            return
        # The client may read slowly, too little at a time to make the socket writable again. So the
        # kernel's queue is looked at: if it has changed, the client has read.
        answer = fcntl.ioctl(self.fileno, termios.TIOCOUTQ, bytes(_INT_BYTES))
        kernel_bytes = int.from_bytes(answer, sys.byteorder)
        if kernel_bytes != self._kernel_bytes:
            self._kernel_bytes, self.read_at = kernel_bytes, now
        elif now - self.read_at >= STALLED_SECONDS:
            self._port.close_slow(self, f"read nothing for {now - self.read_at:.0f} s")

    def _finish_if_done(self) -> None:
        """Close if this is to end and the last reply is sent."""
        closing, failed = self.client.closing, self._conversation.failed
        # Not yet: replies wait, or the client has not closed its side.
        if self._outgoing or (self._lingering and not self._client_done):
            return
        # QUIT closes at once: the client expects it. After a broken protocol bytes may still be on
        # their way to us, and a plain close would reset the connection.
        if closing and (self._client_done or not failed):
            self.close()
        elif closing or (self._no_more_input and self._conversation.idle):
            self._end_in_order()

    def _end_in_order(self) -> None:
        if self._client_done:
            self.close()
            return
        self._conversation.end()
        self._lingering = True  # from now on input is read and dropped
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._wait_for(WAIT_READABLE)
        self._poller.linger(self)
