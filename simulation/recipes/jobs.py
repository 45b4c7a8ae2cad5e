"""Items of a queue: each that was put is taken to its end once, by one program.

By the log, an item is one key, which is set once and deleted once. By the programs, a block that
ends in order has done the item. The key must have been deleted while that block's lease lasted, so
no other block can have done it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from ..invariants import ViolationError
from .tenures import DELETED

if TYPE_CHECKING:
    from .blocks import Block
    from .tenures import Tenure, Tenures

ITEM: Final = b"item:"


@attrs.define(eq=False)
class Jobs:
    """What programs have put into a queue, and taken.

    Attributes:
        sent: values that may have been put; each is put by one call.
        put: values whose call was answered.
        taken: the blocks in which each value was worked on.
        counted: values whose removal also adds to a number.
    """

    sent: list[bytes] = attrs.field(factory=list[bytes])
    put: list[bytes] = attrs.field(factory=list[bytes])
    taken: list[tuple[bytes, Block]] = attrs.field(factory=list[tuple[bytes, "Block"]])

    def new(self, kind: bytes) -> bytes:
        """Return a value that nobody has put yet, and note that it will be."""
        value = b"%b-%d" % (kind, len(self.sent))
        self.sent.append(value)
        return value

    def judge(self, tenures: Tenures, queue: bytes, counted: bytes, number: bytes) -> None:
        """Compare with the log; the queue was emptied, and nobody uses it any more.

        Args:
            tenures: by the log.
            queue: the prefix of its keys.
            counted: kind of the values whose removal adds one to a number.
            number: the key of that number.

        Raises:
            ViolationError: an item was lost, or handed over twice.
        """
        items = self._items(tenures, queue)
        if lost := [value for value in self.put if value not in items]:
            raise _violated(f"{lost} were put, and never were in the queue")
        if strange := sorted(items.keys() - set(self.sent)):
            raise _violated(f"{strange} were put by nobody")
        if left := [value for value, item in items.items() if item.how != DELETED]:
            raise _violated(f"{left} are left, or did not end in order")
        done = [(value, block) for value, block in self.taken if block.done]
        for value, block in done:
            lease = tenures.beginning(block.key, block.token)
            end = items[value].end
            assert end is not None
            if lease is None or not lease.covers(end):
                raise _violated(f"{block} has done {value!r}; it was removed at {end}, outside")
        if twice := [value for value, n in Counter(value for value, _ in done).items() if n > 1]:
            raise _violated(f"{twice} were done twice")
        there = tenures.present(number)
        found = 0 if there is None else int(there.value)
        if found != (right := sum(value.startswith(counted) for value in items)):
            raise _violated(f"{right} items were removed with a count, which is {found}")

    def _items(self, tenures: Tenures, queue: bytes) -> dict[bytes, Tenure]:
        items: dict[bytes, Tenure] = {}
        for key, of_it in tenures.of.items():
            for tenure in of_it if key.startswith(queue + ITEM) else ():
                if tenure.value in items or len(of_it) > 1:
                    raise _violated(f"{tenure.value!r} was put twice")
                items[tenure.value] = tenure
        return items


def _violated(words: str) -> ViolationError:
    return ViolationError(f"Recipes.Queue: {words}")
