"""QUORATE.REQUEST session sequence flags payload: a whole request as one command.

Our own clients send this way. The payload holds commands, each an array of bulk strings, one after
the other: what the state machine gets (:mod:`..protocol.payload`). So a batch of many tasks is one
entry of the log, with one stamp, and needs neither MULTI nor one round trip for each command.

- session, sequence: the stamp of exactly-once commands (:mod:`..state.sessions`); 0 0 for none
- flags: 0 for commands of their own, 2 for one transaction, which may begin with
  ``WATCH key condition ...``

The reply is a bulk string of all replies, joined, so that a client cuts it where it likes. If
nothing was executed, or the first reply is gone, the reply is an error.

What is checked
    A client writes the payload, so each command in it is checked like one of its own: name, number
    of arguments, permission, and where the leader is. Commands of the connection, and those that
    change users, are refused: they need more than the state machine.

Memory
    The parser has bounded the whole argument. Here the number of commands and arguments is bounded
    while they are split, because each becomes an object.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs

from ...node.requests.request import RequestKind, Stamp
from ..access.commands import CHANGES
from ..clients.transaction import TOO_MANY
from ..commands.arguments import parse_integer
from ..commands.table import CommandSpec, Kind, fault, resolve
from ..limits import (
    ARGUMENT_WORK,
    MAX_ARGUMENTS,
    MAX_TRANSACTION_COMMANDS,
    MAX_WATCHED_KEYS,
    MAX_WORK,
    RUN_BYTES,
)
from ..native.resp_reader import split_untrusted
from ..protocol import resp
from ..protocol.payload import TRANSACTION, watched_keys
from ..protocol.resp import CommandError
from .routes import uniform_kind

__all__ = ["WholeRequest", "parse_request_untrusted"]

_MOST_ARGUMENTS: Final = MAX_WORK // ARGUMENT_WORK
"""With more, every command would be refused for its work."""

_BAD_STAMP: Final = resp.error(
    "ERR a session and a sequence are integers, both 1 or more, or both 0 for a request without a "
    "session"
)
_BAD_FLAGS: Final = resp.error(
    f"ERR flags are 0 for commands of their own, or {TRANSACTION} for one transaction"
)
_BAD_PAYLOAD: Final = resp.error(
    "ERR the payload of QUORATE.REQUEST is not RESP: expected whole arrays of bulk strings, "
    f"with {MAX_ARGUMENTS} elements at most"
)
_EMPTY: Final = resp.error("ERR the payload of QUORATE.REQUEST has no command")
_TOO_MANY_ARGUMENTS: Final = resp.error(
    f"ERR the payload of QUORATE.REQUEST has more than {_MOST_ARGUMENTS} arguments: send less at "
    "once"
)
_BAD_WATCH: Final = resp.error(
    "ERR WATCH in QUORATE.REQUEST takes keys and revisions in turn, "
    f"{MAX_WATCHED_KEYS} keys at most"
)
_CONDITION: Final = re.compile(rb"(?:0|[1-9][0-9]{0,18})\??").fullmatch
_SESSION: Final = b"quorate.session"
_LOST: Final = (b"-NOSESSION ", b"-FORGOTTEN ")


@attrs.frozen
class WholeRequest:
    """A request that a client has made.

    Args:
        stamp: its session and sequence; zeros for none.
        flags: `TRANSACTION` or 0.
        payload: for the state machine.
        commands: the commands in it; a WATCH without its conditions.
        kind: whether it goes through the log.
    """

    stamp: Stamp
    flags: int
    payload: bytes
    commands: list[list[bytes]]
    kind: RequestKind

    def specs(self) -> Iterable[tuple[CommandSpec, list[bytes]]]:
        """Yield the commands with their entries in the table."""
        for words in self.commands:
            spec = resolve(words)
            assert spec is not None, "it was resolved before"
            yield spec, words

    def convert(self) -> Callable[[bytes], bytes]:
        """Return a function that makes the reply to the client from that of the state machine."""
        # The state machine marks no error as one of the whole request. In a transaction any error
        # in place of the array is one; with a stamp, two others are. The function does not keep the
        # commands, because a request may be parked for long.
        whole = (b"-",) if self.flags & TRANSACTION else _LOST if self.stamp[0] else ()
        return partial(_reply, whole)


def _reply(whole: tuple[bytes, ...], result: bytes) -> bytes:
    return result if result.startswith(whole) else resp.bulk(result)


def parse_request_untrusted(arguments: Sequence[bytes]) -> WholeRequest:
    """Parse QUORATE.REQUEST session sequence flags payload.

    Raises:
        CommandError: it is malformed, too large, or has a command that may not be in it.
    """
    session, sequence, flags = (parse_integer(word) for word in arguments[1:4])
    if (
        session is None
        or sequence is None
        or (session < 1 or sequence < 1) != (session == sequence == 0)
    ):
        raise CommandError(_BAD_STAMP)
    if flags not in (0, TRANSACTION):
        raise CommandError(_BAD_FLAGS)
    payload = arguments[4]
    commands = _split_untrusted(payload)
    watch: list[list[bytes]] = []
    if flags and commands[0][0].upper() == b"WATCH":
        watch = [_without_conditions_untrusted(commands.pop(0))]
    if len(commands) > MAX_TRANSACTION_COMMANDS:
        raise CommandError(TOO_MANY)
    kind = uniform_kind(commands)  # most requests are as simple as that
    if kind is None or (session and _SESSION in {words[0].lower() for words in commands}):
        kind = _kind_untrusted(commands, stamped=session > 0)
    # With a stamp even reads go through the log: their reply must be kept for a repetition.
    kind = RequestKind.COMMAND if session else kind
    return WholeRequest((session, sequence), flags, payload, watch + commands, kind)


def _split_untrusted(payload: bytes) -> list[list[bytes]]:
    """Split a payload into its commands, at least one.

    Raises:
        CommandError: it is not plain RESP, or has more commands and arguments than may be.
    """
    commands: list[list[bytes]] = []
    at = count = 0
    window = RUN_BYTES
    # In pieces, so that objects are counted before all of them are made.
    while at < len(payload):
        some, size = split_untrusted(payload[at : at + window], MAX_ARGUMENTS)
        at += size
        count += sum(map(len, some))
        commands += some
        if count > _MOST_ARGUMENTS:
            raise CommandError(_TOO_MANY_ARGUMENTS)
        if not size and at + window >= len(payload):
            raise CommandError(_BAD_PAYLOAD)
        window = RUN_BYTES if size else 2 * window  # a command that is longer than the window
    if not commands:
        raise CommandError(_EMPTY)
    return commands


def _without_conditions_untrusted(watch: list[bytes]) -> list[bytes]:
    """Check WATCH key condition ...; return WATCH key ..."""
    keys = watched_keys(watch)
    conditions = watch[2::2]
    whole = 0 < len(keys) == len(conditions) <= MAX_WATCHED_KEYS
    if not whole or not all(map(_CONDITION, conditions)):
        raise CommandError(_BAD_WATCH)
    return [watch[0], *keys]


def _kind_untrusted(commands: Sequence[list[bytes]], *, stamped: bool) -> RequestKind:
    """Check each command by itself; return the kind of the request.

    Raises:
        CommandError: one of them can't be executed by the state machine.
    """
    kind = RequestKind.QUERY
    for number, words in enumerate(commands, 1):
        spec = resolve(words)
        problem = fault(words)
        if problem is None and spec is not None:
            name = spec.name.replace("|", " ").upper().encode()
            if spec.kind is Kind.CONNECTION or spec.name in CHANGES:
                problem = b"ERR %b is not allowed in QUORATE.REQUEST: send it by itself" % name
            elif stamped and name == _SESSION.upper():
                problem = b"ERR %b needs a request without a session" % name
            elif spec.kind is Kind.WRITE:
                kind = RequestKind.COMMAND
        if problem is not None:
            raise CommandError(resp.error(b"ERR command %d: %b" % (number, problem[4:])))
    return kind
