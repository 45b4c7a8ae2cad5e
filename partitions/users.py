"""The users of partitions: each group has its own, and slots must not change their guards.

A new partition has the user `default` only, who may do everything. So it gets the users of
partition 0 before it has any slots (`copy_users`), and a move compares the users of its groups
(`differing`). After that they are an operator's, who changes them at each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import KeyValueError
from .groups import surely

if TYPE_CHECKING:
    from .groups import Group

__all__ = ["copy_users", "differing"]

_DEFAULT: Final = b"default"
_WORDS: Final = 3
"""Of a line of ACL LIST, at least: ``user``, the name, and ``on`` or ``off``."""


async def copy_users(source: Group, target: Group) -> None:
    """Give a group the users of another one, with their passwords, and no others.

    It may be done again. The user `default` comes last: until then it may let us in.

    Raises:
        KeyValueError: we may not do that.
        RequestError: a group does not answer. Some users may be there.
    """
    wanted, there = await _users_of(source), await _users_of(target)
    names = sorted(wanted, key=lambda name: (name == _DEFAULT, name))
    # All others first: one of them might be able to change what we do.
    if gone := sorted(there.keys() - wanted.keys()):
        await surely(target, "ACL", "DELUSER", *gone)
    for name in names:
        if there.get(name) != wanted[name]:
            await surely(target, "ACL", "SETUSER", name, "reset", *wanted[name])


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
