"""Commands that the connection answers by itself: nothing of them reaches the log.

:func:`answer` finds the handler of a command of kind CONNECTION in one table. Handlers get a
command with a correct name and number of arguments, and return the encoded reply. They may change
the client's state. EXEC and WATCH are not here: they send requests (:mod:`.conversation`).

AUTH and HELLO may have to wait for a password to be checked, so they are in :mod:`.login`. There is
one database: SELECT accepts 0 only.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ...log_events import log_event
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..clients.transaction import Queued, Transaction, weave
from ..clients.watching import WatchedKeys
from ..commands.introspection import command_reply, help_reply
from ..commands.table import CommandSpec
from ..limits import MAX_CONNECTION_ARGUMENTS, MAX_CONTROL_BYTES
from ..protocol import resp
from ..protocol.resp import CommandError
from .acl_command import acl_reply
from .client_command import client_reply
from .cluster_view import cluster_reply, map_reply
from .info import config_get, info_text, role_reply, settings, status_json
from .slow.latency import latency_reply
from .slow.slowlog import slowlog_reply

__all__ = ["answer", "control_words", "must_wait", "woven"]

_Handler: TypeAlias = Callable[[Sequence[bytes], ClientState, PortState], bytes]

_NOT_INTEGER: Final = resp.error("ERR value is not an integer or out of range")
_SYNTAX: Final = resp.error("ERR syntax error")
_TOO_MANY_ARGUMENTS: Final = resp.error(
    f"ERR this command takes {MAX_CONNECTION_ARGUMENTS} arguments at most"
)
_TOO_LONG: Final = resp.error(f"ERR a control request of more than {MAX_CONTROL_BYTES} bytes")
_MAX_DIGITS: Final = 19
_STATUS_WORDS: Final = 2

_log = logging.getLogger("quorate.keyvalue")


def answer(
    spec: CommandSpec, arguments: Sequence[bytes], client: ClientState, port: PortState
) -> bytes:
    """Answer a connection command; `table.fault` found nothing wrong."""
    handler = _HANDLERS.get(spec.name.partition("|")[0])
    if handler is None:
        return resp.error(f"ERR '{spec.name}' is not supported")
    if len(arguments) > MAX_CONNECTION_ARGUMENTS:
        return _TOO_MANY_ARGUMENTS
    try:
        return handler(arguments, client, port)
    except CommandError as trouble:
        return trouble.reply
    except Exception:  # noqa: BLE001 - a bug in a handler must not end the member
        log_event(
            _log,
            logging.ERROR,
            "command_failed",
            "client %(client)d, command %(command)s",
            exc_info=True,
            client=client.client_id,
            command=spec.name,
        )
        return resp.error(f"ERR internal error in '{spec.name}', see the member's log")


def _ping(arguments: Sequence[bytes], _client: ClientState, _port: PortState) -> bytes:
    match arguments:
        case [_]:
            return resp.PONG
        case [_, text]:
            return resp.bulk(text)
        case _:
            return resp.error("ERR wrong number of arguments for 'ping' command")


def _echo(arguments: Sequence[bytes], _client: ClientState, _port: PortState) -> bytes:
    return resp.bulk(arguments[1])


def _quit(_arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    client.closing = True
    return resp.OK


def _reset(_arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    client.reset()
    port.access.begin(client)
    return resp.simple(b"RESET")


def _select(arguments: Sequence[bytes], _client: ClientState, _port: PortState) -> bytes:
    index = _integer_untrusted(arguments[1])
    if index is None:
        return _NOT_INTEGER
    return resp.OK if index == 0 else resp.error("ERR DB index is out of range")


def _multi(_arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    if client.transaction is not None:
        return resp.error("ERR MULTI calls can not be nested")
    client.transaction = Transaction.begin(client.watched.pairs())
    return resp.OK


def _discard(_arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    if client.transaction is None:
        return resp.error("ERR DISCARD without MULTI")
    client.end_transaction()
    return resp.OK


def _unwatch(_arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    client.watched = WatchedKeys()
    return resp.OK


def _readonly(_arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    client.cluster_aware = True
    # A witness has no state to read from: it redirects reads as it does writes.
    client.read_only = not port.gateway.topology.witness
    return resp.OK


def _readwrite(_arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    client.read_only = False
    return resp.OK


def _asking(_arguments: Sequence[bytes], _client: ClientState, _port: PortState) -> bytes:
    return resp.OK


def _command(arguments: Sequence[bytes], client: ClientState, _port: PortState) -> bytes:
    return command_reply(arguments, resp3=client.resp3)


def _info(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    return resp.verbatim(info_text(arguments[1:], port), resp3=client.resp3)


def _config(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    match arguments[1].lower():
        case b"get":
            reply = config_get(arguments[2:], port, resp3=client.resp3)
        case b"set":
            reply = _config_set(arguments[2:], port)
        case b"resetstat":
            port.counters.reset()
            reply = resp.OK
        case b"rewrite":
            reply = resp.error("ERR The server is running without a config file")
        case _:
            reply = help_reply(arguments[0])
    return reply


def _config_set(pairs: Sequence[bytes], port: PortState) -> bytes:
    """Answer CONFIG SET: nothing can be changed, but setting the present value is accepted."""
    if len(pairs) % 2:
        return _SYNTAX
    seen: set[bytes] = set()
    known = {name.encode(): value.encode() for name, value in settings(port).items()}
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        found = known.get(name.lower())
        if found is None:
            text = b"ERR Unknown option or number of arguments for CONFIG SET - '%b'" % name[:80]
            return resp.error(text)
        trouble = b"duplicate parameter" if name.lower() in seen else b"can't set immutable config"
        if name.lower() in seen or found != value.lower():
            text = b"ERR CONFIG SET failed (possibly related to argument '%b') - %b"
            return resp.error(text % (name, trouble))
        seen.add(name.lower())
    return resp.OK


def _role(_arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    return role_reply(port)


def _wait(arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    """WAIT, answered at once: the number of other members that surely hold all committed writes."""
    if _integer_untrusted(arguments[1]) is None:
        return _NOT_INTEGER
    timeout = _integer_untrusted(arguments[2])
    if timeout is None:
        return resp.error("ERR timeout is not an integer or out of range")
    if timeout < 0:
        return resp.error("ERR timeout is negative")
    return resp.integer(_surely_reached(port))


def _surely_reached(port: PortState) -> int:
    status = port.gateway.status()
    # A committed write is on a quorum, which has the leader in it. More is known at the leader.
    reached = sum(peer.append_position >= status.commit_position for peer in status.peers)
    return max(reached, port.gateway.topology.quorum - 1)


def woven(reply: bytes, transaction: Transaction, client: ClientState, port: PortState) -> bytes:
    """Return the reply to EXEC: the state machine's replies, with those of connection commands."""

    def answer_queued(queued: Queued) -> bytes:
        return answer(queued.spec, queued.arguments, client, port)

    return weave(reply, transaction.local, answer_queued) if transaction.local else reply


