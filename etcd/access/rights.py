"""What a user of the replicated ACL may do with keys of this API.

Redis's users have patterns of keys and rules on commands. Here they mean:

- reading a key or range needs GET, putting SET, deleting DEL, watching QUORATE.WATCH, and the right
  to read or write on the key
- a range needs one pattern that covers all of it: text and a star behind it (``~app:*``)
- what changes the cluster or the history needs QUORATE.CONTROL

Where a program judges in place of the rules, it is asked about such a command: its words are the
name, the key, and the end of the range if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...keyvalue.access.compiled import allowed_commands
from ...keyvalue.access.judges import JudgedAccess
from ...keyvalue.commands.glob import literal_prefix, matcher
from ...keyvalue.commands.table import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...keyvalue.access.compiled import Access

__all__ = ["ADMIN", "LeaseNeed", "Need", "Rights"]

_ALL_FROM: Final = b"\0"
"""As end of a range: all keys from its beginning on."""


@attrs.frozen
class Need:
    """What a request does with a key or range.

    Args:
        command: the command of Redis that is as much, in lower case.
        rights: what it needs of the keys: READ, WRITE, or both.
        key: the key, or where the range begins.
        range_end: where the range ends, as etcd writes it; empty for one key.
    """

    command: str
    rights: int = 0
    key: bytes = b""
    range_end: bytes = b""


@attrs.frozen
class LeaseNeed:
    """What a request does with all keys of a lease.

    Args:
        lease: its id.
        command: see `Need`.
        rights: see `Need`.
    """

    lease: int
    command: str
    rights: int

    def of(self, keys: Sequence[bytes]) -> list[Need]:
        """Return what that is for each key."""
        return [Need(self.command, self.rights, key) for key in keys]


ADMIN: Final = Need("quorate.control")
"""To change the cluster, or what all its users see."""


class Rights:
    """What one user may do.

    Args:
        access: of the user.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self._allowed = allowed_commands(access.user)
        self._patterns = [
            (rule.rights, matcher(rule.pattern), _covering(rule.pattern))
            for rule in access.user.keys
        ]

    def allow(self, needs: Sequence[Need]) -> bool:
        """Whether the user may do all of this."""
        return self.access.open or all(map(self._allows, needs))

    def _allows(self, need: Need) -> bool:
        if isinstance(self.access, JudgedAccess):
            return self._judge(need)
        if need.command.encode() not in self._allowed:
            return False
        if not need.rights:
            return True
        have = [each for each in self._patterns if each[0] & need.rights == need.rights]
        if not need.range_end:
            return any(fits(need.key) for _, fits, _ in have)
        return any(
            prefix is not None and _covers(prefix, need.key, need.range_end)
            for _, _, prefix in have
        )

    def _judge(self, need: Need) -> bool:
        name = need.command.encode().upper()
        words = [word for word in (name, need.key, need.range_end) if word]
        spec = resolve(words)
        assert spec is not None, "our own names"
        return self.access.denial(spec, words) is None


def _covering(pattern: bytes) -> bytes | None:
    """Return the text of a pattern that is text and a star; None for another pattern."""
    prefix = literal_prefix(pattern)
    return prefix if pattern == prefix + b"*" else None


def _covers(prefix: bytes, key: bytes, range_end: bytes) -> bool:
    """Whether every key of a range begins with a text."""
    if not prefix:
        return True
    # The first key behind all that begin with the prefix; with only 255s there is none.
    stem = prefix.rstrip(b"\xff")
    if not key.startswith(prefix) or range_end == _ALL_FROM or not stem:
        return False
    return range_end <= stem[:-1] + bytes((stem[-1] + 1,))
