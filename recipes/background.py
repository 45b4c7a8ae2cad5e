"""A task that runs next to a block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["alongside"]


@asynccontextmanager
async def alongside(task: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run a task as long as the block runs, even while a cancelled block cleans up.

    An error of the block comes out as it is; a task group alone would wrap it. An error of the task
    cancels the block, and comes out in an exception group.
    """
    scope = anyio.CancelScope(shield=True)
    failure: BaseException | None = None

    async def run() -> None:
        with scope:
            await task()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                yield
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                failure = error
            finally:
                scope.cancel()
    finally:
        # The group may raise the cancellation of an outer scope, which must not hide the error.
        if failure is not None:
            raise failure
