"""A task beside a block: what either of them raises comes out as itself.

A task group raises what ends it as a group, also an error of the block's own. Callers of a recipe
want to write ``except KeyError``, so here the errors are kept and raised once the group has ended.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVarTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["beside"]

Arguments = TypeVarTuple("Arguments")


@asynccontextmanager
async def beside(
    task: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments
) -> AsyncGenerator[None]:
    """Run a task for the length of the block; if it fails, cancel the block and raise its error."""
    failures: list[Exception] = []
    raised: list[Exception] = []

    async def run() -> None:
        try:
            await task(*arguments)
        except Exception as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised below
            raised.append(error)
        group.cancel_scope.cancel()
    # If both have failed the task came first: it has cancelled the block.
    for error in [*failures, *raised]:
        raise error
