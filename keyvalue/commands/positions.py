"""QUORATE.CAS, QUORATE.RECORDS and QUORATE.POSITION: writes under a condition, and positions.

Redis does these in scripts. Here they are commands, because locks, elections and transactions of
our own clients rest on them. Positions are log positions: the revision of a change is the fencing
token of the lock that was taken by it.
"""

from typing import Final

from ..limits import MAX_REPLY_BYTES
from ..protocol import resp
from ..state.store import KeyStore
from .arguments import SYNTAX_ERROR, expiry
from .strings import Handler

_TOO_BIG_REPLY: Final = resp.error(f"ERR a reply may have {MAX_REPLY_BYTES} bytes at most")
_CAS: Final = "quorate.cas"


def compare_and_set(store: KeyStore, arguments: list[bytes]) -> bytes:
    """QUORATE.CAS key (ABSENT | EQUALS old) (SET new [PX ms | KEEPTTL] | DELETE).

    Returns:
        The log position of the change; 0 if the condition did not hold.
    """
    key, rest = arguments[1], arguments[2:]
    record = store.get(key)
    match rest[0].upper():
        case b"ABSENT":
            holds, action = record is None, rest[1:]
        case b"EQUALS" if len(rest) > 1:
            holds, action = record is not None and record[0] == rest[1], rest[2:]
        case _:
            return SYNTAX_ERROR
    expires_at_ms = 0
    new: bytes | None = None
    match [action[0].upper(), *action[1:]] if action else []:
        case [b"DELETE"]:
            pass
        case [b"SET", new]:
            pass
        case [b"SET", new, unit, time] if unit.upper() == b"PX":
            expires_at_ms = expiry(time, unit_ms=1, base_ms=store.now, command=_CAS)
        case [b"SET", new, keep] if keep.upper() == b"KEEPTTL":
            expires_at_ms = record[1] if record is not None else 0
        case _:
            return SYNTAX_ERROR
    if not holds:
        return resp.ZERO
    if new is not None:
        store.set(key, new, expires_at_ms)
    elif record is not None:
        store.delete(key)
    return resp.integer(store.revision)


def records(store: KeyStore, arguments: list[bytes]) -> bytes:
    """QUORATE.RECORDS key [key ...]: value, revision and expiry of each key, or null."""
    replies: list[bytes] = []
    size = 0
    for key in arguments[1:]:
        record = store.get(key)
        if record is None:
            replies.append(store.null)
        else:
            value, expires_at_ms, revision = record[:3]
            whole = [resp.bulk(value), resp.integer(revision), resp.integer(expires_at_ms)]
            replies.append(resp.array(whole))
        size += len(replies[-1])
        if size > MAX_REPLY_BYTES:
            return _TOO_BIG_REPLY
    return resp.array(replies)


def position(store: KeyStore, _arguments: list[bytes]) -> bytes:
    """QUORATE.POSITION: everything up to this log position is applied.

    In a transaction it is the position of the transaction itself.
    """
    return resp.integer(store.revision if store.applying else store.changes.position)


HANDLERS: Final[dict[str, Handler]] = {
    _CAS: compare_and_set,
    "quorate.records": records,
    "quorate.position": position,
}
"""Handlers by command name. The service has checked the number of arguments already."""
