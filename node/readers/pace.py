"""The pace at which all readers from outside together are served."""

from __future__ import annotations

import trio


class Pace:
    """A rate that many share: who wants to send waits until what was taken before is paid for.

    Args:
        bytes_per_second: of all of them together.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._free_at = float("-inf")

    async def take(self, size: int) -> None:
        """Wait for the turn of so many bytes; in the order of the calls."""
        begin = max(trio.current_time(), self._free_at)
        self._free_at = begin + size * self._seconds_per_byte
        await trio.sleep_until(begin)
