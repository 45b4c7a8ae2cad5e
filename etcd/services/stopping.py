"""The orderly end of a port: what waits is interrupted, and what is asked is still answered."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Stopping"]


class Stopping:
    """Lets connections know that their port stops."""

    def __init__(self) -> None:
        self.begun = False
        self._event = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    def begin(self) -> None:
        """Interrupt all that waits for a client, now and from now on."""
        self.begun = True
        self._event.set()
        for scope in self._scopes:
            scope.cancel()

    async def wait(self) -> None:
        """Return once the port stops."""
        await self._event.wait()

    @contextmanager
    def interrupts(self, seconds: float = math.inf) -> Generator[trio.CancelScope]:
        """Cancel the block when the port stops; for a wait that may last, as for the next request.

        It also ends after some seconds.

        Cheaper than a task of its own for each connection.
        """
        with trio.move_on_after(seconds) as scope:
            if self.begun:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
