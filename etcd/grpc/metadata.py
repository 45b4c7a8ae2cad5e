"""What the headers of a call say, and how an error stands in its trailers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from ..codes import Code, EtcdError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CallHead", "NotGrpcError", "parse_head_untrusted", "status_headers"]

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}


class NotGrpcError(Exception):
    """The request is not one of gRPC; `status` is the status of HTTP for it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@attrs.frozen
class CallHead:
    """What the headers of a call say.

    Args:
        path: of the method.
        token: that the caller shows; empty for none.
        timeout: seconds until the caller gives up; None for never.
        needs_leader: the caller rather has an error than waits for a leader.
    """

    path: str
    token: str = ""
    timeout: float | None = None
    needs_leader: bool = False


def parse_head_untrusted(headers: Iterable[tuple[bytes, bytes]]) -> CallHead:
    """Return what the headers of a call say.

    Raises:
        NotGrpcError: this is no call of gRPC.
        EtcdError: it has a timeout or a compression that can't be.
    """
    found = dict(headers)
    if found.get(b":method") != b"POST":
        raise NotGrpcError(405)
    kind = found.get(b"content-type", b"")
    if not kind.startswith(b"application/grpc") or kind[16:17] not in (b"", b"+", b";"):
        raise NotGrpcError(415)
    encoding = found.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        text = encoding[:40].decode("ascii", "replace")
        raise EtcdError(
            Code.UNIMPLEMENTED,
            f'grpc: Decompressor is not installed for grpc-encoding "{text}"',
        )
    token = found.get(b"token") or found.get(b"authorization", b"")
    return CallHead(
        path=found.get(b":path", b"").decode("utf-8", "replace"),
        token=token.decode("utf-8", "replace"),
        timeout=_timeout_untrusted(found.get(b"grpc-timeout")),
        needs_leader=found.get(b"hasleader") == b"true",
    )


def _timeout_untrusted(text: bytes | None) -> float | None:
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        shown = text[:20].decode("ascii", "replace")
        raise EtcdError(Code.INTERNAL, f"malformed grpc-timeout: {shown!r}")
    return int(match[1]) * _UNITS[match[2]]


def status_headers(code: int, text: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that say how a call has ended; the text is percent-encoded."""
    status = (b"grpc-status", b"%d" % code)
    if not text:
        return (status,)
    encoded = b"".join(
        bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in text.encode()
    )
    return status, (b"grpc-message", encoded)
