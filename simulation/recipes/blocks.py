"""What programs say of their blocks: when they were inside, with which token, and what they wrote.

A program that stands still can't leave its block, and what it does in the moment in which it goes
on was begun before. So its marks of that moment do not count. Nothing else is excused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


class Life(Protocol):
    """A client process, as its blocks see it.

    Attributes:
        number: names it.
        rng: decides what it does.
        unit: by which it measures its patience, in seconds.
    """

    number: int
    rng: Random
    unit: float

    def awake(self) -> float | None:
        """Return the time in seconds; None if it does not count: it is dead, or just woken up."""
        ...


@attrs.define(eq=False)
class Block:
    """A block that a program has entered.

    Args:
        program: that has entered it.
        resource: what it shares with other programs: the kind and the name of the recipe.
        most: how many may hold the resource at once in this way: 0 for any number.
        key: the key that shows whose it is.
        token: the fencing token.

    Attributes:
        marks: when the program was inside and not just woken up, in seconds.
        fenced: the values of this block's writes under the condition that it still holds.
        ran: its program has come to the end of it.
        done: it was left without an error.
    """

    program: Life
    resource: str
    most: int
    key: bytes
    token: int
    marks: list[float] = attrs.field(factory=list[float])
    fenced: list[bytes] = attrs.field(factory=list[bytes])
    ran: bool = False
    done: bool = False

    def __str__(self) -> str:
        return f"block {self.token} of {self.resource} in program {self.program.number}"

    def mark(self) -> None:
        """Note that the program is inside now."""
        now = self.program.awake()
        if now is not None:
            self.marks.append(now)

    def next_write(self) -> bytes:
        """Return the value of the next write under the condition; no other write has it."""
        value = b"%d.%d" % (self.token, len(self.fenced))
        self.fenced.append(value)
        return value


class Blocks:
    """All blocks of a round."""

    def __init__(self) -> None:
        self._all: list[Block] = []

    def __iter__(self) -> Iterator[Block]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def enter(
        self, program: Life, resource: str, key: bytes, token: int, *, most: int = 1
    ) -> Block:
        """Note that a program has entered a block."""
        block = Block(program, resource, most, key, token)
        self._all.append(block)
        block.mark()
        return block

    def left(self, key: bytes, token: int) -> None:
        """Note that a program goes on behind its block: nothing was raised."""
        for block in self._all:
            if (block.key, block.token) == (key, token):
                block.done = True

    def of(self, resource: str) -> list[Block]:
        """Return the blocks of a resource, by token."""
        found = [each for each in self._all if each.resource == resource]
        return sorted(found, key=lambda each: each.token)
