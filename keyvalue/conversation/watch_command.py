"""QUORATE.WATCH prefix [PARTITION] [AFTER position], and QUORATE.UNWATCH id.

The reply of the former is an array of the id of the watch and the log position that it begins
after. Then the changes of the keys that begin with the prefix are pushed (:mod:`..state.pushes`),
until QUORATE.UNWATCH, RESET, HELLO 2, or the end of the connection. Every member pushes what it has
applied, and the pushes are the same on all: a client that has lost its connection continues at any
member, after the last position that it has seen.

In a partition the keys with the prefix must have one slot, so that the watch can follow them when
they move. With PARTITION it has all keys with the prefix that are in this partition at the time.
"""

from collections.abc import Sequence
from typing import Final

from ..commands.arguments import parse_integer
from ..protocol import resp
from ..protocol.resp import CommandError
from ..slots.hashing import prefix_slot
from .steps import Result, Steps

__all__ = ["unwatch_changes", "watch_changes"]

_SYNTAX: Final = resp.error(
    "ERR syntax error, expected QUORATE.WATCH prefix [PARTITION] [AFTER position]"
)
_SEVERAL_SLOTS: Final = resp.error(
    "CROSSSLOT the keys with this prefix have several slots: expected a prefix with text in "
    "braces, such as {order 7}:, or PARTITION behind it to watch those of this partition only"
)
_NOT_A_POSITION: Final = resp.error("ERR a log position is an integer, 0 or more")
_NOT_AN_ID: Final = resp.error(
    "ERR the id of a watch is an integer, see the reply of QUORATE.WATCH"
)
_RESP3_ONLY: Final = resp.error(
    "ERR QUORATE.WATCH sends pushes, which need RESP3: send HELLO 3 first, or set protocol=3 in "
    "your client library"
)
_IN_TRANSACTION: Final = resp.error(
    "ERR QUORATE.WATCH or QUORATE.UNWATCH inside MULTI is not allowed"
)
_NOT_HERE: Final = resp.error(
    "REFUSED this member keeps no keys, so it can't watch any: ask another member"
)
_NOW: Final = -1


def watch_changes(arguments: Sequence[bytes], steps: Steps) -> None:
    """Begin a watch of the client.

    Raises:
        CommandError: the command is malformed or not possible here.
    """
    client, port = steps.client, steps.port
    after, whole = _options_untrusted(arguments)
    signposts = port.signposts
    own = signposts is None or whole or signposts.has(arguments[1:2])
    if not own and prefix_slot(arguments[1]) is None:
        raise CommandError(_SEVERAL_SLOTS)
    if client.transaction is not None:
        raise CommandError(_IN_TRANSACTION)
    if not client.resp3:
        raise CommandError(_RESP3_ONLY)
    watches, connection = port.watches, port.clients.get(client.client_id)
    if watches is None or connection is None or port.gateway.topology.witness:
        raise CommandError(_NOT_HERE)

    def end(result: Result) -> None:
        assert isinstance(result, bytes), "errors are replies"
        steps.reply(result)

    steps.answer_later(lambda done: watches.begin(connection, arguments, after, done), end)


def unwatch_changes(arguments: Sequence[bytes], steps: Steps) -> None:
    """End a watch; reply 1, or 0 if there was none with this id.

    Raises:
        CommandError: the command is malformed or not possible here.
    """
    watch_id = parse_integer(arguments[1])
    if watch_id is None:
        raise CommandError(_NOT_AN_ID)
    if steps.client.transaction is not None:
        raise CommandError(_IN_TRANSACTION)
    steps.reply(resp.ONE if steps.client.watches.end(watch_id) else resp.ZERO)


def _options_untrusted(arguments: Sequence[bytes]) -> tuple[int, bool]:
    """Return where to begin, and whether the keys of the partition are wanted."""
    options = arguments[2:]
    whole = bool(options) and options[0].upper() == b"PARTITION"
    match options[whole:]:
        case []:
            return _NOW, whole
        case [word, position] if word.upper() == b"AFTER":
            after = parse_integer(position)
            if after is None or after < 0:
                raise CommandError(_NOT_A_POSITION)
            return after, whole
        case _:
            raise CommandError(_SYNTAX)
