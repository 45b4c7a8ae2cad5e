"""Streams: connections that carry frames in both directions, and how one is opened.

Every connection begins with a `Hello` from the dialling side and a `HelloReply` from the other. A
catch-up, replay, snapshot or backup then goes over a `FrameStream`. It has flow control: `send`
returns once the network has taken the frame. So a slow reader holds up its writer, and nothing
piles up in this process.

A stream may end between two frames. An end inside a frame is an error.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import attrs
import trio

from ..errors import HandshakeError, WireError
from .authentication import PeerSecurity
from .fields import NULL_VALUE, HelloStatus
from .identity import Identity
from .limits import STREAM_JOIN_BYTES, STREAM_JOIN_FRAMES, STREAM_RECEIVE_BYTES, LinkLimits
from .messages import Challenge, ChallengeResponse, Hello, HelloReply, Message
from .network import Address, Connection, Network
from .wire import HELLO_FRAME_BYTES, FrameDecoder, encode

CONNECTION_ERRORS: Final = (
    OSError,
    WireError,
    HandshakeError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)
"""What may happen to a connection at any time. It ends the connection, never the member."""


HELLOS: Final = (Hello, HelloReply, Challenge, ChallengeResponse)
"""Messages that appear only at the beginning of a connection."""


def describe(error: Exception) -> str:
    """Return the text of an error for a log; some of trio's errors have none."""
    # Its own text is about tasks and file descriptors.
    if isinstance(error, trio.ClosedResourceError):
        return "this member closed it"
    return str(error) or type(error).__name__


def printable(text: str) -> str:
    """Return what a stranger has sent as it may stand in a log."""
    # A line break would let the stranger write lines of its own, and an escape sequence could
    # change what a terminal shows.
    return "".join(each if each.isprintable() else "?" for each in text)


