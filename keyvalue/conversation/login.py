"""AUTH and HELLO: their arguments, and what a login changes. Checking a password may take long."""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ...errors import NoLeaderError
from ..access.logins import NO_PASSWORD, Pending
from ..access.users import DEFAULT_NAME
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..clients.request_errors import error_text
from ..protocol import resp
from ..protocol.payload import RESP3
from ..protocol.resp import CommandError
from .client_command import client_line, is_printable, set_name
from .info import REDIS_VERSION
from .steps import Result

__all__ = ["WRONG_PASSWORD", "Login", "begin_login"]

WRONG_PASSWORD: Final = resp.error("WRONGPASS invalid username-password pair or user is disabled.")
_NO_PASSWORD: Final = resp.error(
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
_LOGIN_FIRST: Final = resp.error(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
    "version at the same time"
)
_SYNTAX: Final = resp.error("ERR syntax error")
_PROTOCOLS: Final = {b"2": 0, b"3": RESP3}


@attrs.frozen
class Login:
    """A login whose password must be checked on another thread.

    Args:
        work: for the verifier.
        finish: makes the reply of its result, and lets the client in if it is right.
    """

    work: Callable[[], bytes]
    finish: Callable[[Result], bytes]


@attrs.frozen
class _Asked:
    """What AUTH or HELLO asks for, parsed.

    Args:
        user: name and secret; None for HELLO without AUTH.
        done: makes the reply once the client is let in.
    """

    user: tuple[bytes, bytes] | None
    done: Callable[[], bytes]


def begin_login(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes | Login:
    """Return the reply to AUTH or HELLO, or what must be done first."""
    try:
        asked = (
            _parse_auth(arguments, port)
            if arguments[0].lower() == b"auth"
            else _parse_hello(arguments, client, port)
        )
    except CommandError as trouble:
        return trouble.reply
    if asked.user is None:
        if client.logged_in:
            return asked.done()
        why_not = port.access.why_not_in(client)
        return resp.error(why_not) if why_not else _LOGIN_FIRST
    name, secret = asked.user

    def finish(proof: bytes | None) -> bytes:
        # The user may have changed while the secret was checked.
        if not proof or not port.access.lets_in(client, name, proof):
            port.access.deny_login(
                client, name, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
            )
            # Whatever its password: it can't come from there yet, and nor can anybody else.
            none_yet = proof == NO_PASSWORD and port.access.why_not_in(client)
            return resp.error(none_yet) if none_yet else WRONG_PASSWORD
        port.access.log_in(client, name, proof)
        return asked.done()

    def finish_later(result: Result) -> bytes:
        assert isinstance(result, bytes), "work off the event loop returns bytes"
        if result.startswith(b"-"):  # the verifier's own error
            return result
        # An election has begun: a right password must not be called wrong.
        if not port.access.users.known:
            return resp.error(error_text(NoLeaderError()))
        port.access.logins.remember(secret, result)
        return finish(result)

    found = port.access.logins.check(name, secret)
    if isinstance(found, Pending):
        return Login(found.work, finish_later)
    return finish(found)


def _parse_auth(arguments: Sequence[bytes], port: PortState) -> _Asked:
    match arguments[1:]:
        case [secret]:
            default = port.access.users.get(DEFAULT_NAME)
            judged = port.access.logins.judged
            if default is not None and default.nopass and not judged:
                raise CommandError(_NO_PASSWORD)
            return _Asked((DEFAULT_NAME, secret), lambda: resp.OK)
        case [name, secret]:
            return _Asked((name, secret), lambda: resp.OK)
        case _:
            raise CommandError(_SYNTAX)


def _parse_hello(arguments: Sequence[bytes], client: ClientState, port: PortState) -> _Asked:
    """HELLO [version [AUTH user password] [SETNAME name]]."""
    flags, user, own_name = client.flags, None, client.name
    if len(arguments) > 1:
        flags = _protocol(arguments[1])
    options = list(arguments[2:])
    while options:
        match options:
            case [word, name, secret, *rest] if word.lower() == b"auth":
                user, options = (name, secret), rest
            case [word, own_name, *rest] if word.lower() == b"setname":
                if not is_printable(own_name):
                    raise CommandError(set_name(own_name, client))
                options = rest
            case _:
                text = b"ERR Syntax error in HELLO option '%b'" % options[0][:80]
                raise CommandError(resp.error(text))

    def done() -> bytes:
        client.name, client.flags = own_name, flags
        if not client.resp3:
            client.watches.end_all()  # RESP2 has no pushes
        return _greeting(client, port)

    return _Asked(user, done)


def _protocol(text: bytes) -> int:
    if text in _PROTOCOLS:
        return _PROTOCOLS[text]
    digits = text[1:] if text[:1] == b"-" else text
    number = digits.isdigit() and len(digits) <= len(str(1 << 63))
    if number and -(1 << 63) <= int(text) < 1 << 63:
        if int(text) in (2, 3):  # 02
            return _PROTOCOLS[b"%d" % int(text)]
        raise CommandError(resp.error("NOPROTO unsupported protocol version"))
    text_ = "ERR Protocol version is not an integer or out of range"
    raise CommandError(resp.error(text_))


def _greeting(client: ClientState, port: PortState) -> bytes:
    facts = {
        b"server": resp.bulk(b"redis"),
        b"version": resp.bulk(REDIS_VERSION.encode()),
        b"proto": resp.integer(3 if client.resp3 else 2),
        b"id": resp.integer(client.client_id),
        b"mode": resp.bulk(b"cluster"),
        b"role": resp.bulk(b"master" if port.gateway.topology.is_leader else b"replica"),
        b"modules": resp.EMPTY_ARRAY,
    }
    pairs = [(resp.bulk(name), value) for name, value in facts.items()]
    return resp.mapping(pairs, resp3=client.resp3)
