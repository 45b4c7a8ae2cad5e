"""QUORATE.SESSION and QUORATE.SESSIONS: open, keep alive, close and count sessions.

The sessions themselves are in :mod:`..state.sessions`.
"""

from typing import Final

from ..limits import DEFAULT_SESSION_MS, LOOKUP_WORK, MAX_SESSION_MS, MIN_SESSION_MS
from ..protocol import resp
from ..state.store import KeyStore
from .arguments import SYNTAX_ERROR, arity_error, integer
from .strings import Handler

_NAME: Final = "quorate.session"
_TIMEOUT: Final = resp.error(
    f"ERR the timeout of a session is {MIN_SESSION_MS} to {MAX_SESSION_MS} milliseconds"
)
_NEGATIVE: Final = resp.error("ERR a sequence is 1 or more")


def session(store: KeyStore, arguments: list[bytes]) -> bytes:
    """QUORATE.SESSION OPEN [timeout-ms] | KEEPALIVE id [acknowledged-sequence] | CLOSE id."""
    now, user = store.now, store.principal
    match [arguments[1].upper(), *arguments[2:]]:
        case [b"OPEN"]:
            return resp.integer(store.sessions.open(DEFAULT_SESSION_MS, store.revision, now, user))
        case [b"OPEN", text]:
            timeout_ms = integer(text)
            if not MIN_SESSION_MS <= timeout_ms <= MAX_SESSION_MS:
                return _TIMEOUT
            return resp.integer(store.sessions.open(timeout_ms, store.revision, now, user))
        case [b"KEEPALIVE", text, *rest] if len(rest) <= 1:
            acknowledged = integer(rest[0]) if rest else 0
            if acknowledged < 0:
                return _NEGATIVE
            gone = store.sessions.keep_alive(integer(text), acknowledged, now, user)
        case [b"CLOSE", text]:
            gone = store.sessions.close(integer(text), now, user)
        case [b"OPEN" | b"KEEPALIVE" | b"CLOSE", *_]:
            return arity_error(_NAME)
        case _:
            return SYNTAX_ERROR
    store.left -= LOOKUP_WORK * gone
    return resp.OK


def count(store: KeyStore, _arguments: list[bytes]) -> bytes:
    """QUORATE.SESSIONS: their number, with timed-out sessions that are not removed yet."""
    return resp.integer(len(store.sessions))


HANDLERS: Final[dict[str, Handler]] = {_NAME: session, "quorate.sessions": count}
"""Handlers by command name. The service has checked the number of arguments already."""
