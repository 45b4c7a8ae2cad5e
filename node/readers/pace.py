"""The rate at which all outside readers together are served."""

from __future__ import annotations

import trio


class SharedRate:
    """A rate that several senders share: each waits until earlier sends are paid for.

    Args:
        bytes_per_second: of all senders together.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._free_at = float("-inf")

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may be sent; turns follow the order of the calls."""
        begin = max(trio.current_time(), self._free_at)
        self._free_at = begin + size * self._seconds_per_byte
        await trio.sleep_until(begin)
