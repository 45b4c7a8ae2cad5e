"""Functions that run side by side for one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outcome import Outcome

__all__ = ["until_first"]


async def until_first(*functions: Callable[[], Awaitable[None]]) -> None:
    """Run functions until the first of them returns or raises, and end the others.

    What it raises is raised as it is, not in a group: it is the reply to a client.
    """
    first: list[Outcome[None]] = []

    async def run(function: Callable[[], Awaitable[None]]) -> None:
        first.append(await outcome.acapture(function))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for each in functions:
            nursery.start_soon(run, each)
    # If this task was cancelled, this is `trio.Cancelled`.
    first[0].unwrap()
