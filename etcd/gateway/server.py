"""The JSON gateway: HTTP/1.1 on a connection.

``POST /v3/kv/put`` calls the method of that path, and so does ``/v3beta/kv/put``. The body is JSON,
whatever its content type says. A few pages are asked for with GET.

Bounds
------
A head has at most `HEAD_BYTES`, a body `BODY_BYTES`, and a request of a stream `REQUEST_BYTES`. A
request has `IDLE_SECONDS` to come, and its body `BODY_SECONDS`. Whatever breaks, ends one
connection.

Browsers
--------
A page from elsewhere may have a browser send JSON to an address of the user's machine. A browser
says where the page is from (``Origin``), and no client of etcd does; so such requests are refused.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs
import h11
import trio

from ...log_events import log_event
from ..methods import BY_GATEWAY_PATH, Streaming
from .answers import NOT_ALLOWED, NOT_FOUND, Answer, error_answer, text
from .pages import PAGES
from .streams import answer_stream
from .talk import BODY_BYTES, BodyTooLargeError, Talk
from .unary import answer_unary, too_large

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..services.context import PortContext

__all__ = ["IDLE_SECONDS", "serve"]

IDLE_SECONDS: Final = 300.0
"""How long a connection may wait for its next request. Shorter: clients that ask every minute find
theirs closed, and some fail then. Longer: forgotten connections stay for longer."""

_log = logging.getLogger("quorate.etcd")
_PREFIXES: Final = ("/v3/", "/v3beta/")
_METHODS: Final = {
    prefix + path.removeprefix("/"): method
    for prefix in _PREFIXES
    for path, method in BY_GATEWAY_PATH.items()
}


async def serve(stream: trio.abc.Stream, context: PortContext) -> None:
    """Answer one request after the other, until the client closes or the port stops.

    Args:
        stream: the connection; the caller closes it.
        context: what the port's connections share.

    Raises:
        trio.BrokenResourceError: the connection is lost.
        trio.TooSlowError: the client is too slow.
    """
    talk = Talk(stream)
    again = True
    while again:
        asked = None
        try:
            with context.stopping.interrupts(IDLE_SECONDS):
                asked = await talk.request()
            if asked is None:
                return
            again = await _reply(talk, context, _asked_untrusted(asked))
        except BodyTooLargeError as error:
            await _refuse(talk, error_answer(too_large(error.length)))
            return
        except h11.RemoteProtocolError as error:
            await _refuse(talk, text(error.error_status_hint, "Bad Request"))
            return


@attrs.frozen
class _Asked:
    """What a request asks for.

    Args:
        verb: method of HTTP.
        path: without escapes.
        query: behind the path.
        token: who asks; empty for nobody in particular.
        elsewhere: a page of a browser asks.
    """

    verb: bytes
    path: str
    query: Mapping[str, str]
    token: str
    elsewhere: bool


def _asked_untrusted(request: h11.Request) -> _Asked:
    headers = dict(request.headers)
    length = int(headers.get(b"content-length", b"0"))  # h11 has checked that it is a number
    if length > BODY_BYTES:
        raise BodyTooLargeError(length)
    path, query = _target_untrusted(request.target)
    token = headers.get(b"authorization", b"").decode("latin-1")
    return _Asked(request.method, path, query, token, b"origin" in headers)


@functools.lru_cache(64)
def _target_untrusted(target: bytes) -> tuple[str, Mapping[str, str]]:
    """Return path and query, without escapes."""
    try:
        parts = urlsplit(target.decode("ascii", errors="replace"))
        query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=16))
    except ValueError:
        raise h11.RemoteProtocolError("this target is none", 400) from None
    return unquote(parts.path), query


async def _reply(talk: Talk, context: PortContext, asked: _Asked) -> bool:
    """Answer a request; return whether another may follow."""
    try:
        answer = await _answer(talk, context, asked)
    except Exception as error:
        if isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError | trio.TooSlowError
                      | h11.RemoteProtocolError | BodyTooLargeError):  # fmt: skip
            raise
        # A mistake in one answer is no reason for a member to end.
        words = "no answer to %(target)s"
        target = repr(asked.path[:200])
        log_event(_log, logging.ERROR, "answer_failed", words, exc_info=True, target=target)
        await _refuse(talk, text(500, "this is a mistake in the member; its log says more"))
        return False
    if answer is not None:
        await talk.send(answer)
    return talk.again() and not context.stopping.begun


async def _answer(talk: Talk, context: PortContext, asked: _Asked) -> Answer | None:
    """Return the answer; None if it is sent already."""
    method = _METHODS.get(asked.path)
    if asked.elsewhere:
        await talk.body()
        return text(403, "expected no Origin: this port does not serve pages of browsers")
    if method is not None and asked.verb == b"POST":
        if method.streaming is not Streaming.NO:
            return await answer_stream(talk, context, method, asked.token)
        body = await talk.body()
        return await answer_unary(talk, context, method, asked.token, body)
    await talk.body()
    page = PAGES.get(asked.path)
    if page is not None and asked.verb == b"GET":
        return await page(context, asked.query, asked.token)
    if page is not None:
        return attrs.evolve(NOT_ALLOWED, headers=(("allow", "GET"), *NOT_ALLOWED.headers))
    if method is not None:
        return NOT_ALLOWED
    return NOT_FOUND if asked.path.startswith(_PREFIXES) else text(404, "404 page not found")


async def _refuse(talk: Talk, answer: Answer) -> None:
    """Answer what is no proper request; the connection ends then."""
    if talk.unanswered:
        await talk.send(answer)