def control_words(arguments: Sequence[bytes], client: ClientState) -> bytes:
    """Return the text of QUORATE.CONTROL for the leader, in lower case.

    Raises:
        CommandError: it stands inside of a transaction, or is too long.
    """
    words = b" ".join(arguments[1:]).lower()
    if client.transaction is not None:
        raise CommandError(resp.error("ERR QUORATE.CONTROL inside MULTI is not allowed"))
    if len(words) > MAX_CONTROL_BYTES:
        raise CommandError(_TOO_LONG)
    return words


def must_wait(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes | None:
    """Return the request to the leader if WAIT has to wait; None if it is answered at once."""
    # As in Redis, WAIT never waits in a transaction. Malformed arguments are answered at once.
    count, timeout = _integer_untrusted(arguments[1]), _integer_untrusted(arguments[2])
    if count is None or timeout is None or timeout < 0 or client.transaction is not None:
        return None
    return None if _surely_reached(port) >= count else b"wait %d %d" % (count, timeout)


def _time(_arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    """TIME: log time, the clock by which keys expire; so EXPIREAT and TIME agree."""
    now_ms = port.gateway.now_ms()
    return resp.bulk_array([b"%d" % (now_ms // 1000), b"%d" % (now_ms % 1000 * 1000)])


def _lastsave(_arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    """LASTSAVE: log time of the newest snapshot, 0 before the first one."""
    return resp.integer(port.gateway.status().snapshot_timestamp_ms // 1000)


def _status(arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    since = _integer_untrusted(arguments[1]) if len(arguments) > 1 else None
    if len(arguments) > 1 and (since is None or len(arguments) > _STATUS_WORDS):
        return resp.error("ERR expected QUORATE.STATUS, or QUORATE.STATUS and a number of steps")
    return resp.bulk(status_json(port, since))


def _map(_arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    return map_reply(port, resp3=client.resp3)


def _integer_untrusted(text: bytes) -> int | None:
    """Parse a decimal number; None if it is malformed or does not fit 64 bits."""
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


_HANDLERS: Final[dict[str, _Handler]] = {
    "acl": acl_reply,
    "asking": _asking,
    "client": client_reply,
    "cluster": cluster_reply,
    "command": _command,
    "config": _config,
    "discard": _discard,
    "echo": _echo,
    "info": _info,
    "lastsave": _lastsave,
    "latency": latency_reply,
    "multi": _multi,
    "ping": _ping,
    "quit": _quit,
    "quorate.map": _map,
    "quorate.status": _status,
    "readonly": _readonly,
    "readwrite": _readwrite,
    "reset": _reset,
    "role": _role,
    "select": _select,
    "slowlog": slowlog_reply,
    "time": _time,
    "unwatch": _unwatch,
    "wait": _wait,
}
