"""The table of commands: what each takes, where its keys are, and which part answers it.

The table is built once, from the text in :mod:`.rows`, and never changes. :func:`lookup` is the hot
way in: it tries the usual spellings (``SET`` and ``set``), then lower case. A command with
subcommands (CLIENT, OBJECT) is a *container*; :func:`resolve` finds the subcommand's own entry.

:func:`fault` finds what is wrong with a command before it runs: an unknown name, or a wrong number
of arguments. It uses Redis 7's exact texts. They are bytes, because they quote the client's bytes.
The replies of COMMAND show the same table in another form (:mod:`.introspection`).
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
    """Find the entry of a whole command: of the subcommand in a container, or None."""
    spec = lookup(arguments[0])
    if spec is not None and spec.subcommands and len(arguments) > 1:
        return spec.subcommands.get(arguments[1].lower())
    return spec


def fault(arguments: Sequence[bytes]) -> bytes | None:
    """Return what is wrong with a command, in Redis 7's words; None if it may run."""
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
    """Return the error text for a wrong number of arguments."""
    return b"ERR wrong number of arguments for '%b' command" % spec.name.encode()


def unknown_command(arguments: Sequence[bytes]) -> bytes:
    """Return the error text for an unknown command; it quotes at most 128 bytes of arguments."""
    # Libraries read the text: a script that was refused must not look like one that failed.
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
    """Return the error text for an unknown subcommand."""
    name = _quote(arguments[1], _QUOTED_BYTES)
    return b"ERR unknown subcommand '%b'. Try %b HELP." % (name, arguments[0].upper())


def _quote(argument: bytes, limit: int) -> bytes:
    """Cut an argument like C's ``%.*s``: at the limit, or at the first NUL."""
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
