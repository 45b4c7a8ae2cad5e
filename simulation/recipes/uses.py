"""How programs use recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from ...recipes.lease import Lease
from .stage import Stage, linger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...keyvalue.programs.client import KeyValue
    from .programs import Program

    Use: TypeAlias = Callable[[Stage, Program, KeyValue], Awaitable[None]]


async def use_lease(stage: Stage, program: Program, kv: KeyValue) -> None:
    rng = program.rng
    name = f"lease-{rng.randrange(2)}"
    lease = Lease(kv, f"quorate:{name}".encode(), ttl_s=stage.ttl_s(program), rng=rng)
    async with lease.releasing():
        if await lease.acquire():
            async with lease.held():
                block = stage.blocks.enter(program, name, lease.key, lease.token)
                await linger(block, 2 * lease.ttl_s * rng.random())
                block.done = True
                return
    await trio.sleep(program.unit * rng.random())


USES: Final[dict[Use, int]] = {use_lease: 1}
"""All uses, with their weights."""
