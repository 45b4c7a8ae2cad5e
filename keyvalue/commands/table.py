"""The commands: what each takes, where its keys are, and who answers it.

One table, built once from the rows of :mod:`.command_rows` and never changed. :func:`lookup` is the
hot way in: a dictionary that holds the usual spellings (``SET`` and ``set``), then a second try in
lower case. A command with subcommands (CLIENT, OBJECT) is a container: :func:`resolve` finds the
subcommand's own specification.

What is wrong with a command before it runs, an unknown name or a wrong number of arguments, is
found by :func:`fault` with Redis 7's exact texts (bytes, for they quote the client's). The replies
of COMMAND itself, which are this table in another form, are in :mod:`.command_replies`.
"""

from collections.abc import Sequence
from typing import Final

from .rows import build_rows
from .spec import CommandSpec, Kind

__all__ = [
    "CommandSpec",
    "Kind",
    "all_commands",
    "fault",
    "keys_of",
    "lookup",
    "resolve",
    "unknown_command",
    "unknown_subcommand",
    "wrong_arity",
]

_QUOTED_BYTES: Final = 128
_SCRIPTING: Final = frozenset(
    b"eval eval_ro evalsha evalsha_ro fcall fcall_ro function script".split()
)

_COMMANDS: Final = build_rows()
_BY_SPELLING: Final = {
    spelling.encode(): spec for spec in _COMMANDS for spelling in (spec.name, spec.name.upper())
}


def lookup(name: bytes) -> CommandSpec | None:
    """Find a command by its name in any case, or None."""
    return _BY_SPELLING.get(name) or _BY_SPELLING.get(name.lower())


def resolve(arguments: Sequence[bytes]) -> CommandSpec | None:
    """Find what a whole command means: the subcommand of a container, else the command, or None."""
    spec = lookup(arguments[0])
    if spec is not None and spec.subcommands and len(arguments) > 1:
        return spec.subcommands.get(arguments[1].lower())
    return spec


def fault(arguments: Sequence[bytes]) -> bytes | None:
    """Say what is wrong with a command before it runs, in Redis 7's words; None when it may run."""
    spec = lookup(arguments[0])
    if spec is None:
        return unknown_command(arguments)
    if spec.subcommands and len(arguments) > 1:
        subcommand = spec.subcommands.get(arguments[1].lower())
        if subcommand is None:
            return unknown_subcommand(arguments)
        spec = subcommand
    return None if spec.takes(len(arguments)) else wrong_arity(spec)


def wrong_arity(spec: CommandSpec) -> bytes:
    """Word the error for a wrong number of arguments."""
    return b"ERR wrong number of arguments for '%b' command" % spec.name.encode()


def unknown_command(arguments: Sequence[bytes]) -> bytes:
    """Word the error for an unknown command; quotes at most 128 bytes of name and arguments.

    Libraries must not take a script that is refused for one that failed, so this says what it is.
    """
    if arguments[0].lower() in _SCRIPTING:
        return (
            b"ERR scripts are not supported: %b was not executed; "
            b"docs/clients.md lists libraries that need them" % arguments[0].upper()
        )
    quoted = b""
    for argument in arguments[1:]:
        if len(quoted) >= _QUOTED_BYTES:
            break
        quoted += b"'%b' " % _quote(argument, _QUOTED_BYTES - len(quoted))
    name = _quote(arguments[0], _QUOTED_BYTES)
    return b"ERR unknown command '%b', with args beginning with: %b" % (name, quoted)


def unknown_subcommand(arguments: Sequence[bytes]) -> bytes:
    """Word the error for a container's unknown subcommand."""
    name = _quote(arguments[1], _QUOTED_BYTES)
    return b"ERR unknown subcommand '%b'. Try %b HELP." % (name, arguments[0].upper())


def _quote(argument: bytes, limit: int) -> bytes:
    """Cut an argument as C's ``%.*s`` does: at the limit or at a NUL."""
    return argument[:limit].partition(b"\0")[0]


def keys_of(spec: CommandSpec, arguments: Sequence[bytes]) -> Sequence[bytes]:
    """Return the arguments of a command that are keys."""
    if spec.first_key == 0:
        return ()
    last = spec.last_key if spec.last_key > 0 else len(arguments) + spec.last_key
    return arguments[spec.first_key : last + 1 : spec.step]


def all_commands() -> tuple[CommandSpec, ...]:
    """Return every command (containers, not their subcommands) in the order of the rows."""
    return _COMMANDS
