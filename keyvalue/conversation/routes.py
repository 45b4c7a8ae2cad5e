"""Routes: whether a command goes through the log, is a query, or is answered by the connection.

Runs
    The commands of a pipeline are cut into *runs*: neighbours that travel as one request, and so as
    one log entry with one reply. A run with a write goes through the log as a whole, with the reads
    in it, so that their order holds. A run of reads is one query. KEYS, SCAN and RANDOMKEY are runs
    of their own.

One lookup per command
    The table of routes has an entry for each pair of name *as spelt* and number of arguments. So
    one lookup answers for spelling, arity and kind at once. Entries are made when first needed. A
    client may invent spellings and numbers, so the table is emptied when it is full.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ...node.requests.request import RequestKind
from ..commands.table import Kind, lookup
from ..limits import RUN_COMMANDS
from ..protocol.resp import pack

__all__ = ["ATTACKS", "AT_ONCE", "KINDS", "run_of", "uniform_kind"]

AT_ONCE: Final = frozenset(
    (
        *("exec", "discard", "multi", "watch", "quit", "reset"),
        *("quorate.control", "quorate.once", "quorate.request"),
        *("quorate.watch", "quorate.unwatch"),
    )
)
"""Commands that are never queued in a transaction."""

ATTACKS: Final = frozenset((b"post", b"host:"))
"""Words of HTTP: a web page made a browser send commands (Redis: securityWarningCommand)."""

KINDS: Final = {Kind.WRITE: RequestKind.COMMAND, Kind.READ: RequestKind.QUERY}

_COMMAND: Final = int(RequestKind.COMMAND)
_QUERY: Final = int(RequestKind.QUERY)
_NEITHER: Final = 2  # for the connection, malformed, or a container's subcommand
_ALONE: Final = 3  # a walk over keys: several in one request would take too long
_WALKS: Final = frozenset(("keys", "randomkey", "scan"))
# Spellings and numbers of arguments whose route is remembered. With fewer, clients that use many
# make us look routes up again and again; with more, strangers can fill more memory.
_KNOWN_ROUTES: Final = 8192
# By route: _COMMAND, _QUERY, _NEITHER, _ALONE.
_KIND_OF: Final = (RequestKind.COMMAND, RequestKind.QUERY, None, RequestKind.QUERY)


class _Routes(dict[tuple[bytes, int], int]):
    def __missing__(self, call: tuple[bytes, int]) -> int:
        name, count = call
        spec = lookup(name)
        if spec is None or spec.subcommands or not spec.takes(count):
            route = _NEITHER
        elif spec.name in _WALKS:
            route = _ALONE
        else:
            route = KINDS.get(spec.kind, _NEITHER)
        if len(self) >= _KNOWN_ROUTES:
            self.clear()
        self[call] = route
        return route


_ROUTES: Final = _Routes()


def uniform_kind(commands: Sequence[list[bytes]]) -> RequestKind | None:
    """Return the kind of one request that can carry all these commands; None if none can."""
    if len(commands) > RUN_COMMANDS:
        return None
    if len(commands) == 1:
        arguments = commands[0]
        return _KIND_OF[_ROUTES[arguments[0], len(arguments)]]
    routes = {_ROUTES[arguments[0], len(arguments)] for arguments in commands}
    if _COMMAND in routes and len(routes) > 1:
        routes.discard(_QUERY)  # reads between writes go through the log with them
    return _KIND_OF[routes.pop()] if len(routes) == 1 and _ALONE not in routes else None


def run_of(
    commands: Sequence[list[bytes]],
    start: int,
    limit_bytes: int,
    apart: AbstractSet[bytes] = frozenset(),
    permits: Callable[[list[bytes]], bool] | None = None,
) -> tuple[list[bytes], RequestKind | None]:
    """Find the run that begins at a command.

    Args:
        commands: the commands of a chunk.
        start: index of the first command of the run.
        limit_bytes: length of the whole run, unless its first command alone is longer.
        apart: a command with one of these among its arguments is not part of a run.
        permits: whether the user may run a command; None if it may run all.

    Returns:
        Its encoded commands, and the kind of its request; None if the first command is not part
        of a run.
    """
    run: list[bytes] = []
    size, kind = 0, None
    for at in range(start, min(len(commands), start + RUN_COMMANDS)):
        arguments = commands[at]
        route = _ROUTES[arguments[0], len(arguments)]
        if permits is not None and not permits(arguments):
            break
        if route == _ALONE and not run:
            return [pack(tuple(arguments))], RequestKind.QUERY
        if route >= _NEITHER or (apart and not apart.isdisjoint(arguments)):
            break
        encoded = pack(tuple(arguments))
        size += len(encoded)
        if size > limit_bytes and run:
            break
        run.append(encoded)
        if kind is not RequestKind.COMMAND:
            kind = _KIND_OF[route]
    return run, kind
