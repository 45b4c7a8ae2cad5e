"""Reads plain RESP: compiled (``resp_reader.c``), or the same in Python.

A *plain* command is a whole array of bulk strings in its one canonical encoding, as every client
library writes it. :func:`split_untrusted`, :func:`count_untrusted`, :func:`owned_untrusted` and
:func:`cut_replies_untrusted` are the compiled functions where those could be built, and otherwise
their twins below: same arguments, same results. One differential test compares them over a corpus.

A reader stops at the first byte that is not plain. What follows is for
:class:`~..protocol.parser.CommandScanner`, which knows the rest of the protocol and its errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..limits import RUN_COMMANDS
from ..slots.hashing import key_slot

__all__ = [
    "NATIVE",
    "count_untrusted",
    "cut_replies_untrusted",
    "owned_untrusted",
    "split_untrusted",
]

_ABI: Final = 2
"""Version of the compiled functions; those of another version are not used."""

_MOST_COUNTED: Final = RUN_COMMANDS

_OWNED: Final = 1  # as `..state.ownership.OWNED`, which is above this wing

_ARRAY_HEAD: Final = re.compile(rb"\*([1-9][0-9]{0,8})\r\n").match
_BULK_HEAD: Final = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n").match
_SHORT_REPLY: Final = re.compile(rb"(?:[-+_][^\n]*\r\n|\$-1\r\n)").match
_KINDS: Final = {(b"set", 3): 1, (b"get", 2): -1}


def split_in_python(data: bytes, most: int) -> tuple[list[list[bytes]], int]:
    """Take the plain commands from the beginning of data.

    Args:
        data: bytes of a client, or of a recorded request.
        most: arguments of a command; one with more is not plain.

    Returns:
        The commands, and the offset at which the last of them ends. No whole plain command follows.
    """
    commands: list[list[bytes]] = []
    end = 0
    while (head := _ARRAY_HEAD(data, end)) and int(head[1]) <= most:
        arguments: list[bytes] = []
        at = head.end()
        for _ in range(int(head[1])):
            if (bulk := _BULK_HEAD(data, at)) is None:
                return commands, end
            begin = bulk.end()
            at = begin + int(bulk[1]) + 2
            if not data.startswith(b"\r\n", at - 2):
                return commands, end
            arguments.append(data[begin : at - 2])
        commands.append(arguments)
        end = at
    return commands, end


def count_in_python(data: bytes) -> int:
    """Count the commands of data if they are a run of nothing but plain SETs, or of GETs.

    Returns:
        How many ``SET key value``, or minus how many ``GET key``; 0 if there is anything else, or
        more than one request may hold.
    """
    commands, end = split_in_python(data, 3)
    if end != len(data) or len(commands) > _MOST_COUNTED:
        return 0
    kinds = {_KINDS.get((command[0].lower(), len(command)), 0) for command in commands}
    return kinds.pop() * len(commands) if len(kinds) == 1 else 0


def owned_in_python(data: bytes, states: bytearray) -> bool:
    """Return whether data is nothing but plain SETs and GETs of keys in slots that are owned here.

    Args:
        data: bytes of a client.
        states: of each slot; see `Ownership.states`.
    """
    commands, end = split_in_python(data, 3)
    return end == len(data) and all(
        (command[0].lower(), len(command)) in _KINDS and states[key_slot(command[1])] == _OWNED
        for command in commands
    )


def cut_in_python(replies: bytes, counts: list[int]) -> list[bytes] | None:
    """Cut the joined replies to SETs and GETs of several clients.

    Args:
        replies: simple strings, bulk strings, errors and nulls, one after the other.
        counts: how many of them belong to each client, in order.

    Returns:
        The replies of each client; None if there are more replies, or fewer, or others.
    """
    cut: list[bytes] = []
    at = 0
    for count in counts:
        begin = at
        for _ in range(count):
            if bulk := _BULK_HEAD(replies, at):
                at = bulk.end() + int(bulk[1]) + 2
                if not replies.startswith(b"\r\n", at - 2):
                    return None
            elif short := _SHORT_REPLY(replies, at):
                at = short.end()
            else:
                return None
        cut.append(replies[begin:at])
    return cut if at == len(replies) else None


split_untrusted = split_in_python
count_untrusted = count_in_python
owned_untrusted = owned_in_python
cut_replies_untrusted = cut_in_python
NATIVE = False
"""Whether the compiled functions are used."""

if not TYPE_CHECKING:
    try:
        from . import _resp_reader as _compiled

        NATIVE = _compiled.ABI == _ABI
    except ImportError:
        pass
    if NATIVE:
        split_untrusted = _compiled.split_untrusted
        count_untrusted = _compiled.count_untrusted
        owned_untrusted = _compiled.owned_untrusted
        cut_replies_untrusted = _compiled.cut_replies_untrusted
