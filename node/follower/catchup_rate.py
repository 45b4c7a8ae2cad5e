"""Throttles catch-up.

A lagging follower takes log as fast as it can get it, and applies it at once. That takes processor
time from the leader, which sends it, and from whatever else runs on this machine. So a follower may
close the gap to its leader by at most ``catchup_bytes_per_second``.

New writes do not count against that limit; otherwise a busy leader could never be caught. What is
written while the follower is held up does count: a slow disk must not earn it a burst.

While a catch-up is active, the service postpones work that it would have to do again and again.
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
"""A pause shorter than this is postponed. Smaller: more wake-ups, each for less data. Larger: the
catch-up comes in bursts."""

_CREDIT_SECONDS: Final = 0.25
"""How much time a follower that was held up may make up for at full speed. Smaller: a jittery
network or disk makes a catch-up slower than its limit. Larger: longer bursts above the limit."""


class CatchupRate:
    """The speed limit of a member's catch-ups.

    A token bucket, kept as one time: each byte that counts moves `_due` on, and a follower whose
    `_due` is ahead of now pauses until then.

    Args:
        applier: feeds the service that postpones work.
        bytes_per_second: by which the gap to the leader may shrink.

    Attributes:
        paused_until: end of the last pause, on trio's clock.
    """

    def __init__(self, applier: Applier, bytes_per_second: int) -> None:
        self.paused_until = float("-inf")
        self._applier = applier
        self._seconds_per_byte = 1 / bytes_per_second
        self._last: tuple[int, int] | None = None  # our position and the leader's
        self._free = 0  # new bytes of the leader: they may be fetched at any speed
        self._due = float("-inf")  # when all that was fetched is paid for
        self._active = 0  # catch-ups under way

    @contextmanager
    def active(self) -> Generator[None]:
        """A catch-up is under way for the length of the block; the blocks may overlap."""
        self._last, self._free = None, 0
        self._due = max(self._due, trio.current_time())  # no credit from before; a debt stays
        self._active += 1
        self._tell_service()
        try:
            yield
        finally:
            self._active -= 1
            self._tell_service()

    async def throttle(self, position: int, end: int) -> None:
        """Wait until the catch-up may go on; most of the time not at all.

        Args:
            position: where our log ends.
            end: where the leader's log ends, as far as is known.
        """
        now = trio.current_time()
        last, last_end = self._last or (position, end)
        self._last = position, end
        fetched = position - last
        self._free += max(0, end - last_end)
        # We were held up, by the disk or the network, if the step took longer than the limit
        # allows. Then only the credit may be made up for, and no byte is free any more.
        if (earliest := now - max(_CREDIT_SECONDS, fetched * self._seconds_per_byte)) > self._due:
            self._due, self._free = earliest, 0
        free = min(self._free, fetched)
        self._free -= free
        self._due += (fetched - free) * self._seconds_per_byte
        if self._due > now + _STRIDE_SECONDS:
            self.paused_until = self._due
            await trio.sleep_until(self._due)

    def _tell_service(self) -> None:
        service = self._applier.service
        if isinstance(service, PatientService):
            service.put_off(wanted=self._active > 0)
