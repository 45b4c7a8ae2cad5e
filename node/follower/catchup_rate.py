"""What a member does otherwise while it fetches what it lacks from another one's disk.

The log comes as fast as it is taken, and is applied at once. So what would be done again and again
meanwhile is better done once. And it takes the processors' time: the leader's, which sends it, and
here that of whoever shares the machine. So it is not taken faster than is allowed: by so much a
second the member comes nearer to its leader. What the leader writes meanwhile is free, so that the
member gets there however much that is; but not what it writes while the member is held up.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from ..state_machine.service import PatientService

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..state_machine.applier import Applier

_STRIDE_SECONDS: Final = 0.05
"""A shorter rest is put off: more at a time is received, applied and written for less."""

_CREDIT_SECONDS: Final = 0.25
"""Who was held up may make up for so long a time, as fast as it can."""


class Backlog:
    """Tells the service when such a time begins and ends, and when to rest.

    Args:
        applier: feeds the service, which then puts off what may wait.
        bytes_per_second: by so much the distance to the leader may shrink.

    Attributes:
        rests_until: when the last rest is over, on trio's clock.
    """

    def __init__(self, applier: Applier, bytes_per_second: int) -> None:
        self.rests_until = float("-inf")
        self._applier = applier
        self._seconds_per_byte = 1 / bytes_per_second
        self._last: tuple[int, int] | None = None
        self._free = 0  # bytes that may be fetched at any speed
        self._due = float("-inf")
        self._fetching = 0

    @contextmanager
    def fetching(self) -> Generator[None]:
        """It comes for the length of the block; the blocks of two streams may overlap."""
        self._last, self._free = None, 0
        self._due = max(self._due, trio.current_time())  # no credit from before; a debt stays
        self._fetching += 1
        self._tell()
        try:
            yield
        finally:
            self._fetching -= 1
            self._tell()

    async def rest(self, position: int, end: int) -> None:
        """Wait until the member may go on; mostly not at all.

        Args:
            position: how far it has come.
            end: how far its leader has, as far as is known.
        """
        now = trio.current_time()
        last, last_end = self._last or (position, end)
        self._last = position, end
        fetched = position - last
        self._free += max(0, end - last_end)
        # A step that took no longer than it may was not held up.
        if (earliest := now - max(_CREDIT_SECONDS, fetched * self._seconds_per_byte)) > self._due:
            self._due, self._free = earliest, 0
        free = min(self._free, fetched)
        self._free -= free
        self._due += (fetched - free) * self._seconds_per_byte
        if self._due > now + _STRIDE_SECONDS:
            self.rests_until = self._due
            await trio.sleep_until(self._due)

    def _tell(self) -> None:
        under_way = self._fetching > 0
        service = self._applier.service
        if isinstance(service, PatientService):
            service.put_off(wanted=under_way)
