"""CLIENT: one connection inspects and changes the connections of this member.

Ids count from 1 since the member's start. Eviction, tracking and memory per client do not exist
here. Their fields stay in the lines of CLIENT LIST, because programs parse them by name.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ..clients.client_state import LOUD, OFF, SKIP_NEXT, ClientState
from ..clients.port_state import ClientConnection, PortState
from ..commands.arguments import integer, parse_integer
from ..commands.introspection import help_reply
from ..protocol import resp
from ..protocol.resp import CommandError

__all__ = ["client_line", "client_reply", "is_printable", "set_name"]

_SYNTAX: Final = resp.error("ERR syntax error")
_PRINTABLE: Final = range(ord("!"), ord("~") + 1)
_PAIR: Final = 2


def client_reply(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    """Answer CLIENT; `table.fault` found nothing wrong."""
    match arguments[1].lower():
        case b"id":
            reply = resp.integer(client.client_id)
        case b"info":
            line = _line(port.clients[client.client_id], port, arguments)
            reply = resp.verbatim(line, resp3=client.resp3)
        case b"list":
            reply = _list(arguments, client, port)
        case b"kill":
            reply = _kill(arguments[2:], client, port)
        case b"getname":
            reply = resp.bulk(client.name) if client.name else resp.null(resp3=client.resp3)
        case b"setname":
            reply = set_name(arguments[2], client)
        case b"setinfo":
            reply = _set_info(arguments[2], arguments[3], client)
        case b"no-evict" | b"no-touch":
            reply = _switch(arguments, client)
        case b"reply":
            reply = _reply(arguments[2].lower(), client)
        case _:
            reply = _tracking(arguments, resp3=client.resp3)
    return reply


def _tracking(arguments: Sequence[bytes], *, resp3: bool) -> bytes:
    """Answer the subcommands on invalidations, which are never sent; UNBLOCK; and HELP."""
    match arguments[1].lower():
        case b"tracking":
            match arguments[2].lower():
                case b"off":
                    return resp.OK
                case b"on":
                    return resp.error("ERR the tracking of keys is not supported")
                case _:
                    return _SYNTAX
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
            return _unblock(arguments)
        case _:
            return help_reply(arguments[0])


def _unblock(arguments: Sequence[bytes]) -> bytes:
    """CLIENT UNBLOCK id [TIMEOUT | ERROR]: no client is ever blocked."""
    match arguments[3:]:
        case []:
            pass
        case [reason]:
            if reason.lower() not in (b"timeout", b"error"):
                return resp.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
        case _:
            text = b"ERR unknown subcommand or wrong number of arguments for '%b'. Try CLIENT HELP."
            return resp.error(text % arguments[1])
    integer(arguments[2])
    return resp.ZERO


def _reply(word: bytes, client: ClientState) -> bytes:
    """CLIENT REPLY ON | OFF | SKIP. In MULTI it leaves a hole in the reply to EXEC, as in Redis."""
    match word:
        case b"on":
            client.quiet = LOUD
            return resp.OK
        case b"off":
            client.quiet = OFF
            return b""
        case b"skip":
            if client.quiet != OFF:
                client.quiet = SKIP_NEXT
            return b""
        case _:
            return _SYNTAX


def set_name(name: bytes, client: ClientState) -> bytes:
    """Set the name of a connection; an empty name removes it."""
    if not is_printable(name):
        text = "ERR Client names cannot contain spaces, newlines or special characters."
        return resp.error(text)
    client.name = name
    return resp.OK


def is_printable(text: bytes) -> bool:
    """Whether a text may be the name of a connection."""
    return all(byte in _PRINTABLE for byte in text)


def _set_info(option: bytes, value: bytes, client: ClientState) -> bytes:
    name = option.lower()
    if name not in (b"lib-name", b"lib-ver"):
        return resp.error(b"ERR Unrecognized option '%b'" % option[:80])
    if not is_printable(value):
        text = b"ERR %b cannot contain spaces, newlines or special characters." % name
        return resp.error(text)
    if name == b"lib-name":
        client.library = value
    else:
        client.library_version = value
    return resp.OK


def _switch(arguments: Sequence[bytes], client: ClientState) -> bytes:
    value = arguments[2].lower()
    if value not in (b"on", b"off"):
        return _SYNTAX
    if arguments[1].lower() == b"no-evict":
        client.no_evict = value == b"on"
    else:
        client.no_touch = value == b"on"
    return resp.OK


# CLIENT LIST and CLIENT KILL -----------------------------------------------------------------


def client_line(client: ClientState, port: PortState) -> bytes:
    """Describe a client in one line, as ACL LOG shows it."""
    return _line(port.clients[client.client_id], port).rstrip()


def _line(connection: ClientConnection, port: PortState, asking: Sequence[bytes] = ()) -> bytes:
    """Describe a connection in one line.

    Args:
        connection: the one to describe.
        port: shared state.
        asking: the present command, if this connection sent it; it counts as received.
    """
    client = connection.client
    received, unsent = connection.waiting_bytes
    received += len(resp.bulk_array(asking)) if asking else 0
    flags = ("x" if client.transaction is not None else "") + ("r" if client.read_only else "")
    flags += "e" * client.no_evict + "T" * client.no_touch
    queued = len(client.transaction) if client.transaction is not None else -1
    facts: dict[str, str | int] = {
        "id": client.client_id,
        "addr": client.peer,
        "laddr": client.local,
        "fd": connection.fileno,
        "name": client.name.decode(),
        "age": int(port.now - client.created_at),
        "idle": int(port.now - client.seen_at),
        "flags": flags or "N",
        "db": 0,
        "sub": 0,
        "psub": 0,
        "ssub": 0,
        "multi": queued,
        "watch": len(client.watched.revisions),
        "qbuf": received,
        "qbuf-free": 0,
        "argv-mem": sum(map(len, asking)),
        "multi-mem": client.transaction.size_bytes if client.transaction is not None else 0,
        "rbs": 0,
        "rbp": 0,
        "obl": 0,
        "oll": 0,
        "omem": unsent,
        "tot-mem": received + unsent,
        "events": "rw" if unsent else "r",
        "cmd": client.last_command.lower().decode("ascii", "replace") or "NULL",
        "user": client.user.decode("utf-8", "backslashreplace"),
        "redir": -1,
        "resp": 3 if client.resp3 else 2,
        "lib-name": client.library.decode(),
        "lib-ver": client.library_version.decode(),
    }
    return " ".join(f"{name}={value}" for name, value in facts.items()).encode() + b"\n"


def _list(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    clients = list(port.clients.values())
    match arguments[2:]:
        case []:
            pass
        case [word, kind] if word.lower() == b"type":
            clients = clients if _is_normal(kind) else []
        case [word, *ids] if word.lower() == b"id" and ids:
            wanted = {parse_integer(one) for one in ids}
            if None in wanted:
                return resp.error("ERR Invalid client ID")
            clients = [
                connection for connection in clients if connection.client.client_id in wanted
            ]
        case _:
            return _SYNTAX
    lines = [_line(one, port, arguments if one.client is client else ()) for one in clients]
    return resp.verbatim(b"".join(lines), resp3=client.resp3)


_TYPES: Final = frozenset((b"normal", b"master", b"replica", b"slave", b"pubsub"))
_Filter: TypeAlias = Callable[[ClientState], bool]


def _is_normal(kind: bytes) -> bool:
    if kind.lower() not in _TYPES:
        raise CommandError(resp.error(b"ERR Unknown client type '%b'" % kind[:80]))
    return kind.lower() == b"normal"


def _kill(options: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    """Answer both forms of CLIENT KILL: an address, or filters that all must match."""
    if len(options) == 1:
        address = options[0]
        victims = [one for one in port.clients.values() if one.client.peer.encode() == address]
        _end(victims, client)
        return resp.OK if victims else resp.error("ERR No such client")
    if len(options) % _PAIR:
        return _SYNTAX
    filters: dict[bytes, _Filter] = {}  # of two filters of one name the last one counts
    skip_me = True
    for word, value in zip(options[::2], options[1::2], strict=True):
        if word.lower() != b"skipme":
            filters[word.lower()] = _filter(word.lower(), value, port)
        elif value.lower() in (b"yes", b"no"):
            skip_me = value.lower() == b"yes"
        else:
            return _SYNTAX
    victims = [
        connection
        for connection in port.clients.values()
        if all(fits(connection.client) for fits in filters.values())
        and not (connection.client is client and skip_me)
    ]
    _end(victims, client)
    return resp.integer(len(victims))


def _filter(name: bytes, value: bytes, port: PortState) -> _Filter:
    """Parse one filter of CLIENT KILL.

    Raises:
        CommandError: its name is unknown, or its value is malformed.
    """
    match name:
        case b"id":
            number = _positive(value, "client-id")
            return lambda client: client.client_id == number
        case b"maxage":
            age, now = _positive(value, "maxage"), port.now
            return lambda client: now - client.created_at >= age
        case b"addr":
            return lambda client: client.peer.encode() == value
        case b"laddr":
            return lambda client: client.local.encode() == value
        case b"type":
            normal = _is_normal(value)
            return lambda _session: normal
        case b"user" if port.access.users.get(value) is not None:
            return lambda client: client.user == value
        case b"user":
            raise CommandError(resp.error(b"ERR No such user '%b'" % value[:80]))
        case _:
            raise CommandError(_SYNTAX)


def _positive(value: bytes, what: str) -> int:
    number = parse_integer(value)
    if number is None and what == "maxage":
        raise CommandError(resp.error("ERR maxage is not an integer or out of range"))
    if number is None or number <= 0:
        raise CommandError(resp.error(f"ERR {what} should be greater than 0"))
    return number


def _end(victims: Sequence[ClientConnection], client: ClientState) -> None:
    for connection in victims:
        if connection.client is client:
            client.closing = True  # it still gets the reply to this command
        else:
            connection.close()
