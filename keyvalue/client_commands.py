"""CLIENT: the connections of this member, seen and changed by one of them.

Ids count from 1 since the member's start. What Redis tells of eviction, tracking and memory per
client does not exist here; the fields stay in the line, for programs cut it at its names.
"""

from collections.abc import Callable, Sequence
from typing import Final

from . import resp
from .command_replies import help_reply
from .session import Client, PortState, Session

__all__ = ["client_reply", "set_name"]

_SYNTAX: Final = resp.error("ERR syntax error")
_PRINTABLE: Final = range(ord("!"), ord("~") + 1)
_PAIR: Final = 2


def client_reply(arguments: Sequence[bytes], session: Session, port: PortState) -> bytes:
    """Answer CLIENT; ``fault`` found nothing in the arguments."""
    match arguments[1].lower():
        case b"id":
            reply = resp.integer(session.client_id)
        case b"info":
            line = _line(port.clients[session.client_id], port)
            reply = resp.verbatim(line, resp3=session.resp3)
        case b"list":
            reply = _list(arguments[2:], session, port)
        case b"kill":
            reply = _kill(arguments[2:], session, port)
        case b"getname":
            reply = resp.bulk(session.name) if session.name else resp.null(resp3=session.resp3)
        case b"setname":
            reply = set_name(arguments[2], session)
        case b"setinfo":
            reply = _set_info(arguments[2], arguments[3], session)
        case b"no-evict" | b"no-touch":
            reply = _switch(arguments, session)
        case b"reply":
            on = arguments[2].lower() == b"on"
            reply = resp.OK if on else resp.error("ERR replies can't be switched off")
        case _:
            reply = _tracking(arguments, resp3=session.resp3)
    return reply


def _tracking(arguments: Sequence[bytes], *, resp3: bool) -> bytes:
    """Answer what has to do with invalidations, which are never sent; and HELP."""
    match arguments[1].lower():
        case b"tracking":
            if arguments[2].lower() == b"off":
                return resp.OK
            return resp.error("ERR the tracking of keys is not supported")
        case b"trackinginfo":
            off = resp.set_of([resp.bulk(b"off")], resp3=resp3)
            pairs = [
                (resp.bulk(b"flags"), off),
                (resp.bulk(b"redirect"), resp.MINUS_ONE),
                (resp.bulk(b"prefixes"), resp.EMPTY_ARRAY),
            ]
            return resp.mapping(pairs, resp3=resp3)
        case b"getredir":
            return resp.MINUS_ONE
        case b"unblock":
            return resp.ZERO if arguments[2].isdigit() else _NOT_INTEGER
        case _:
            return help_reply(arguments[0])


_NOT_INTEGER: Final = resp.error("ERR value is not an integer or out of range")


def set_name(name: bytes, session: Session) -> bytes:
    """Name a connection; an empty name takes it back."""
    if not _is_printable(name):
        text = "ERR Client names cannot contain spaces, newlines or special characters."
        return resp.error(text)
    session.name = name
    return resp.OK


def _is_printable(text: bytes) -> bool:
    return all(byte in _PRINTABLE for byte in text)


def _set_info(option: bytes, value: bytes, session: Session) -> bytes:
    name = option.lower()
    if name not in (b"lib-name", b"lib-ver"):
        return resp.error(b"ERR Unrecognized option '%b'" % option[:80])
    if not _is_printable(value):
        text = b"ERR %b cannot contain spaces, newlines or special characters." % name
        return resp.error(text)
    if name == b"lib-name":
        session.library = value
    else:
        session.library_version = value
    return resp.OK


def _switch(arguments: Sequence[bytes], session: Session) -> bytes:
    value = arguments[2].lower()
    if value not in (b"on", b"off"):
        return _SYNTAX
    if arguments[1].lower() == b"no-evict":
        session.no_evict = value == b"on"
    else:
        session.no_touch = value == b"on"
    return resp.OK


# CLIENT LIST and CLIENT KILL -----------------------------------------------------------------


