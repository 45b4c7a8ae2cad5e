"""Whether the client's user may run a command now."""

from typing import Final

from ...node.requests.request import Request, RequestKind
from ..commands.table import CommandSpec, resolve
from ..protocol import resp
from ..protocol.payload import TRANSACTION, PayloadParser, watched_keys
from .client_command import client_line
from .steps import Steps, refuse

__all__ = ["LOGINS", "denied", "denied_now", "must_know_users", "permits", "refuse_denied"]

LOGINS: Final = frozenset(("auth", "hello"))
"""The commands that may let a client in."""

_HELLO_WITHOUT_LOGIN: Final = 2
_CONTROL: Final = [b"QUORATE.CONTROL", b""]
_WAIT: Final = [b"WAIT", b"0", b"0"]
# The commands that carry others, as far as rules concern them.
_CARRIERS: Final = {
    b"quorate.once": [[b"QUORATE.ONCE", b"1", b"1", b""]],
    b"quorate.request": [[b"QUORATE.REQUEST", b"0", b"0", b"0", b""]],
}


def permits(steps: Steps, arguments: list[bytes]) -> bool:
    """Whether the user may run a command, which is a part of a run."""
    spec = resolve(arguments)
    return spec is not None and steps.client.access.denial(spec, arguments) is None


def must_know_users(steps: Steps, spec: CommandSpec, arguments: list[bytes]) -> bool:
    """Whether a command waits until the users are known; see `access.directory`."""
    client, access = steps.client, steps.port.access
    if access.users.known:
        return False
    if spec.name in LOGINS:
        return len(arguments) > _HELLO_WITHOUT_LOGIN or spec.name == "auth"
    # For a stranger they make no difference, so it is answered at once, and takes no room.
    if access.is_stranger(client) or _founds(steps, spec, arguments):
        return False
    return client.access.denial(spec, arguments) is not None


def _founds(steps: Steps, spec: CommandSpec, arguments: list[bytes]) -> bool:
    """Whether a command founds the cluster, which has no leader yet, and no users."""
    founds = spec.name == "quorate.control" and arguments[1].lower() == b"found"
    return founds and steps.port.access.may_found(steps.client)


def denied(steps: Steps, spec: CommandSpec, arguments: list[bytes]) -> bytes | None:
    """Return the text of the error if the user may not run a command."""
    client, port = steps.client, steps.port
    denial = client.access.denial(spec, arguments)
    if denial is None or _founds(steps, spec, arguments):
        return None
    return port.access.deny(
        client, denial, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
    )


def denied_now(steps: Steps, request: Request) -> bytes | None:
    """Return the text of the error if a request that was allowed before is so no more.

    While the users are unknown, that is no answer yet.
    """
    client, port = steps.client, steps.port
    if client.access.open:
        return None
    for arguments in _commands_of(request, client.last_command):
        spec = resolve(arguments)
        assert spec is not None, "it was resolved when the request was made"
        if (denial := client.access.denial(spec, arguments)) is not None:
            if not port.access.users.known:
                return denial.text
            return port.access.deny(
                client, denial, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
            )
    return None


def _commands_of(request: Request, last_command: bytes) -> list[list[bytes]]:
    """Return the commands that a request was made of, as far as rules concern them."""
    if request.kind is RequestKind.CONTROL:
        return [_WAIT if request.payload.startswith(b"wait ") else _CONTROL]
    commands = PayloadParser().parse_untrusted(request.payload)
    if request.flags & TRANSACTION and commands[0][0].upper() == b"WATCH":
        commands[0][1:] = watched_keys(commands[0])
    # The client waits for this request, so its last command is the one that made it.
    return _CARRIERS.get(last_command, []) + commands


def refuse_denied(steps: Steps, spec: CommandSpec, arguments: list[bytes], text: bytes) -> None:
    """Answer a command that the user may not run."""
    if spec.name == "exec" and steps.client.transaction is not None:
        text = b"EXECABORT Transaction discarded because of: " + text
    refuse(steps, arguments, resp.error(text))
