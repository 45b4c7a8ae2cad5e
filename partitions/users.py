"""The users of partitions: each group has its own, and slots must not change their guards.

A new partition has the user `default` only, who may do everything. So it gets the users of
partition 0 with its first slots (`lines_of`), and a move compares the users of its groups
(`differing`). After that they are an operator's, who changes them at each partition.

They come in one entry, FOUND, which has an effect once. A director that stands still, or whose
request is late, would otherwise bring back a user that has been deleted since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import KeyValueError
from .groups import surely

if TYPE_CHECKING:
    from .groups import Group

__all__ = ["differing", "lines_of"]

_WORDS: Final = 3
"""Of a line of ACL LIST, at least: ``user``, the name, and ``on`` or ``off``."""


async def lines_of(group: Group) -> list[bytes]:
    """Return the users of a group, with their passwords' hashes: the lines of ACL LIST.

    Raises:
        KeyValueError: we may not ask.
        RequestError: the group does not answer.
    """
    users = await _users_of(group)
    return [b" ".join((b"user", name, *users[name])) for name in sorted(users)]


async def differing(source: Group, target: Group) -> list[str]:
    """Return the names of the users that are not the same in two groups: rules and passwords.

    Raises:
        KeyValueError: we may not ask.
        RequestError: a group does not answer.
    """
    ours, theirs = await _users_of(source), await _users_of(target)
    names = [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)]
    return sorted(name.decode("utf-8", "replace") for name in names)


async def _users_of(group: Group) -> dict[bytes, list[bytes]]:
    """Return the words of each user, in their order.

    Raises:
        KeyValueError: we may not ask.
        RequestError: the group does not answer.
    """
    lines = await surely(group, "ACL", "LIST")
    users: dict[bytes, list[bytes]] = {}
    for line in lines if isinstance(lines, list) else [lines]:
        words = line.split(b" ") if isinstance(line, bytes) else []
        if len(words) < _WORDS or words[0] != b"user":
            raise KeyValueError(f"ERR ACL LIST has {line!r:.40}: expected a user")
        users[words[1]] = words[2:]
    return users
