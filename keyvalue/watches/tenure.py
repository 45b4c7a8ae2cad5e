"""What a watch may return where keys have moved between partitions.

A partition has the changes of a slot from one revision to another: its *tenure*. Revisions of a key
rise over all moves, so a place in one partition is a place in the next one too. A watch of one slot
stays inside one tenure:

- It begins only at a place from which nothing is missing here.
- It ends behind the last change, where the log gave the slot up, and says where it was.
- Its position stands still while the slot is frozen. The partition's log goes on, but the next
  owner's first change may have any revision above the one that froze the slot.

A slot may leave a partition and come back. A watch that is behind may still be reading an earlier
tenure then, so it knows its own by the revision that began it.
"""

from collections.abc import Callable

from ...errors import KeyValueError
from ..slots.hashing import prefix_slot
from ..slots.ranges import parse_slots_untrusted
from ..state.changes import Change, ChangeKind
from ..state.ownership import FOREIGN, Ownership

__all__ = ["SlotMovedError", "Tenure"]


class SlotMovedError(KeyValueError):
    """Another partition has the keys of a watch, from its position on.

    Attributes:
        slot: of the keys.
    """

    def __init__(self, text: str, slot: int) -> None:
        super().__init__(text)
        self.slot = slot


class Tenure:
    """The part of a partition's changes that one watch may return.

    Args:
        ownership: of the partition.
        moved: returns the error reply for a slot of another partition.
        prefix: of the keys. If they have several slots, the watch returns all changes that are this
            partition's.

    Attributes:
        slot: of all keys; None if they have several.
    """

    def __init__(self, ownership: Ownership, moved: Callable[[int], bytes], prefix: bytes) -> None:
        self.slot = prefix_slot(prefix)
        self._ownership, self._moved = ownership, moved
        self._begun = 0

    def check(self, after: int) -> None:
        """Return if changes after a revision can be here.

        Args:
            after: -1 for the present.

        Raises:
            SlotMovedError: another partition has them.
        """
        if self.slot is None or self._ownership.states[self.slot] != FOREIGN:
            return
        tenure = self._ownership.tenure_of(self.slot)
        if tenure is None or after < 0 or (tenure[2] or 0) <= after:
            raise self.moved()

    def begin(self, after: int) -> int | None:
        """Return the revision behind which to begin; None if changes after `after` are missing.

        Raises:
            SlotMovedError: another partition has them.
        """
        if self.slot is None:
            return after
        self.check(after)
        tenure = self._ownership.tenure_of(self.slot)
        assert tenure is not None, "its slot is not foreign, or has gone"
        since, self._begun, _ = tenure
        # Not what happened to other slots before ours came: a FLUSHALL is for all prefixes.
        return None if after < since else max(after, self._begun)

    def oldest(self, oldest: int) -> int:
        """Return the oldest revision from which a watch can begin; `oldest` is that of the log."""
        tenure = None if self.slot is None else self._ownership.tenure_of(self.slot)
        if tenure is None:
            return oldest
        if self.slot is not None and self._ownership.states[self.slot] == FOREIGN:
            # From its end on, the next owner has them.
            return min(max(oldest, tenure[0]), tenure[2] or 0)
        return max(oldest, tenure[0])

    def shown(self, upto: int, last: int) -> int:
        """Return the place of a watch that has found everything up to a revision.

        Args:
            upto: that revision.
            last: its place so far.
        """
        if self.slot is None:
            return upto
        tenure = self._ownership.tenure_of(self.slot)
        if (
            tenure is None
            or tenure[1] != self._begun
            or self._ownership.states[self.slot] == FOREIGN
        ):
            return last  # it will be told where its tenure ended
        return upto if tenure[2] is None else min(upto, tenure[2])

    def until_moved(self, changes: list[Change]) -> tuple[list[Change], int | None]:
        """Return changes of the tenure, and where it ended; None if it goes on."""
        kept: list[Change] = []
        for change in changes:
            if change.kind is not ChangeKind.MOVED:
                kept.append(change)
            elif (upto := self._end_in(change)) is not None:
                return kept, upto
        return kept, None

    def _end_in(self, change: Change) -> int | None:
        """Return the revision up to which its tenure went, if slots that have gone end it."""
        assert change.value is not None, "the row of a move says what has gone"
        upto, _, slots = change.value.partition(b" ")
        if self.slot is None:
            return None
        gone = parse_slots_untrusted(slots.decode("ascii"))
        return int(upto) if gone >> self.slot & 1 else None

    def moved(self) -> SlotMovedError:
        """Return the error that says where the slot is."""
        assert self.slot is not None, "only a slot moves"
        text = self._moved(self.slot)[1:].decode("utf-8", "replace").strip()
        return SlotMovedError(text, self.slot)
