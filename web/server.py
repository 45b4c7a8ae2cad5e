"""The web port: connections, and HTTP/1.1 on them.

h11 knows the protocol; this module reads and writes its bytes. Only GET and HEAD are answered, and
nothing that comes in a body is looked at.

Bounds
------
A browser that hangs, and a stranger that means harm, cost the same few things. There are
`MOST_CONNECTIONS` connections, and `MOST_STREAMS` of them may be endless answers. One connection
more ends another one (`.places`), so that probes are answered whatever strangers do. A request has
`PATIENCE_SECONDS` to arrive, and so has the next one on the same connection; a piece of an answer
has as long to be taken. A head has at most `HEAD_BYTES`. Whatever breaks, ends one connection.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Never
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs
import h11
import trio

from ..log_events import log_event
from ..transport import CONNECTION_ERRORS
from ..transport.strangers import host_of
from ..transport.streams import send_all
from ..transport.tls import TlsConnection
from .answers import Answer, Asked, Stream, text
from .places import Places

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable

    from ..transport import Address, Connection, Network
    from .places import Place

log = logging.getLogger("quorate.web")

MOST_CONNECTIONS: Final = 16
"""Connections at the same time; one more ends another one. Fewer: a few browsers, each with several
connections, cut off each other. More: each may hold a head and a piece of an answer in memory."""

MOST_STREAMS: Final = 8
"""Of these, answers without an end. Fewer: fewer can watch. More: watchers leave few places, and as
many as there are places would keep a probe out."""

HEAD_BYTES: Final = 8 << 10
"""Longest head of a request. Smaller: browsers with many cookies of other ports are refused.
Larger: strangers make us buffer more."""

PATIENCE_SECONDS: Final = 5.0
"""How long a request, the next request, and each piece of an answer may take. Shorter: slow
networks fail. Longer: what hangs keeps one of the few connections for longer."""

_REDIS: Final = b"*"
"""With it begins each command of a Redis client, and no request of HTTP."""

_RECEIVE_BYTES: Final = 4 << 10
_EVERYWHERE: Final = (
    ("server", "quorate"),
    # The page has neither styles nor scripts of its own, and loads nothing from elsewhere. So
    # a name or a reason that a member has sent can't become a script.
    ("content-security-policy", "default-src 'self'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)


class WebServer:
    """Serves one web port.

    Args:
        answer: returns the answer to a request.
        tls: returns the context for a new connection; None for a port without TLS.
        knows: whether a request has the token of the port; such connections give way last.
    """

    def __init__(
        self,
        answer: Callable[[Asked], Awaitable[Answer | Stream]],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        knows: Callable[[Asked], bool] = lambda _asked: False,
    ) -> None:
        self._answer = answer
        self._tls = tls
        self._knows = knows
        self._turns = trio.Lock()
        self._places = Places(MOST_CONNECTIONS)
        self._streams = 0

    async def run(
        self,
        network: Network,
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """Serve until cancelled; `started` with the address that was bound.

        Raises:
            OSError: it can't be bound.
        """
        await network.serve(address, self.take, task_status=task_status)

    async def take(self, connection: Connection) -> None:
        """Serve one connection until it ends, or has to give way to a new one."""
        place = None
        try:
            with self._places.take(host_of(connection.peer)) as place:
                if self._tls is not None:
                    connection = await self._secured(connection, self._tls())
                await self._serve(connection, place)
        except CONNECTION_ERRORS as error:
            words, peer, why = "%(address)s: %(why)s", connection.peer, str(error)
            log_event(log, logging.DEBUG, "viewer_ended", words, address=peer, why=why)
        except Exception:  # noqa: BLE001 - nobody who looks at a member may end it
            _log_mistake(place.target if place else "")
        finally:
            connection.close()

    async def _secured(self, inner: Connection, context: ssl.SSLContext) -> Connection:
        connection = TlsConnection(inner, context, server=True)
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                await connection.shake_hands(self._turns, certified=False)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _serve(self, connection: Connection, place: Place) -> None:
        """Answer one request after the other."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        talk = _Talk(connection, http)
        while True:
            asked = None
            place.begin()
            try:
                with trio.move_on_after(PATIENCE_SECONDS):
                    asked = await talk.request()
                if asked is None:
                    return
                place.begin()
                await self._reply(talk, asked, place)
            except h11.RemoteProtocolError as error:
                await talk.refuse(error.error_status_hint)
                return
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _reply(self, talk: _Talk, request: h11.Request, place: Place) -> None:
        place.target = repr(request.target[:200])
        if request.method not in {b"GET", b"HEAD"}:
            words = "expected GET or HEAD: nothing is changed here"
            return await talk.send(_refusal(405, words, ("allow", "GET, HEAD")))
        try:
            asked = attrs.evolve(asked_untrusted(request), host=place.host)
            place.known = self._knows(asked)
            answer = await self._answer(asked)
        except ValueError as error:
            answer = text(400, str(error))
        except Exception:  # noqa: BLE001 - as the comment says
            # A picture that can't be drawn is no reason for a member to end.
            _log_mistake(place.target)
            answer = text(500, "this is a mistake in the member; its log says more")
        if isinstance(answer, Answer):
            return await talk.send(answer)
        if self._streams >= MOST_STREAMS:
            words = f"{MOST_STREAMS} are watching already"
            return await talk.send(_refusal(503, words, ("retry-after", "1")))
        self._streams += 1
        place.streams = True
        try:
            return await talk.stream(answer)
        finally:
            self._streams -= 1
            place.streams = False


