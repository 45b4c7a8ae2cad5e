"""How programs use locks and the like: they enter blocks, stay a while, and say so.

A use may fail with any error that a recipe documents. All programs use the same few names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from ...recipes.election import election
from ...recipes.lock import lock
from ...recipes.rw_lock import rw_lock
from ...recipes.semaphore import semaphore
from .stage import linger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...keyvalue.programs.client import KeyValue
    from ...recipes.lease import Lease
    from .blocks import Life
    from .stage import Stage

    Use: TypeAlias = Callable[[Stage, Life, KeyValue], Awaitable[None]]

PERMITS: Final = 2
READING: Final = 0.6


async def use_lock(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Hold one of two locks."""
    name = f"lock-{program.rng.randrange(2)}"
    async with lock(kv, name, **stage.terms(program)) as held:
        await _stay(stage, program, kv, name, held)


async def use_semaphore(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Hold a permit."""
    async with semaphore(kv, "permits", PERMITS, **stage.terms(program)) as held:
        await _stay(stage, program, kv, "semaphore", held, most=PERMITS)


async def use_rw_lock(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Read or write."""
    shared = rw_lock(kv, "shared", **stage.terms(program))
    if program.rng.random() < READING:
        async with shared.reading() as held:
            await _stay(stage, program, kv, "rw_lock", held, most=0)
    else:
        async with shared.writing() as held:
            await _stay(stage, program, kv, "rw_lock", held)


async def use_election(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Lead."""
    terms = stage.terms(program)
    wait_s = terms.pop("wait_s")
    async with election(kv, "boss", **terms).lead(wait_s=wait_s) as held:
        await _stay(stage, program, kv, "election", held)


async def _stay(
    stage: Stage, program: Life, kv: KeyValue, resource: str, held: Lease, *, most: int = 1
) -> None:
    block = stage.blocks.enter(program, resource, held.key, held.token, most=most)
    await linger(block, stage.longest_s(program) * program.rng.random())
    block.done = True


USES: Final[dict[Use, int]] = {use_lock: 3, use_semaphore: 2, use_rw_lock: 2, use_election: 1}
"""All uses, with their weights."""
