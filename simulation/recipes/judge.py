"""Whether blocks kept their promises: what programs say, against the committed log.

For each block there is a *tenure*: the time for which its key holds its value, by the log. Then:

- **Token**: the token is the position at which the tenure begins, and no two blocks share one.
- **Inside**: a program is inside only while the tenure lasts, in the world's time. A program that
  stands still for longer than its lease is outside as soon as it goes on.
- **Whole**: a block that was cut short raises an error; its program does not go on behind it.
- **Fence**: what a block wrote under the condition that it still holds lies within its tenure.
- **Untouched**: a tenure ends by expiry, or because it is given back; nobody overwrites it.
- **Most**: no more programs have a resource at once than it admits. A program has it from when it
  is inside until its tenure ends.

*Inside* and *Most* need clocks that run alike, as the scenario has them. Where a program's clock is
slow there is only the fence; that is why there are tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from .tenures import OVERWRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .blocks import Block, Blocks
    from .tenures import Tenure, Tenures

TICK_S: Final = 0.001
"""Log time has milliseconds, and programs are more exact."""


def judge(blocks: Blocks, tenures: Tenures, fences: Iterable[bytes] = ()) -> Iterator[str]:
    """Judge all blocks; yield each promise that was broken.

    Args:
        blocks: by the programs' own account.
        tenures: by the log, which has come to rest.
        fences: the keys to which blocks wrote under the condition that they still held.
    """
    held: dict[Block, Tenure] = {}
    for block in blocks:
        tenure = tenures.beginning(block.key, block.token)
        if tenure is None:
            yield _violated("Token", f"{block}: nobody got {block.key!r} at that position")
            continue
        held[block] = tenure
        yield from _inside(block, tenure)
        yield from _whole(block)
    yield from _tokens(held)
    resources = sorted({block.resource for block in held})
    for resource in resources:
        yield from _most([block for block in blocks.of(resource) if block in held], held)
    for key in fences:
        yield from _fence(key, held, tenures)


def _violated(rule: str, words: str) -> str:
    return f"Recipes.{rule}: {words}"


def _inside(block: Block, tenure: Tenure) -> Iterator[str]:
    if tenure.how == OVERWRITTEN:
        yield _violated(
            "Untouched", f"{block}: {block.key!r} was overwritten at {tenure.end} although held"
        )
        return
    ended = tenure.ended
    late = [at for at in block.marks if ended is not None and at > ended + TICK_S]
    if late:
        yield _violated(
            "Inside",
            f"{block}: inside at {late[0]:.6f} s; it was {tenure.how} at {ended:.6f} s",
        )


def _whole(block: Block) -> Iterator[str]:
    if block.done and not block.ran:
        yield _violated("Whole", f"{block}: it was cut short, and nothing was raised")


def _tokens(held: Mapping[Block, Tenure]) -> Iterator[str]:
    for (key, token), count in Counter((block.key, block.token) for block in held).items():
        if count > 1:
            yield _violated("Token", f"{count} blocks have token {token} of {key!r}")


def _most(blocks: list[Block], held: Mapping[Block, Tenure]) -> Iterator[str]:
    """Count the blocks that last when one begins; more can't last at any other moment."""
    entered = [block for block in blocks if block.marks]
    for block in entered:
        at = block.marks[0]
        beside = [
            each
            for each in entered
            if each.marks[0] <= at < (math.inf if (end := held[each].ended) is None else end)
        ]
        # 0 admits any number of blocks of its kind, and none of another kind.
        most = min((each.most for each in beside if each.most), default=len(beside))
        if len(beside) > most:
            tokens = ", ".join(str(each.token) for each in beside)
            yield _violated(
                "Most",
                f"{len(beside)} have {block.resource} at {at:.6f} s, {most} may: tokens {tokens}",
            )


def _fence(key: bytes, held: Mapping[Block, Tenure], tenures: Tenures) -> Iterator[str]:
    """Look at each value that the log had under a key: it names the block that wrote it."""
    writers = {value: block for block in held for value in block.fenced}
    for written in tenures.of.get(key, ()):
        block = writers.get(written.value)
        if block is not None and not held[block].covers(written.start):
            yield _violated("Fence", f"{block} wrote {key!r} at {written.start}; it had ended")
