"""Items of a queue: each that was put is taken to its end once, by one program.

By the log, an item is one key, which is set once and deleted once. By the programs, a block that
ends in order has done the item. The key must have been deleted while that block's lease lasted, so
no other block can have done it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from .tenures import DELETED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .blocks import Block
    from .tenures import Tenures

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

    def judge(self, tenures: Tenures, queue: bytes, counted: bytes, number: bytes) -> Iterator[str]:
        """Compare with the log; yield items that were lost, or handed over twice.

        The queue was emptied, and nobody uses it any more.

        Args:
            tenures: by the log.
            queue: the prefix of its keys.
            counted: kind of the values whose removal adds one to a number.
            number: the key of that number.
        """
        of_items = [of_it for key, of_it in tenures.of.items() if key.startswith(queue + ITEM)]
        items = {tenure.value: tenure for of_it in of_items for tenure in of_it}
        times = Counter(tenure.value for of_it in of_items for tenure in of_it)
        reused = [tenure.value for of_it in of_items for tenure in of_it[1:]]
        if again := sorted({*reused, *(value for value, n in times.items() if n > 1)}):
            yield _violated(f"{again} were put twice")
        if lost := [value for value in self.put if value not in items]:
            yield _violated(f"{lost} were put, and never were in the queue")
        if strange := sorted(items.keys() - set(self.sent)):
            yield _violated(f"{strange} were put by nobody")
        if left := [value for value, item in items.items() if item.how != DELETED]:
            yield _violated(f"{left} are left, or did not end in order")
        done = [(value, block) for value, block in self.taken if block.done]
        for value, block in done:
            lease = tenures.beginning(block.key, block.token)
            end = items[value].end if value in items else None
            # What was never put, or is left, was found before.
            if end is not None and (lease is None or not lease.covers(end)):
                yield _violated(f"{block} has done {value!r}; it was removed at {end}, outside")
        if twice := [value for value, n in Counter(value for value, _ in done).items() if n > 1]:
            yield _violated(f"{twice} were done twice")
        there = tenures.present(number)
        found = 0 if there is None else int(there.value)
        if found != (right := sum(value.startswith(counted) for value in items)):
            yield _violated(f"{right} items were removed with a count, which is {found}")


def _violated(words: str) -> str:
    return f"Recipes.Queue: {words}"
