"""QUORATE.ONCE session sequence command ...: how a client sends a command of a session.

The member stamps the request with session and sequence; the state machine applies it once
(:mod:`..state.sessions`).
"""

from collections.abc import Sequence
from typing import Final

import attrs

from ...node.requests.request import Stamp
from ..access.commands import CHANGES
from ..clients.transaction import Transaction
from ..commands.arguments import parse_integer
from ..commands.table import CommandSpec, Kind, fault, resolve
from ..protocol import resp
from ..protocol.resp import CommandError

__all__ = ["WORDS_BEFORE_COMMAND", "OnceCommand", "parse_once_untrusted"]

_NOT_A_NUMBER: Final = resp.error("ERR a session and a sequence are integers, 1 or more")
_NOT_A_WRITE: Final = resp.error(
    "ERR QUORATE.ONCE takes a command that writes keys, or EXEC; what only reads may be sent again"
)
_NO_TRANSACTION: Final = resp.error("ERR EXEC without MULTI")
_IN_TRANSACTION: Final = resp.error(
    "ERR inside MULTI only QUORATE.ONCE session sequence EXEC is allowed"
)
_WATCHES: Final = resp.error(
    "ERR QUORATE.ONCE can't be used with WATCH: nobody could send this EXEC again"
)
WORDS_BEFORE_COMMAND: Final = 3
"""The name, the session and the sequence."""


@attrs.frozen
class OnceCommand:
    """A command to be executed exactly once.

    Args:
        stamp: its session and sequence.
        spec: its entry in the table of commands.
        arguments: the command itself.
    """

    stamp: Stamp
    spec: CommandSpec
    arguments: list[bytes]

    @property
    def is_exec(self) -> bool:
        """Whether it ends a transaction."""
        return self.spec.name == "exec"


def parse_once_untrusted(
    arguments: Sequence[bytes], transaction: Transaction | None
) -> OnceCommand:
    """Parse QUORATE.ONCE session sequence command [argument ...].

    Args:
        arguments: all of these words.
        transaction: the client's open transaction; None outside of MULTI.

    Raises:
        CommandError: the command is malformed or not allowed here.
    """
    session, sequence = parse_integer(arguments[1]), parse_integer(arguments[2])
    command = list(arguments[WORDS_BEFORE_COMMAND:])
    if session is None or sequence is None or min(session, sequence) < 1:
        raise CommandError(_NOT_A_NUMBER)
    if (trouble := fault(command)) is not None:
        raise CommandError(resp.error(trouble))
    spec = resolve(command)
    assert spec is not None, "`fault` found nothing wrong"
    once = OnceCommand((session, sequence), spec, command)
    if once.is_exec and transaction is None:
        raise CommandError(_NO_TRANSACTION)
    if once.is_exec and transaction is not None and transaction.watch:
        raise CommandError(_WATCHES)
    if not once.is_exec and transaction is not None:
        raise CommandError(_IN_TRANSACTION)
    writes = spec.kind is Kind.WRITE and spec.name not in {"quorate.session", *CHANGES}
    if not once.is_exec and not writes:
        raise CommandError(_NOT_A_WRITE)
    return once
