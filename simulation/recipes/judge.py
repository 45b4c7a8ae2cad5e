"""Whether blocks kept their promises: what programs say, against the committed log.

For each block there is a *tenure*: the time for which its key holds its value, by the log. Then:

- **Token**: the token is the position at which the tenure begins, and no two blocks share one.
- **Inside**: a program is inside only while the tenure lasts, in the world's time. A program that
  stands still for longer than its lease is outside as soon as it goes on.
- **Fence**: what a block wrote under the condition that it still holds lies within its tenure.
- **Untouched**: a tenure ends by expiry, or because it is given back; nobody overwrites it.
- **Most**: at no position do more tenures of one resource last than it admits.
- **Rising**: the tokens with which a resource was written under that condition never fall.

The second needs clocks that run alike, as the scenario has them. A real machine whose clock is slow
has only the fence; that is why there are tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..invariants import ViolationError
from .tenures import OVERWRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .blocks import Block, Blocks
    from .tenures import Tenure, Tenures


def judge(blocks: Blocks, tenures: Tenures, fences: Iterable[bytes] = ()) -> None:
    """Judge all blocks.

    Args:
        blocks: by the programs' own account.
        tenures: by the log, which has come to rest.
        fences: the keys to which blocks wrote under the condition that they still held.

    Raises:
        ViolationError: a promise was broken.
    """
    held = {block: _tenure(block, tenures) for block in blocks}
    for block, tenure in held.items():
        _inside(block, tenure)
    _tokens(held)
    resources = sorted({block.resource for block in blocks})
    for resource in resources:
        _most(blocks.of(resource), held)
    for key in fences:
        _fence(key, held, tenures)


def _violated(rule: str, words: str) -> ViolationError:
    return ViolationError(f"Recipes.{rule}: {words}")


def _tenure(block: Block, tenures: Tenures) -> Tenure:
    tenure = tenures.beginning(block.key, block.token)
    if tenure is None:
        raise _violated("Token", f"{block}: nobody got {block.key!r} at that position")
    if tenure.how == OVERWRITTEN:
        raise _violated(
            "Untouched", f"{block}: {block.key!r} was overwritten at {tenure.end} although held"
        )
    return tenure


def _inside(block: Block, tenure: Tenure) -> None:
    ended = tenure.ended
    late = [at for at in block.marks if ended is not None and at > ended]
    if late:
        raise _violated(
            "Inside",
            f"{block}: inside at {late[0]:.6f} s; it was {tenure.how} at {ended:.6f} s",
        )


def _tokens(held: dict[Block, Tenure]) -> None:
    for (key, token), count in Counter((block.key, block.token) for block in held).items():
        if count > 1:
            raise _violated("Token", f"{count} blocks have token {token} of {key!r}")


def _most(blocks: list[Block], held: dict[Block, Tenure]) -> None:
    """Count the tenures that last when one begins; more can't last at any other position."""
    for block in blocks:
        start = held[block].start
        beside = [each for each in blocks if held[each].covers(start)]
        if (most := min((each.most for each in beside if each.most), default=0)) < len(beside):
            if not most:  # each of them may be there with any number of its kind
                continue
            tokens = ", ".join(str(each.token) for each in beside)
            raise _violated(
                "Most",
                f"{len(beside)} blocks of {block.resource} last at {start}, {most} may: {tokens}",
            )


def _fence(key: bytes, held: dict[Block, Tenure], tenures: Tenures) -> None:
    """Look at each value that the log had under a key: it names the block that wrote it."""
    writers = {value: block for block in held for value in block.fenced}
    last = 0
    for written in tenures.of.get(key, ()):
        block = writers.get(written.value)
        if block is None:
            continue
        if not held[block].covers(written.start):
            raise _violated("Fence", f"{block} wrote {key!r} at {written.start}; it had ended")
        if block.most == 1:
            if block.token < last:
                raise _violated("Rising", f"{block} wrote {key!r} after token {last} had")
            last = block.token
