"""Disk space: a member stops appending before its own state no longer fits on the disk.

When less than the reserve is free, the member leaves its role and waits in INIT until twice the
reserve is free. A leader first hands over to a follower that has its whole log. Nothing is lost:
what it has acknowledged is durable.

If the disk becomes full all the same, a write fails and the member ends with `StoreFullError`;
`quorate run` starts it again when there is space.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import RefusedError
from ...log_events import log_event
from ...storage.lmdb.environment import size_bytes
from ..follower.following import Following
from ..leader.leadership import Leadership
from ..protocol.causes import Cause
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...storage import Executor, Store, Write
    from ..state import MemberState

log = logging.getLogger("quorate.node")

IDLE_SECONDS: Final = 1.0
"""How often a member that appends nothing checks. If smaller, an idle member costs more. If larger,
space that other programs use is noticed later."""

REASON: Final = "our disk is full"
"""Why a role ends, for the log."""


class DiskSpaceWatch:
    """Watches the free space on a member's disk.

    Args:
        state: of the member; `disk_full` is set here.
        store: of the member.
        free: returns how many bytes are free on the disk of a directory.
        lane: where the disk is asked, and nothing else, since reading a whole snapshot would hold
            it up; only its `read` is used.

    Attributes:
        free_bytes: how many were free at the last look; None before the first.
        size_bytes: how large that disk was then; 0 before.
    """

    def __init__(
        self,
        state: MemberState,
        store: Store,
        free: Callable[[Path], int],
        lane: Executor[Write],
    ) -> None:
        self._state = state
        self._store = store
        self._free = free
        self._lane = lane
        self.free_bytes: int | None = None
        self.size_bytes = 0
        self._space_found = Signal()
        self._appended = Signal()

    def is_low(self) -> bool:
        """Whether so little is free that nothing should be written but the log and the state."""
        return self._state.disk_full or self._state.low_on_disk

    async def available(self) -> None:
        """Wait until there is enough space."""
        while self._state.disk_full:
            await self._space_found.wait()

    async def run(self) -> Never:
        """Check again and again; until cancelled."""
        reserve = self._state.config.limits.reserve_bytes
        while True:
            # Not on the event loop: a file system of another machine may not answer for long.
            free, self.size_bytes = await self._lane.read(self._look)
            self.free_bytes = free
            self._state.low_on_disk = free < 2 * reserve
            if not self._state.disk_full and free < reserve:
                self._state.disk_full = True
                log_event(
                    log,
                    logging.ERROR,
                    "disk",
                    "member %(member)d: %(bytes)d bytes are free, less than "
                    f"reserve_bytes = {reserve}: appending nothing",
                    member=self._state.member_id,
                    what="full",
                    bytes=free,
                )
                await self._leave()
            elif self._state.disk_full and free >= 2 * reserve:
                # Twice the reserve: at its edge the member would leave and return all the time.
                self._state.disk_full = False
                log_event(
                    log,
                    logging.WARNING,
                    "disk",
                    "member %(member)d: %(bytes)d bytes are free: appending again",
                    member=self._state.member_id,
                    what="free",
                    bytes=free,
                )
                self._space_found.notify()
            elif self._state.disk_full and isinstance(self._state.role, Leadership | Following):
                # Only INIT waits for space. This election was past it when the space ran out, and
                # has led to a role, which ends here.
                self._state.role.end(REASON, Cause.DISK)
            await self._pause()

    def _look(self) -> tuple[int, int]:
        """Return how many bytes are free, and how many there are; asks the disk."""
        directory = self._state.config.directory
        return self._free(directory), size_bytes(directory)

    async def _pause(self) -> None:
        """Wait for the next check: one heartbeat interval while something is appended."""
        interval = self._state.timeouts.leader_heartbeat_interval
        end = self._store.submitted_position
        await trio.sleep(interval)
        if end == self._store.submitted_position:
            await self._appended.wait(trio.current_time() + max(IDLE_SECONDS - interval, 0))

    def appended(self) -> None:
        """Note that something was appended and is durable."""
        self._appended.notify()

    async def _leave(self) -> None:
        """Leave the role; a leader first hands over, if it can."""
        role = self._state.role
        if isinstance(role, Leadership) and role.accepting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hand_over, role)
                await role.wait_ended()
                nursery.cancel_scope.cancel()
        if isinstance(self._state.role, Leadership | Following):
            self._state.role.end(REASON, Cause.DISK)

    async def _hand_over(self, role: Leadership) -> None:
        """Hand over to the best successor; end the role if there is none, or it does not come."""
        try:
            await role.handover.to_best(drain=True)
        except RefusedError as error:
            own, words = self._state.member_id, "member %(member)d: not handed over: %(why)s"
            log_event(log, logging.WARNING, "handover_failed", words, member=own, why=str(error))
            role.end(REASON, Cause.DISK)
