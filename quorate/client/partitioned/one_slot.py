"""Calls that take effect at one point of a log: all their keys must have one slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import CrossSlotError
from ...keyvalue.slots.hashing import key_slot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .placement import Placement

__all__ = ["OneSlot"]


class OneSlot:
    """The slot that all keys of a call have.

    Args:
        placement: says which partition owns a slot, for error messages.
        what: the call, for the same.

    Attributes:
        first: the first key.
    """

    def __init__(self, placement: Placement, what: str) -> None:
        self.first = b""
        self._placement, self._what, self._slot = placement, what, -1

    def check(self, keys: Iterable[bytes]) -> None:
        """Take further keys.

        Raises:
            CrossSlotError: one of them has another slot than the first key.
        """
        for key in keys:
            slot = key_slot(key)
            if self._slot < 0:
                self._slot, self.first = slot, key
            elif slot != self._slot:
                raise CrossSlotError(
                    f"CROSSSLOT the keys of {self._what} must have one slot: "
                    f"{self.first!r:.60} has {self._where(self._slot)}, {key!r:.60} has "
                    f"{self._where(slot)}; nothing was done. Give keys that belong together the "
                    "same text in braces, such as {order 7}:state and {order 7}:total"
                )

    def _where(self, slot: int) -> str:
        owner = self._placement.owner_of(slot)
        return f"slot {slot} (of {'no partition' if owner is None else f'partition {owner}'})"
