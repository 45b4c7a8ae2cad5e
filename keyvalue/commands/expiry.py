"""Commands on the expiry of keys. Durations count from the log time of the command."""

from typing import Final

from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.store import KeyStore
from .arguments import INT64_MAX, INT64_MIN, integer, invalid_expire_time
from .strings import Handler


def _expire(command: str, *, unit_ms: int, relative: bool) -> Handler:
    def handler(store: KeyStore, arguments: list[bytes]) -> bytes:
        flags = _flags(arguments[3:])
        number = integer(arguments[2])
        base_ms = store.now if relative else 0
        if not INT64_MIN <= number * unit_ms <= INT64_MAX - base_ms:
            return invalid_expire_time(command)
        when = number * unit_ms + base_ms
        record = store.get(arguments[1])
        if record is None or not _allowed(flags, record[1], when):
            return resp.ZERO
        if when <= store.now:
            store.delete(arguments[1])
        else:
            store.set(arguments[1], record[0], when, record[3])
        return resp.ONE

    return handler


def _flags(words: list[bytes]) -> frozenset[bytes]:
    flags = frozenset(word.upper() for word in words)
    for word in words:
        if word.upper() not in (b"NX", b"XX", b"GT", b"LT"):
            raise CommandError(resp.error(b"ERR Unsupported option " + word))
    if b"NX" in flags and len(flags) > 1:
        raise CommandError(
            resp.error("ERR NX and XX, GT or LT options at the same time are not compatible")
        )
    if flags >= {b"GT", b"LT"}:
        raise CommandError(resp.error("ERR GT and LT options at the same time are not compatible"))
    return flags


def _allowed(flags: frozenset[bytes], current: int, when: int) -> bool:
    """Whether the flags let `when` replace `current`; an expiry of 0 means never."""
    return not (
        (b"NX" in flags and current)
        or (b"XX" in flags and not current)
        or (b"GT" in flags and (not current or when <= current))
        or (b"LT" in flags and current and when >= current)
    )


def _left(*, unit_ms: int, absolute: bool) -> Handler:
    def handler(store: KeyStore, arguments: list[bytes]) -> bytes:
        record = store.get(arguments[1])
        if record is None:
            return resp.MINUS_TWO
        if not record[1]:
            return resp.MINUS_ONE
        left = record[1] - (0 if absolute else store.now)
        return resp.integer((left + unit_ms // 2) // unit_ms)  # rounded, as Redis does

    return handler


def persist(store: KeyStore, arguments: list[bytes]) -> bytes:
    """PERSIST key."""
    record = store.get(arguments[1])
    if record is None or not record[1]:
        return resp.ZERO
    store.set(arguments[1], record[0], 0, record[3])
    return resp.ONE


HANDLERS: Final[dict[str, Handler]] = {
    "expire": _expire("expire", unit_ms=1000, relative=True),
    "expireat": _expire("expireat", unit_ms=1000, relative=False),
    "expiretime": _left(unit_ms=1000, absolute=True),
    "persist": persist,
    "pexpire": _expire("pexpire", unit_ms=1, relative=True),
    "pexpireat": _expire("pexpireat", unit_ms=1, relative=False),
    "pexpiretime": _left(unit_ms=1, absolute=True),
    "pttl": _left(unit_ms=1, absolute=False),
    "ttl": _left(unit_ms=1000, absolute=False),
}
"""Handlers by command name. The service has checked the number of arguments already."""
