"""Live batches that wait for the catch-up to reach them (Aeron: replay merge)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...storage import BatchHeader


class Ahead:
    """Batches of the live log that lie ahead of our log, in order.

    Attributes:
        bytes: size of the batches that wait.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._batches: deque[tuple[BatchHeader, bytes]] = deque()

    def put(self, header: BatchHeader, batch: bytes) -> None:
        """Keep a batch."""
        self._batches.append((header, batch))
        self.bytes += header.length

    def reached(self, end: Callable[[], int]) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the batches that begin no later than our log ends, as our log grows.

        Args:
            end: returns where our log ends now.
        """
        # `end` is called again for each batch, because our log grows while the caller records them.
        while self._batches and self._batches[0][0].position <= end():
            header, batch = self._batches.popleft()
            self.bytes -= header.length
            yield header, batch
