"""Commands on keys of any value: existence, names, encodings."""

from typing import Final

from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.store import RAW_STRING, STRING, KeyStore
from .arguments import NO_SUCH_KEY, SYNTAX_ERROR, integer, parse_integer
from .introspection import help_reply
from .strings import Handler
from .table import fault

_INT_TEXT_BYTES: Final = 20
_EMBEDDED_BYTES: Final = 44


def delete(store: KeyStore, arguments: list[bytes]) -> bytes:
    """DEL key [key ...], and UNLINK."""
    there = [key for key in dict.fromkeys(arguments[1:]) if store.get(key) is not None]
    for key in there:
        store.delete(key)
    return resp.integer(len(there))


def exists(store: KeyStore, arguments: list[bytes]) -> bytes:
    """EXISTS key [key ...], and TOUCH. A key that is named twice counts twice."""
    return resp.integer(sum(store.get(key) is not None for key in arguments[1:]))


def type_(store: KeyStore, arguments: list[bytes]) -> bytes:
    """TYPE key."""
    return resp.simple(b"none" if store.get(arguments[1]) is None else b"string")


def rename(store: KeyStore, arguments: list[bytes]) -> bytes:
    """RENAME key newkey."""
    old, new = arguments[1:]
    record = store.get(old)
    if record is None:
        return NO_SUCH_KEY
    if old != new:
        store.delete(old)
        store.set(new, record[0], record[1], record[3])
    return resp.OK


def renamenx(store: KeyStore, arguments: list[bytes]) -> bytes:
    """RENAMENX key newkey."""
    if store.get(arguments[1]) is None:
        return NO_SUCH_KEY
    if store.get(arguments[2]) is not None:
        return resp.ZERO
    rename(store, arguments)
    return resp.ONE


def copy(store: KeyStore, arguments: list[bytes]) -> bytes:
    """COPY source destination [DB 0] [REPLACE]."""
    source, destination = arguments[1:3]
    replace = False
    rest = iter(arguments[3:])
    for option in rest:
        match option.upper():
            case b"REPLACE":
                replace = True
            case b"DB" if (number := next(rest, None)) is not None:
                if integer(number) != 0:
                    return resp.error("ERR DB index is out of range")
            case _:
                raise CommandError(SYNTAX_ERROR)
    if source == destination:
        return resp.error("ERR source and destination objects are the same")
    record = store.get(source)
    if record is None or (store.get(destination) is not None and not replace):
        return resp.ZERO
    store.set(destination, record[0], record[1], record[3])
    return resp.ONE


def object_(store: KeyStore, arguments: list[bytes]) -> bytes:
    """OBJECT ENCODING key | REFCOUNT key | HELP."""
    if trouble := fault(arguments):
        return resp.error(trouble)
    match arguments[1].upper():
        case b"ENCODING":
            record = store.get(arguments[2])
            return store.null if record is None else resp.bulk(_encoding(record[0], record[3]))
        case b"REFCOUNT":
            return store.null if store.get(arguments[2]) is None else resp.ONE
        case _:
            return help_reply(b"object")


def _encoding(value: bytes, tag: int) -> bytes:
    """Return the encoding that Redis 7 would use."""
    if tag == STRING and len(value) <= _INT_TEXT_BYTES and parse_integer(value) is not None:
        return b"int"
    return b"raw" if tag == RAW_STRING or len(value) > _EMBEDDED_BYTES else b"embstr"


def flush(store: KeyStore, arguments: list[bytes]) -> bytes:
    """FLUSHALL and FLUSHDB [ASYNC | SYNC]."""
    if len(arguments) > 1 and [option.upper() for option in arguments[1:]] not in (
        [b"ASYNC"],
        [b"SYNC"],
    ):
        return SYNTAX_ERROR
    store.clear()
    return resp.OK


HANDLERS: Final[dict[str, Handler]] = {
    "copy": copy,
    "del": delete,
    "exists": exists,
    "flushall": flush,
    "flushdb": flush,
    "object": object_,
    "rename": rename,
    "renamenx": renamenx,
    "touch": exists,
    "type": type_,
    "unlink": delete,
}
"""Handlers by command name. The service has checked the number of arguments already."""
