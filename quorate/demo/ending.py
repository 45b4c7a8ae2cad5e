"""How a demo ends: by itself, or at SIGTERM, and then its processes end first."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import trio

__all__ = ["exit_status"]

TERMINATED: Final = 128 + signal.SIGTERM


async def exit_status(run: Callable[[], Awaitable[bool]]) -> int:
    """Run a demo; return 0, 1 if one of its checks failed, and 143 after SIGTERM."""
    status: int = TERMINATED
    with trio.open_signal_receiver(signal.SIGTERM) as terminated:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_signal, terminated, nursery.cancel_scope)
            status = 0 if await run() else 1
            nursery.cancel_scope.cancel()
    return status


async def _cancel_at_signal(received: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(received)
    scope.cancel()
