"""Whose a key was, and when, by the changes in the log.

A *tenure* is the time for which a key has one owner. It is judged by the changes alone: not by
replies, not by what members hold, and not by the recipes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from ...keyvalue.state.changes import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...keyvalue.state.changes import Change

OVERWRITTEN: Final = "overwritten"
DELETED: Final = "deleted"
EXPIRED: Final = "expired"


_LEASED: Final = re.compile(rb"[0-9]+ ([0-9a-f]{16} .*)", re.DOTALL)
"""The value of a leased key (docs/recipes.md); a renewal changes only the number in front."""


def owner(value: bytes) -> bytes:
    """Return what stays the same in a value for as long as the key has one owner."""
    found = _LEASED.fullmatch(value)
    return value if found is None else found[1]


@attrs.define(eq=False)
class Tenure:
    """The time for which a key has one owner: a lease's, or one value.

    Args:
        key: the key.
        value: its last value.
        start: position of the change that gave it to the key.
        began: when that was applied first, in seconds of the world.
        expires_at_ms: when it expires, in log time, as of the last renewal; 0 for never.
        end: position of the change that ended it; None while it lasts.
        ended: when that was applied first.
        how: it ended.
    """

    key: bytes
    value: bytes
    start: int
    began: float
    expires_at_ms: int
    end: int | None = None
    ended: float | None = None
    how: str = ""

    def covers(self, position: int) -> bool:
        """Whether it lasts at a position of the log."""
        return self.start <= position and (self.end is None or position < self.end)


class Tenures:
    """The tenures of keys.

    Args:
        prefixes: of the keys; other ones are ignored.

    Attributes:
        of: for each key, in the order of the log.
        now_ms: log time.
    """

    def __init__(self, prefixes: tuple[bytes, ...] = (b"",)) -> None:
        self._prefixes = prefixes
        self.of: dict[bytes, list[Tenure]] = {}
        self.now_ms = 0
        self._open: dict[bytes, Tenure] = {}

    def held(self, prefix: bytes) -> list[bytes]:
        """Return the keys that begin with a prefix and exist now, in order."""
        return sorted(key for key in self._open if key.startswith(prefix) and self.present(key))

    def present(self, key: bytes) -> Tenure | None:
        """Return the tenure of a key that lasts now."""
        tenure = self._open.get(key)
        return None if tenure is None or self._over(tenure) else tenure

    def beginning(self, key: bytes, position: int) -> Tenure | None:
        """Return the tenure of a key that begins at a position."""
        return next((each for each in self.of.get(key, ()) if each.start == position), None)

    def note(self, changes: Iterable[Change], timestamp_ms: int, at: float) -> None:
        """Note the changes of one batch.

        Args:
            changes: in the order of the log.
            timestamp_ms: of the batch.
            at: when it was applied, in seconds.
        """
        self.now_ms = max(self.now_ms, timestamp_ms)
        for change in changes:
            if change.kind is ChangeKind.SET:
                if change.key.startswith(self._prefixes):
                    self._set(change, at)
            elif change.kind is ChangeKind.FLUSHED:
                for key in list(self._open):
                    self._end(key, change.position, DELETED, at)
            else:
                how = EXPIRED if change.kind is ChangeKind.EXPIRED else DELETED
                self._end(change.key, change.position, how, at)

    def _set(self, change: Change, at: float) -> None:
        tenure = self._open.get(change.key)
        assert change.value is not None
        if tenure is not None:
            # Commands miss an expired key although it is removed only at the end of a batch.
            over = self._over(tenure)
            if owner(tenure.value) == owner(change.value) and not over:
                tenure.value, tenure.expires_at_ms = change.value, change.expires_at_ms
                return
            self._end(change.key, change.position, EXPIRED if over else OVERWRITTEN, at)
        tenure = Tenure(change.key, change.value, change.position, at, change.expires_at_ms)
        self._open[change.key] = tenure
        self.of.setdefault(change.key, []).append(tenure)

    def _over(self, tenure: Tenure) -> bool:
        return 0 < tenure.expires_at_ms <= self.now_ms

    def _end(self, key: bytes, position: int, how: str, at: float) -> None:
        tenure = self._open.pop(key, None)
        if tenure is not None:
            tenure.end, tenure.ended, tenure.how = position, at, how