def asked_untrusted(request: h11.Request) -> Asked:
    """Return what a request asks for.

    Raises:
        ValueError: its target is none.
    """
    target = urlsplit(request.target.decode("ascii", errors="replace"))
    headers = {
        name.decode("ascii", errors="replace"): value.decode("latin-1")
        for name, value in request.headers
    }
    query = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=16))
    return Asked(unquote(target.path), query, headers)


def _log_mistake(target: str) -> None:
    words = "no answer to %(target)s"
    log_event(log, logging.ERROR, "answer_failed", words, exc_info=True, target=target)


def _refusal(status: int, words: str, header: tuple[str, str]) -> Answer:
    return Answer(status, words.encode() + b"\n", headers=(header,))


class _Talk:
    """One connection, request by request."""

    def __init__(self, connection: Connection, http: h11.Connection) -> None:
        self._connection = connection
        self._http = http
        self._head_only = False

    async def request(self) -> h11.Request | None:
        """Wait for a whole request, and drop its body; None if the other end closed.

        Raises:
            h11.RemoteProtocolError: it is none, or is too long.
        """
        request, body = None, 0
        while True:
            event = self._http.next_event()
            match event:
                case h11.Request():
                    request = event
                    self._head_only = event.method == b"HEAD"
                case h11.Data():
                    body += len(event.data)
                    if body > HEAD_BYTES:
                        raise h11.RemoteProtocolError("no body is expected", 413)
                case h11.EndOfMessage():
                    return request
                case h11.ConnectionClosed():
                    return None
                case _ if event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        return request  # it waits for a word from us, which is the answer
                    data = await self._connection.receive(_RECEIVE_BYTES)
                    if request is None and data.startswith(_REDIS):
                        # h11 would wait for the end of a head, and the client for a reply.
                        raise h11.RemoteProtocolError("a Redis client", 400)
                    self._http.receive_data(data)
                case _:
                    return request

    async def send(self, answer: Answer) -> None:
        """Send a whole answer."""
        kind = [("content-type", answer.kind)] if answer.body else []
        headers = [*kind, ("content-length", str(len(answer.body))), *answer.headers]
        body = b"" if self._head_only else answer.body
        head = _response(answer.status, headers)
        await self._write([head, h11.Data(data=body), h11.EndOfMessage()])

    async def stream(self, answer: Stream) -> None:
        """Send an answer piece by piece."""
        headers = [("content-type", answer.kind), ("cache-control", "no-store"), *answer.headers]
        await self._write([_response(200, headers)])
        if not self._head_only:
            await answer.write(self._send_piece)
        await self._write([h11.EndOfMessage()])

    async def refuse(self, status: int) -> None:
        """Answer what was no request, and close."""
        # Unless an answer is on its way already.
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self.send(text(status, HTTPStatus(status).phrase))

    async def _send_piece(self, data: bytes) -> None:
        await self._write([h11.Data(data=data)])

    async def _write(self, events: Iterable[h11.Event]) -> None:
        parts = [self._http.send(event) for event in events]
        data = b"".join(part for part in parts if part)
        with trio.fail_after(PATIENCE_SECONDS):
            await send_all(self._connection, data)


def _response(status: int, headers: Iterable[tuple[str, str]]) -> h11.Response:
    return h11.Response(
        status_code=status,
        headers=[*_EVERYWHERE, *headers],
        reason=HTTPStatus(status).phrase,
    )