def _line(client: Client, port: PortState) -> bytes:
    session = client.session
    received, unsent = client.waiting_bytes
    flags = ("x" if session.transaction is not None else "") + ("r" if session.read_only else "")
    flags += "e" * session.no_evict + "T" * session.no_touch
    queued = len(session.transaction) if session.transaction is not None else -1
    facts: dict[str, str | int] = {
        "id": session.client_id,
        "addr": session.peer,
        "laddr": session.local,
        "fd": client.fileno,
        "name": session.name.decode(),
        "age": int(port.now - session.created_at),
        "idle": int(port.now - session.seen_at),
        "flags": flags or "N",
        "db": 0,
        "sub": 0,
        "psub": 0,
        "ssub": 0,
        "multi": queued,
        "watch": len(session.watched.revisions),
        "qbuf": received,
        "qbuf-free": 0,
        "argv-mem": 0,
        "multi-mem": session.transaction.size_bytes if session.transaction is not None else 0,
        "obl": 0,
        "oll": 0,
        "omem": unsent,
        "tot-mem": received + unsent,
        "events": "rw" if unsent else "r",
        "cmd": session.last_command.lower().decode("ascii", "replace") or "NULL",
        "user": "default",
        "redir": -1,
        "resp": 3 if session.resp3 else 2,
        "lib-name": session.library.decode(),
        "lib-ver": session.library_version.decode(),
    }
    return " ".join(f"{name}={value}" for name, value in facts.items()).encode() + b"\n"


def _list(options: Sequence[bytes], session: Session, port: PortState) -> bytes:
    clients = list(port.clients.values())
    if options:
        word, values = options[0].lower(), options[1:]
        if word == b"type" and len(values) == 1:
            if values[0].lower() not in _TYPES:
                return resp.error(b"ERR Unknown client type '%b'" % values[0][:80])
            clients = clients if values[0].lower() == b"normal" else []
        elif word == b"id" and values:
            if not all(value.isdigit() for value in values):
                return resp.error("ERR Invalid client ID")
            wanted = {int(value) for value in values}
            clients = [client for client in clients if client.session.client_id in wanted]
        else:
            return _SYNTAX
    text = b"".join(_line(client, port) for client in clients)
    return resp.verbatim(text, resp3=session.resp3)


_TYPES: Final = frozenset((b"normal", b"master", b"replica", b"slave", b"pubsub"))
_FILTERS: Final[dict[bytes, Callable[[Session, bytes], bool]]] = {
    b"id": lambda session, value: b"%d" % session.client_id == value,
    b"addr": lambda session, value: session.peer.encode() == value,
    b"laddr": lambda session, value: session.local.encode() == value,
    b"user": lambda _session, value: value == b"default",
    b"type": lambda _session, value: value.lower() == b"normal",
}


def _kill(options: Sequence[bytes], session: Session, port: PortState) -> bytes:
    """Answer both forms: an address, or filters, all of which must fit."""
    if len(options) == 1:
        victims = [one for one in port.clients.values() if _FILTERS[b"addr"](one.session, *options)]
        _end(victims, session)
        return resp.OK if victims else resp.error("ERR No such client")
    if len(options) % _PAIR:
        return _SYNTAX
    filters = dict(zip(options[::2], options[1::2], strict=True))
    filters = {name.lower(): value for name, value in filters.items()}
    skip_me = filters.pop(b"skipme", b"yes").lower()
    if not filters.keys() <= _FILTERS.keys() or skip_me not in (b"yes", b"no"):
        return _SYNTAX
    victims = [
        client
        for client in port.clients.values()
        if all(_FILTERS[name](client.session, value) for name, value in filters.items())
        and not (client.session is session and skip_me == b"yes")
    ]
    _end(victims, session)
    return resp.integer(len(victims))


def _end(victims: Sequence[Client], session: Session) -> None:
    for client in victims:
        if client.session is session:
            session.closing = True  # after this reply
        else:
            client.close()
