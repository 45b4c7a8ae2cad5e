"""One connection of HTTP/1.1. h11 knows the protocol; this module reads and writes its bytes."""

from __future__ import annotations

import functools
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import h11
import trio

from ..services.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .answers import Answer, Headers

__all__ = ["BODY_BYTES", "HEAD_BYTES", "BodyTooLargeError", "Talk"]

HEAD_BYTES: Final = 16 << 10
"""Longest head of a request. Smaller: long tokens and what proxies add are refused. Larger:
strangers make us buffer more."""

BODY_BYTES: Final = 4 << 20
"""Longest body of a request. Smaller: a request as large as etcd takes them, 1.5 MiB, does not fit
as base64 with its escapes. Larger: clients make us buffer more."""

BODY_SECONDS: Final = 30.0
"""How long the body of a request, and each piece of an answer, may take. Shorter: slow networks
fail. Longer: what hangs keeps its memory for longer."""


class BodyTooLargeError(Exception):
    """The body of a request is too long.

    Args:
        length: its bytes, as far as they are known.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


class Talk:
    """One connection, request by request.

    Args:
        stream: the connection.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._wire = Wire(stream)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._head_only = False
        self._broken = False

    async def request(self) -> h11.Request | None:
        """Wait for the head of a request; None if the other end closed.

        Raises:
            h11.RemoteProtocolError: it is none, or is too long.
        """
        self._head_only = False  # what was asked before it: this may be no request
        event: object = self._http.next_event()
        if event is h11.NEED_DATA:
            event = await self._next()
        else:
            # A client that sends many requests at once must not keep others from their turn.
            await trio.lowlevel.checkpoint()
        if not isinstance(event, h11.Request):
            return None
        self._head_only = event.method == b"HEAD"
        return event

    async def body(self) -> bytes:
        """Return the body of the request.

        Raises:
            BodyTooLargeError: it is too long.
            trio.TooSlowError: it takes too long.
        """
        pieces: list[bytes] = []
        size = 0
        until = trio.current_time() + BODY_SECONDS
        while (piece := await self.piece(until)) is not None:
            size += len(piece)
            if size > BODY_BYTES:
                raise BodyTooLargeError(size)
            pieces.append(piece)
        return b"".join(pieces)

    async def piece(self, until: float = math.inf) -> bytes | None:
        """Return the next piece of the body; None at its end.

        Raises:
            trio.TooSlowError: it is not here at that time (trio's clock).
        """
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            await self._write([go_on])
        event: object = self._http.next_event()
        # A scope costs more than this look, and most bodies come with their heads.
        if event is h11.NEED_DATA:
            with trio.fail_at(until):
                event = await self._next()
        match event:
            case h11.Data():
                return bytes(event.data)
            case h11.EndOfMessage():
                return None
            case _:
                raise trio.BrokenResourceError("the client closed before the end of its request")

    async def until_gone(self) -> None:
        """Return once the client has closed or is lost; its whole request was read before."""
        if self._http.trailing_data[0]:
            # Each of its requests that waits would take more into memory. The copy that h11 makes
            # here is short for that reason.
            await trio.sleep_forever()
        try:
            data = await self._wire.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        # A client that closes one direction looks like one that closes both. Go's net/http, and so
        # etcd, takes both for gone. Otherwise what a gone client waits for would be kept for long.
        self._http.receive_data(data)
        if data:
            # It sends its next request already, and waits for this answer. More is not read, so
            # the kernel keeps it from sending much.
            await trio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        """Send a whole answer."""
        head = _response(answer.status, answer.headers, len(answer.body))
        body = b"" if self._head_only else answer.body
        await self._write([head, h11.Data(data=body), h11.EndOfMessage()], BODY_SECONDS)

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length is not known."""
        await self._write([_response(status, headers)])

    async def send_piece(self, data: bytes) -> None:
        """Send a piece of it, as a chunk of its own; wait while the client does not read.

        Raises:
            trio.BrokenResourceError: the client is gone.
        """
        await self._write([h11.Data(data=data)])
        # A socket may take thousands of pieces at once, which must not keep others from their turn.
        await trio.lowlevel.checkpoint()

    async def end(self) -> None:
        """End an answer that `begin` began."""
        await self._write([h11.EndOfMessage()], BODY_SECONDS)

    def again(self) -> bool:
        """Whether another request may follow; then this connection is ready for it."""
        # An early answer leaves a part of the request untaken, though it is here.
        while self._http.their_state is h11.SEND_BODY and self._http.our_state is h11.DONE:
            if not isinstance(self._http.next_event(), h11.Data | h11.EndOfMessage):
                break
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    @property
    def unanswered(self) -> bool:
        """Whether no answer has begun."""
        return self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._wire.receive())
        return event

    async def _write(self, events: Iterable[h11.Event], seconds: float = math.inf) -> None:
        if self._broken:
            raise trio.BrokenResourceError("an answer was interrupted in the middle of a piece")
        parts = [self._http.send(event) for event in events]
        # Most answers go out at once, and need no scope.
        rest = self._wire.send_some(b"".join(part for part in parts if part))
        if rest:
            self._broken = True
            with trio.fail_after(seconds):
                await self._wire.send(rest)
            self._broken = False


@functools.lru_cache(256)
def _response(status: int, headers: Headers, length: int | None = None) -> h11.Response:
    """Return the head of an answer, of which there are few different ones."""
    lines = list(headers) if length is None else [*headers, ("content-length", str(length))]
    return h11.Response(status_code=status, headers=lines, reason=HTTPStatus(status).phrase)
