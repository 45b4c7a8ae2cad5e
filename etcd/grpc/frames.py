"""The frames of HTTP/2 (RFC 9113): their bytes, and the errors that they can be."""

from __future__ import annotations

import enum
import struct
from typing import Final

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "DEFAULT_WINDOW",
    "END_HEADERS",
    "END_STREAM",
    "GOAWAY",
    "HEADER",
    "HEADERS",
    "MAX_FRAME_BYTES",
    "MAX_WINDOW",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PRIORITY_FLAG",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTINGS",
    "STREAM_BITS",
    "WINDOW_UPDATE",
    "Fault",
    "Http2Error",
    "Setting",
    "StreamError",
    "content_untrusted",
    "frame",
    "settings_frame",
    "settings_untrusted",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 1
END_STREAM: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITY_FLAG: Final = 32

HEADER: Final = struct.Struct(">HBBBI")
"""Of each frame: 24 bits of length in two parts, the kind, flags, the stream."""

STREAM_BITS: Final = (1 << 31) - 1
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
MAX_FRAME_BYTES: Final = 16_384
"""What a frame may have, unless its receiver allows more. We do not."""

_PRIORITY_BYTES: Final = 5
_SETTING: Final = struct.Struct(">HI")


class Fault(enum.IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(enum.IntEnum):
    """What one side announces about itself."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2Error(Exception):
    """The peer has broken the rules so that nothing after it can be understood."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class StreamError(Exception):
    """The peer has broken the rules for one stream."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.name)
        self.fault = fault


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """Return a frame; the body is of at most 16 MiB."""
    size = len(body)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + body


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return the frame with our settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in settings.items()))


def content_untrusted(body: bytes, flags: int, *, headers: bool) -> bytes:
    """Return what is in a frame of data or headers, without padding and priority.

    Raises:
        Http2Error: there is less than that.
    """
    if flags & PADDED:
        if not body or body[0] >= len(body):
            raise Http2Error(Fault.PROTOCOL_ERROR, "more padding than there is in the frame")
        body = body[1 : len(body) - body[0]]
    if headers and flags & PRIORITY_FLAG:
        if len(body) < _PRIORITY_BYTES:
            raise Http2Error(Fault.FRAME_SIZE_ERROR, "a priority takes 5 bytes")
        body = body[_PRIORITY_BYTES:]
    return body


def settings_untrusted(body: bytes) -> dict[int, int]:
    """Return the settings of a frame, also unknown ones; the last value of each counts.

    Raises:
        Http2Error: a value is not allowed.
    """
    if len(body) % _SETTING.size:
        raise Http2Error(Fault.FRAME_SIZE_ERROR, "a setting takes 6 bytes")
    settings: dict[int, int] = {}
    for name, value in _SETTING.iter_unpack(body):
        if name == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2Error(Fault.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
        if name == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(Fault.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}, not 0 or 1")
        if name == Setting.MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
            raise Http2Error(Fault.PROTOCOL_ERROR, f"frames of {value} bytes")
        settings[name] = value
    return settings
