"""Frames: messages as bytes.

::

    0         4     5        6          8          12
    +---------+-----+--------+----------+----------+--------------+
    | length  |type | version| reserved | checksum | body ...     |
    +---------+-----+--------+----------+----------+--------------+

    length    u32   bytes of the body
    type      u8    class of the message, see `MESSAGE_TYPES`
    version   u8    1
    reserved  u16   0
    checksum  u32   CRC-32C of the eight bytes before it and of the body; in a LogBatch without the
                    record batch, which has its own checksum
    body            see `codec`

All integers are little endian. The checksum covers the header too: several classes have bodies of
one form, and one flipped bit in the type would turn a message into another.

`encode` makes one frame, whose bytes may go to any number of members. `FrameDecoder` takes a stream
in any pieces. Its memory is bounded by the largest frame of the class that the header announces,
and it reserves nothing for bytes that have not arrived. It works in linear time: a large frame is
gathered in a buffer that grows by appending, and leaves it by one copy.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from ..errors import WireError
from . import messages as m
from .codec import HEADER, MAX_BATCH_BYTES, WIRE_VERSION, Codec

HEADER_BYTES: Final = HEADER.size
MAX_FRAME_BYTES: Final = MAX_BATCH_BYTES + (4 << 10)
HELLO_FRAME_BYTES: Final = 4 << 10
"""Largest frame accepted from a connection before its other end has proved who it is. Smaller:
credentials of an embedding program may not fit. Larger: strangers make a member buffer more."""

BARE_HELLO: Final = 1
"""The number of a hello without credentials, whose frame ends before them. It is the hello of
version 3.0, so members of that version understand it, and are understood."""

PLAIN_FORWARD: Final = 120
"""The number of a forwarded request in a cluster without users, whose frame ends before the
principal. It is the one of version 3.0, so members of that version understand it."""

MESSAGE_TYPES: Final[Mapping[int, type[m.Message]]] = MappingProxyType(
    {
        2: m.HelloReply,
        3: m.Hello,  # see BARE_HELLO
        7: m.Challenge,  # 7, 8 and 50 to 80 are the numbers of Aeron Cluster
        8: m.ChallengeResponse,
        50: m.CanvassPosition,
        51: m.RequestVote,
        52: m.Vote,
        53: m.NewLeadershipTerm,
        54: m.AppendPosition,
        55: m.CommitPosition,
        56: m.CatchupPosition,
        57: m.StopCatchup,
        75: m.TerminationPosition,
        76: m.TerminationAck,
        77: m.BackupQuery,
        78: m.BackupResponse,
        79: m.HeartbeatRequest,
        80: m.HeartbeatResponse,
        100: m.StaleLeader,
        101: m.LeadershipCession,
        102: m.Scout,
        103: m.ScoutReply,
        104: m.TimeoutNow,
        105: m.Founding,
        106: m.AdmissionRequest,
        110: m.LogSubscribe,
        111: m.LogJoined,
        112: m.LogBatch,
        121: m.ForwardReply,
        122: m.ForwardRequest,  # see PLAIN_FORWARD
        130: m.ReplayRequest,
        131: m.SnapshotRequest,
        132: m.SnapshotOffer,
        133: m.SnapshotPart,
        140: m.EventsQuery,
        141: m.EventsReport,
    }
)

TYPE_AT: Final = 4
"""Where a frame has the number of its class."""

_CODECS: Final = {
    number: Codec(number, cls, uncovered=cls is m.LogBatch) for number, cls in MESSAGE_TYPES.items()
} | {
    BARE_HELLO: Codec(BARE_HELLO, m.Hello, without="credentials"),
    PLAIN_FORWARD: Codec(PLAIN_FORWARD, m.ForwardRequest, without="principal"),
}


def _encode_hello(message: m.Message) -> bytes:
    assert isinstance(message, m.Hello)
    return _CODECS[3 if message.credentials else BARE_HELLO].encode(message)


def _encode_forward(message: m.Message) -> bytes:
    assert isinstance(message, m.ForwardRequest)
    return _CODECS[122 if message.principal or message.rules else PLAIN_FORWARD].encode(message)


_ENCODERS: Final[Mapping[type[m.Message], Callable[[m.Message], bytes]]] = {
    cls: _CODECS[number].encode for number, cls in MESSAGE_TYPES.items()
} | {m.Hello: _encode_hello, m.ForwardRequest: _encode_forward}


def numbers_of(classes: Iterable[type[m.Message]]) -> frozenset[int]:
    """Return the numbers that frames of these classes have."""
    wanted = frozenset(classes)
    found = {number for number, cls in MESSAGE_TYPES.items() if cls in wanted}
    found |= {BARE_HELLO} if m.Hello in wanted else set()
    return frozenset(found | ({PLAIN_FORWARD} if m.ForwardRequest in wanted else set()))


def encode(message: m.Message) -> bytes:
    """Return the frame of a message.

    Raises:
        ValueError: a field of variable size is longer than a frame allows.
        struct.error: an integer does not fit its field.
    """
    return _ENCODERS[type(message)](message)


def decode_untrusted(frame: bytes | bytearray | memoryview) -> m.Message:
    """Decode exactly one whole frame.

    Raises:
        WireError: this is not one valid frame.
    """
    messages = FrameDecoder().feed(frame)
    if len(messages) != 1 or frame_bytes_untrusted(memoryview(frame)) != len(frame):
        raise WireError(f"{len(frame)} bytes are not exactly one frame")
    return messages[0]


def frame_bytes_untrusted(start: memoryview) -> int:
    """Return the size of the frame that begins with these bytes, a header or more.

    Raises:
        WireError: no frame begins like this.
    """
    length, number, version, reserved, _ = HEADER.unpack_from(start)
    _codec_untrusted(length, number, version, reserved)
    return HEADER_BYTES + int(length)


def _codec_untrusted(length: int, number: int, version: int, reserved: int) -> Codec:
    if version != WIRE_VERSION or reserved:
        raise WireError(
            f"frame version {version}, reserved {reserved:#x}; expected {WIRE_VERSION} and 0"
        )
    try:
        codec = _CODECS[number]
    except KeyError:
        raise WireError(f"no message has the type {number}") from None
    if not codec.smallest <= length <= codec.largest:
        raise WireError(
            f"{codec.name}: a body of {length} bytes; expected {codec.smallest} to {codec.largest}"
        )
    return codec


class FrameDecoder:
    """Turns a stream of bytes into messages, whatever pieces the bytes come in.

    Args:
        first_frame_bytes: most bytes of the first frame; a larger one is refused as soon as its
            header is seen. Later frames may have up to `MAX_FRAME_BYTES`.

    Attributes:
        pending: bytes of a frame that has begun and is not whole; 0 between two frames.
    """

    def __init__(self, first_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._largest = first_frame_bytes
        self._buffer = bytearray()  # the start of a frame that is not whole yet
        self._needed = HEADER_BYTES  # bytes in the buffer before which looking is in vain
        self._dead = False
        self.pending = 0

    def limit(self, most: int) -> None:
        """Refuse the next frame if it is larger than this many bytes, also if it has begun."""
        self._largest = most
        # Its header may have been seen under a larger limit. It is looked at again, with the next
        # bytes: until the frame is whole, they would pile up unseen.
        self._needed = HEADER_BYTES

    def feed(self, data: bytes | bytearray | memoryview) -> list[m.Message]:
        """Take the next bytes of the stream; return the messages that they complete.

        Raises:
            WireError: the stream is invalid from here on, and every later call raises the same.
                Whole messages in the same piece are lost: close such a connection, whose last
                messages may be missing anyway.
        """
        if self._dead:
            raise WireError("the stream was invalid before; close this connection")
        try:
            return self._feed_untrusted(data)
        except WireError:
            self._dead = True
            self._buffer = bytearray()
            self.pending = 0
            raise

    def _feed_untrusted(self, data: bytes | bytearray | memoryview) -> list[m.Message]:
        messages: list[m.Message] = []
        if not self.pending:  # the common case: bytes are copied only into messages
            with memoryview(data) as view:
                end = self._decode_untrusted(view, messages)
                if end == len(view):
                    return messages
                self._buffer += view[end:]
        else:
            self._buffer += data
            if len(self._buffer) >= self._needed:
                with memoryview(self._buffer) as view:
                    end = self._decode_untrusted(view, messages)
                del self._buffer[:end]  # moves the start of the buffer, copies nothing
        self.pending = len(self._buffer)
        return messages

    def _decode_untrusted(self, view: memoryview, messages: list[m.Message]) -> int:
        """Decode the whole frames in `view`; return where the first incomplete one begins."""
        start, end = 0, len(view)
        while end - start >= HEADER_BYTES:
            length, number, version, reserved, check = HEADER.unpack_from(view, start)
            codec = _codec_untrusted(length, number, version, reserved)
            size = HEADER_BYTES + length
            if size > self._largest:
                raise WireError(f"{codec.name}: {size} bytes, at most {self._largest} here")
            if end - start < size:
                self._needed = size
                return start
            messages.append(codec.decode_untrusted(view[start : start + size], check))
            self._largest = MAX_FRAME_BYTES
            start += size
        self._needed = HEADER_BYTES
        return start
