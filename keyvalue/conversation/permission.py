"""Whether the client's user may run a command now."""

from typing import Final

from ..clients.watching import WatchedKeys
from ..commands.table import CommandSpec, resolve
from ..protocol import resp
from .client_command import client_line
from .steps import Steps, answer_error

__all__ = ["LOGINS", "denied", "must_know_users", "permits", "refuse_denied"]

LOGINS: Final = frozenset(("auth", "hello"))
"""The commands that may let a client in."""

_HELLO_WITHOUT_LOGIN: Final = 2


def permits(steps: Steps, arguments: list[bytes]) -> bool:
    """Whether the user may run a command, which is a part of a run."""
    spec = resolve(arguments)
    return spec is not None and steps.client.access.denial(spec, arguments) is None


def must_know_users(steps: Steps, spec: CommandSpec, arguments: list[bytes]) -> bool:
    """Whether a command waits until the users are known; see `access.directory`."""
    if steps.port.access.users.known:
        return False
    if spec.name in LOGINS:
        return len(arguments) > _HELLO_WITHOUT_LOGIN or spec.name == "auth"
    # A cluster that is not founded has no leader, and no users.
    if spec.name == "quorate.control" and arguments[1].lower() == b"found":
        return False
    return steps.client.access.denial(spec, arguments) is not None


def denied(steps: Steps, spec: CommandSpec, arguments: list[bytes]) -> bytes | None:
    """Return the text of the error if the user may not run a command."""
    client, port = steps.client, steps.port
    denial = client.access.denial(spec, arguments)
    # See `must_know_users`, which lets this one pass.
    if denial is None or (denial.what == b"quorate.control" and not port.access.users.known):
        return None
    return port.access.deny(
        client, denial, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
    )


def refuse_denied(steps: Steps, spec: CommandSpec, text: bytes) -> None:
    """Answer a command that the user may not run."""
    client = steps.client
    if spec.name == "exec" and client.transaction is not None:
        client.watched, client.transaction = WatchedKeys(), None
        text = b"EXECABORT Transaction discarded because of: " + text
    answer_error(steps, resp.error(text))