class FrameStream:
    """A connection after its hello, message by message.

    One task at a time may send, and one may receive. Close it, or use it as an async context
    manager. Closing is immediate. Frames that `send` returned from are still delivered, unless
    bytes from the other end stay unread here: the kernel then resets the connection. So the side
    that has everything it wants closes first.

    Args:
        connection: belongs to the stream from now on.
        decoder: with what it already has of the next frame.
        received: messages that came with the hello.

    Attributes:
        heard_at: when bytes last arrived, even a part of a message (trio's clock).
        principal: name of the other end if it has dialled us, for an `Authoriser`.
    """

    principal = ""

    def __init__(
        self,
        connection: Connection,
        decoder: FrameDecoder | None = None,
        received: list[Message] | None = None,
    ) -> None:
        self.peer = connection.peer
        self._connection = connection
        # The decoder of the hello goes on: it may hold the beginning of the next frame.
        self._decoder = decoder or FrameDecoder()
        self._received: deque[Message] = deque(received or [])
        self._closed = False
        self.heard_at = trio.current_time()

    async def send(self, message: Message) -> None:
        """Send a message; return once the network has taken all of it.

        A cancelled call closes the stream, since half a frame may be out.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: this end closed it.
        """
        await self.send_frame(encode(message))

    async def send_many(self, messages: Iterable[Message]) -> None:
        """Send messages in order, small ones together; otherwise like `send`.

        After a cancelled call nobody knows how many were sent: close the stream.
        """
        # Encoded one by one as they are sent, so a long catch-up is never in memory as a whole.
        for frames in joined(map(encode, messages)):
            await self.send_frame(frames)

    async def send_frame(self, frame: bytes) -> None:
        """Send a message that is already encoded; otherwise like `send`."""
        # The network may take everything at once. A long transfer must still let other tasks run.
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        try:
            await send_all(self._connection, frame)
        except BaseException:
            # Half a frame may be out. Whatever came behind it, the reader would take for the rest
            # of it.
            self.close()
            raise

    async def receive(self) -> Message | None:
        """Wait for the next message; None if the other end closed the stream between two frames.

        Raises:
            WireError: the bytes are no valid frame, or the stream ended inside one.
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: this end closed it.
        """
        # Nothing has to be waited for, but a reader of many small messages must let other tasks
        # run.
        if self._received:
            await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        while not self._received:
            data = await self._connection.receive(STREAM_RECEIVE_BYTES)
            # For each receive, not each message: a large message may be under way for long.
            self.heard_at = trio.current_time()
            if not data:
                # The other end died, or lost its way. None would pass for a complete stream.
                if self._decoder.pending:
                    raise WireError(f"{self.peer} ended the stream inside a frame")
                return None
            self._received.extend(self._decoder.feed(data))
        return self._next()

    def receive_nowait(self) -> Message | None:
        """Return the next message if it arrived together with the one before, else None.

        Raises:
            WireError: it is a hello.
            trio.ClosedResourceError: this end closed the stream.
        """
        if self._closed:
            raise trio.ClosedResourceError
        # Only what is decoded already. Reading the socket here would let a caller go on and on
        # without ever yielding to other tasks.
        return self._next() if self._received else None

    def _next(self) -> Message:
        message = self._received.popleft()
        # It would change the identity of the other end after that was judged.
        if isinstance(message, HELLOS):
            raise second_hello(message, self.peer)
        return message

    def close(self) -> None:
        """Close at once; idempotent. A waiting call ends with ClosedResourceError."""
        self._closed = True
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join frames while they are small together: each send has its price."""
    small: list[bytes] = []
    size = 0
    for frame in frames:
        if small and (size + len(frame) > STREAM_JOIN_BYTES or len(small) == STREAM_JOIN_FRAMES):
            yield b"".join(small)
            small, size = [], 0
        small.append(frame)
        size += len(frame)
    if small:
        yield b"".join(small)


async def send_all(connection: Connection, frame: bytes) -> None:
    """Send all of `frame`, waiting as often as needed; raises what the connection raises."""
    # A view, so that what is left of a large frame is not copied after each partial send.
    rest = memoryview(frame)
    while True:
        rest = rest[connection.send_nowait(rest) :]
        if not rest:
            return
        await connection.wait_writable()


def second_hello(message: Message, peer: str) -> WireError:
    """Return the error for a hello that is not the first message."""
    return WireError(f"{peer} sent a {type(message).__name__} in the middle")


async def first_message(
    connection: Connection,
) -> tuple[Message | None, FrameDecoder, list[Message]]:
    """Wait for the first frame of a connection, which has to be small.

    Returns:
        The message, or None if the other end closed without one; the decoder, with what it has of
        the next frame; and messages that arrived together with the first.

    Raises:
        WireError: there is no valid frame, or it is too large.
        trio.BrokenResourceError: the connection is broken.
    """
    # Small: the other end is a stranger yet. A length that it claims must not make us buffer
    # megabytes.
    decoder = FrameDecoder(HELLO_FRAME_BYTES)
    messages = await _more(connection, decoder)
    return (messages[0] if messages else None), decoder, messages[1:]


async def next_message(
    connection: Connection, decoder: FrameDecoder, rest: list[Message]
) -> tuple[Message | None, list[Message]]:
    """Wait for the next frame of a connection whose other end is a stranger yet.

    Args:
        connection: to read from.
        decoder: with what it has of the frame.
        rest: messages that arrived together with the one before.

    Returns:
        The message, or None if the other end closed; and messages that arrived together with it.

    Raises:
        WireError: there is no valid frame, or it is too large.
        trio.BrokenResourceError: the connection is broken.
    """
    if not rest:
        decoder.limit(HELLO_FRAME_BYTES)
        rest = await _more(connection, decoder)
    return (rest[0] if rest else None), rest[1:]


async def _more(connection: Connection, decoder: FrameDecoder) -> list[Message]:
    """Wait for messages; none if the other end closed."""
    while True:
        data = await connection.receive(HELLO_FRAME_BYTES)
        if not data:
            return []
        # The other end may send more at once; its frames must not be lost with this decoder.
        if messages := decoder.feed(data):
            return messages


async def dial(
    network: Network,
    address: Address,
    hello: Hello,
    limits: LinkLimits,
    security: PeerSecurity | None = None,
) -> tuple[Connection, FrameDecoder, list[Message]]:
    """Connect, say hello, and wait for acceptance; arguments and errors as `open_stream`.

    Returns:
        The connection, its decoder, and messages that arrived with the answer.
    """
    # Two timeouts: the hello has to wait for the peer's event loop, the dial only for its kernel.
    with trio.fail_after(limits.dial_seconds):
        connection = await network.connect(address)
    introduced = await introduce(connection, address, hello, limits, security or PeerSecurity())
    return connection, *introduced


async def introduce(
    connection: Connection,
    address: Address,
    hello: Hello,
    limits: LinkLimits,
    security: PeerSecurity,
) -> tuple[FrameDecoder, list[Message]]:
    """Say hello on a new connection, and wait for acceptance; it is closed if there is none.

    Arguments and errors as `open_stream`.

    Returns:
        The connection's decoder, and messages that arrived with the answer.
    """
    try:
        with trio.fail_after(limits.hello_seconds):
            return await _introduce(connection, address, hello, security)
    except BaseException:
        # Also when cancelled by the timeout: nobody else has the connection yet.
        connection.close()
        raise


async def _introduce(
    connection: Connection, address: Address, hello: Hello, security: PeerSecurity
) -> tuple[FrameDecoder, list[Message]]:
    """Say hello on a new connection, prove who we are, and judge who answers."""
    supplier, challenged = security.supplier, False
    with _naming(address):
        supplier.check_called(hello, connection.identity)
    # New ones for each connection, though a link keeps its hello.
    if credentials := supplier.credentials():
        hello = attrs.evolve(hello, credentials=credentials)
    await send_all(connection, encode(hello))
    reply, decoder, rest = await first_message(connection)
    if isinstance(reply, Challenge):
        with _naming(address):
            response = supplier.on_challenge(hello, reply.challenge)
        answer = ChallengeResponse(reply.correlation_id, reply.session_id, response)
        await send_all(connection, encode(answer))
        reply, rest = await next_message(connection, decoder, rest)
        challenged = True
    if isinstance(reply, HelloReply):
        reply = attrs.evolve(reply, reason=printable(reply.reason))
        # First: even a refusal counts only if it comes from a member. One of them would have us
        # believe that we were removed.
        with _naming(address, f", and refused us: {reply.reason}" if reply.reason else ""):
            supplier.check_reply(reply, connection.identity, challenged=challenged)
    _judge_reply(reply, hello, address, connection.identity)
    return decoder, rest


@contextmanager
def _naming(address: Address, behind: str = "") -> Generator[None]:
    """Name the address in front of the text of an error in this block."""
    try:
        yield
    except HandshakeError as error:
        raise HandshakeError(f"{address}: {error}{behind}") from None


async def open_stream(
    network: Network,
    address: Address,
    hello: Hello,
    limits: LinkLimits | None = None,
    security: PeerSecurity | None = None,
) -> FrameStream:
    """Open a stream: connect, say hello, and wait for acceptance.

    Args:
        network: makes the connection.
        address: to dial.
        hello: its ``called_member_id``, unless -1, is the member that must answer.
        limits: with the timeouts.
        security: proves who we are, and judges who answers; open unless given.

    Raises:
        HandshakeError: the other end refused us, or is not the member that was called.
        WireError: it does not speak our protocol.
        OSError: it can't be reached; ConnectionRefusedError if nobody listens.
        trio.BrokenResourceError: the connection broke, or ended before the answer.
        trio.TooSlowError: connecting, or the answer, took too long.
    """
    made = await dial(network, address, hello, limits or LinkLimits(), security)
    return FrameStream(*made)


def _judge_reply(
    reply: Message | None, hello: Hello, address: Address, identity: Identity | None
) -> None:
    if reply is None:
        # A listener with TLS does just that if we have none.
        hint = "" if identity else "; if members have certificates, we need one, too"
        raise trio.BrokenResourceError(f"{address} closed the connection without an answer{hint}")
    if not isinstance(reply, HelloReply):
        raise WireError(f"{address} answered the hello with a {type(reply).__name__}")
    # Before the id is compared: a refusal says more than "another member".
    if reply.status is not HelloStatus.ACCEPTED:
        text = f"{address} (member {reply.member_id}) refused us: {reply.reason}"
        raise HandshakeError(text, reply.status, reply.reason)
    # Another member listens at this address. Taken for the one that was called, it would count
    # twice.
    if hello.called_member_id not in {NULL_VALUE, reply.member_id}:
        raise HandshakeError(
            f"{address} is member {reply.member_id}, expected member {hello.called_member_id}"
        )
