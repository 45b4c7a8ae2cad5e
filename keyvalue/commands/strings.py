"""Commands that read and write strings.

A handler takes the store and all arguments, its own name included, and returns the encoded reply.
Every lookup comes before the first change: a lookup may raise when the request's work is used up,
and a command that fails must have changed nothing.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from ..limits import MAX_REPLY_BYTES, MAX_VALUE_BYTES
from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.store import RAW_STRING, STRING, KeyStore
from .arguments import SYNTAX_ERROR, TOO_LONG, arity_error, expiry, integer

Handler: TypeAlias = Callable[[KeyStore, list[bytes]], bytes]

_PLAIN_SET_ARGUMENTS: Final = 3
_TIMED_SET_ARGUMENTS: Final = 5
_TOO_BIG_REPLY: Final = resp.error(f"ERR a reply may have {MAX_REPLY_BYTES} bytes at most")
_EXCLUSIVE: Final = {b"NX": b"XX", b"XX": b"NX"}
_UNITS_MS: Final = {b"EX": 1000, b"PX": 1, b"EXAT": 1000, b"PXAT": 1}


def get(store: KeyStore, arguments: list[bytes]) -> bytes:
    """GET key."""
    record = store.get(arguments[1])
    if record is None:
        return store.null
    value = record[0]
    return b"$%d\r\n%b\r\n" % (len(value), value)


def set_(store: KeyStore, arguments: list[bytes]) -> bytes:
    """SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]."""
    # The two usual forms first: parsing options costs more than the SET itself.
    if len(arguments) == _PLAIN_SET_ARGUMENTS:
        store.put(arguments[1], (arguments[2], 0, store.revision, STRING))
        return resp.OK
    key = arguments[1]
    if len(arguments) == _TIMED_SET_ARGUMENTS and (unit := arguments[3].upper()) in _UNITS_MS:
        store.set(key, arguments[2], _expires_at_ms(store, unit, arguments[4], "set"))
        return resp.OK
    options = _options(arguments[3:], frozenset((b"NX", b"XX", b"GET", b"KEEPTTL")))
    expires_at_ms = options.expires_at_ms(store, "set")
    old = store.get(key)
    allowed = not ((b"NX" in options.words and old) or (b"XX" in options.words and not old))
    if allowed:
        if b"KEEPTTL" in options.words and old:
            expires_at_ms = old[1]
        store.set(key, arguments[2], expires_at_ms)
    if b"GET" in options.words:
        return resp.bulk(old[0]) if old else store.null
    return resp.OK if allowed else store.null


@attrs.frozen
class _Options:
    """Options of SET and GETEX: plain words, and one expiry as unit and text."""

    words: frozenset[bytes]
    unit: bytes
    time: bytes

    def expires_at_ms(self, store: KeyStore, command: str) -> int:
        """Return the log time of the expiry, 0 without one."""
        return _expires_at_ms(store, self.unit, self.time, command) if self.unit else 0


def _expires_at_ms(store: KeyStore, unit: bytes, time: bytes, command: str) -> int:
    base_ms = 0 if unit in (b"EXAT", b"PXAT") else store.now
    return expiry(time, unit_ms=_UNITS_MS[unit], base_ms=base_ms, command=command)


def _options(arguments: list[bytes], known: frozenset[bytes]) -> _Options:
    """Parse options in any order. The same one may come twice; two different expiries may not."""
    words: set[bytes] = set()
    unit = time = b""
    rest = iter(arguments)
    for argument in rest:
        word = argument.upper()
        if word in _UNITS_MS:
            found = next(rest, None)
            if found is None or unit not in (b"", word) or words & {b"KEEPTTL", b"PERSIST"}:
                raise CommandError(SYNTAX_ERROR)
            unit, time = word, found
        elif (
            word not in known
            or _EXCLUSIVE.get(word) in words
            or (unit and word in (b"KEEPTTL", b"PERSIST"))
        ):
            raise CommandError(SYNTAX_ERROR)
        else:
            words.add(word)
    return _Options(frozenset(words), unit, time)


def getex(store: KeyStore, arguments: list[bytes]) -> bytes:
    """GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]."""
    options = _options(arguments[2:], frozenset((b"PERSIST",)))
    record = store.get(arguments[1])
    if record is None:
        return store.null
    expires_at_ms = options.expires_at_ms(store, "getex")
    if expires_at_ms or (b"PERSIST" in options.words and record[1]):
        store.set(arguments[1], record[0], expires_at_ms, record[3])
    return resp.bulk(record[0])


def setnx(store: KeyStore, arguments: list[bytes]) -> bytes:
    """SETNX key value."""
    if store.get(arguments[1]) is not None:
        return resp.ZERO
    store.set(arguments[1], arguments[2])
    return resp.ONE


def _set_for(unit_ms: int, command: str) -> Handler:
    def handler(store: KeyStore, arguments: list[bytes]) -> bytes:
        expires_at_ms = expiry(arguments[2], unit_ms=unit_ms, base_ms=store.now, command=command)
        store.set(arguments[1], arguments[3], expires_at_ms)
        return resp.OK

    return handler


def getset(store: KeyStore, arguments: list[bytes]) -> bytes:
    """GETSET key value."""
    reply = get(store, arguments)
    store.set(arguments[1], arguments[2])
    return reply


def getdel(store: KeyStore, arguments: list[bytes]) -> bytes:
    """GETDEL key."""
    record = store.get(arguments[1])
    if record is None:
        return store.null
    store.delete(arguments[1])
    return resp.bulk(record[0])


def mget(store: KeyStore, arguments: list[bytes]) -> bytes:
    """MGET key [key ...]."""
    replies: list[bytes] = []
    size = 0
    for key in arguments[1:]:
        record = store.get(key)
        replies.append(store.null if record is None else resp.bulk(record[0]))
        size += len(replies[-1])
        if size > MAX_REPLY_BYTES:
            return _TOO_BIG_REPLY
    return resp.array(replies)


def mset(store: KeyStore, arguments: list[bytes]) -> bytes:
    """MSET key value [key value ...]."""
    if len(arguments) % 2 == 0:
        return arity_error("mset")
    for at in range(1, len(arguments), 2):
        store.set(arguments[at], arguments[at + 1])
    return resp.OK


def msetnx(store: KeyStore, arguments: list[bytes]) -> bytes:
    """MSETNX key value [key value ...]."""
    if len(arguments) % 2 == 0:
        return arity_error("msetnx")
    if any(store.get(key) is not None for key in arguments[1::2]):
        return resp.ZERO
    mset(store, arguments)
    return resp.ONE


def append(store: KeyStore, arguments: list[bytes]) -> bytes:
    """APPEND key value."""
    key, more = arguments[1:]
    record = store.get(key)
    if record is None:
        store.set(key, more)
        return resp.integer(len(more))
    if len(record[0]) + len(more) > MAX_VALUE_BYTES:
        return TOO_LONG
    value = record[0] + more
    store.charge(len(value))
    store.set(key, value, record[1], RAW_STRING)
    return resp.integer(len(value))


def strlen(store: KeyStore, arguments: list[bytes]) -> bytes:
    """STRLEN key."""
    record = store.get(arguments[1])
    return resp.integer(len(record[0]) if record else 0)


def getrange(store: KeyStore, arguments: list[bytes]) -> bytes:
    """GETRANGE key start end, both inclusive, negative from the end."""
    start, end = integer(arguments[2]), integer(arguments[3])
    record = store.get(arguments[1])
    if record is None or (start < 0 and end < 0 and start > end):
        return resp.EMPTY_BULK
    size = len(record[0])
    first = max(start + size if start < 0 else start, 0)
    last = max(end + size if end < 0 else end, 0)
    part = memoryview(record[0])[first : last + 1]  # it may be large; so it is copied only once
    return b"".join((b"$%d\r\n" % len(part), part, b"\r\n"))


def setrange(store: KeyStore, arguments: list[bytes]) -> bytes:
    """SETRANGE key offset value; a gap is filled with zero bytes."""
    key, place, part = arguments[1:]
    offset = integer(place)
    if offset < 0:
        return resp.error("ERR offset is out of range")
    record = store.get(key)
    old, expires_at_ms = (record[0], record[1]) if record else (b"", 0)
    if not part:  # as in Redis: no key is made, and no zero bytes
        return resp.integer(len(old))
    if offset + len(part) > MAX_VALUE_BYTES:
        return TOO_LONG
    view = memoryview(old)
    gap = bytes(max(offset - len(old), 0))
    value = b"".join((view[:offset], gap, part, view[offset + len(part) :]))
    store.charge(len(value))
    store.set(key, value, expires_at_ms, RAW_STRING)
    return resp.integer(len(value))


HANDLERS: Final[dict[str, Handler]] = {
    "append": append,
    "get": get,
    "getdel": getdel,
    "getex": getex,
    "getrange": getrange,
    "getset": getset,
    "mget": mget,
    "mset": mset,
    "msetnx": msetnx,
    "psetex": _set_for(1, "psetex"),
    "set": set_,
    "setex": _set_for(1000, "setex"),
    "setnx": setnx,
    "setrange": setrange,
    "strlen": strlen,
    "substr": getrange,
}
"""Handlers by command name. The service has checked the number of arguments already."""
