"""How programs use locks and the like: they enter blocks, stay a while, and say so.

A use may fail with any error that a recipe documents. All programs use the same few names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from ...errors import RequestError
from ...recipes.election import election
from ...recipes.lock import lock
from ...recipes.rw_lock import rw_lock
from ...recipes.semaphore import semaphore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...keyvalue.programs.client import KeyValue
    from ...keyvalue.programs.transaction import Transaction
    from ...recipes.lease import Lease
    from .blocks import Block, Life
    from .stage import Stage

    Use: TypeAlias = Callable[[Stage, Life, KeyValue], Awaitable[None]]

PERMITS: Final = 2
READING: Final = 0.6
WRITING: Final = 0.3
CARELESS: Final = 0.5
"""Part of the writes that go on although the block is cancelled, as a thread would."""
SLOWEST: Final = 6.0
"""Longest time between the check and the commit, in heartbeat timeouts: longer than a lease."""


async def use_lock(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Hold one of two locks."""
    name = f"lock-{program.rng.randrange(2)}"
    wait_s = stage.wait_s(program)
    async with lock(kv, name, wait_s=wait_s, **stage.terms(program)) as held:
        await _stay(stage, program, kv, name, held)
    stage.blocks.left(held.key, held.token)


async def use_semaphore(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Hold a permit."""
    wait_s, terms = stage.wait_s(program), stage.terms(program)
    async with semaphore(kv, "permits", PERMITS, wait_s=wait_s, **terms) as held:
        await _stay(stage, program, kv, "semaphore", held, most=PERMITS)
    stage.blocks.left(held.key, held.token)


async def use_rw_lock(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Read or write."""
    wait_s = stage.wait_s(program)
    shared = rw_lock(kv, "shared", wait_s=wait_s, **stage.terms(program))
    if program.rng.random() < READING:
        async with shared.reading() as held:
            await _stay(stage, program, kv, "rw_lock", held, most=0)
    else:
        async with shared.writing() as held:
            await _stay(stage, program, kv, "rw_lock", held)
    stage.blocks.left(held.key, held.token)


async def use_election(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Lead."""
    wait_s = stage.wait_s(program)
    async with election(kv, "boss", **stage.terms(program)).lead(wait_s=wait_s) as held:
        await _stay(stage, program, kv, "election", held)
    stage.blocks.left(held.key, held.token)


async def _stay(
    stage: Stage, program: Life, kv: KeyValue, resource: str, held: Lease, *, most: int = 1
) -> None:
    rng = program.rng
    block = stage.blocks.enter(program, resource, held.key, held.token, most=most)
    end = trio.current_time() + stage.longest_s(program) * rng.random()
    while trio.current_time() < end:
        await trio.sleep(program.unit * 0.3 * rng.random())
        block.mark()
        if rng.random() < WRITING:
            await _write(stage, program, kv, block, held)
    block.ran = True


async def _write(stage: Stage, program: Life, kv: KeyValue, block: Block, held: Lease) -> None:
    """Write something only while the lease is held; take no notice of its loss on the way."""
    rng, key, value = program.rng, stage.fence(block.resource), block.next_write()

    async def body(transaction: Transaction) -> None:
        await held.fence(transaction)
        await trio.sleep(program.unit * SLOWEST * rng.random() ** 4)
        transaction.set(key, value)

    with suppress(RequestError), trio.CancelScope(shield=rng.random() < CARELESS):
        await kv.transact(body, rng=rng)
