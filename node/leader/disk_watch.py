"""A leader whose own disk stalls does not stay the leader: it can commit nothing.

What it does
    It can still send, and its followers have what it sent. So after one and a half heartbeat
    timeouts without progress it hands over to a follower that has the whole log. That costs little
    more than the time which the disk has cost already. If there is no such follower, as when all
    disks are slow, it waits, and after two heartbeat timeouts it steps down.

What counts
    Every write to the log's store: batches, and also the row of a new term, which a winner makes
    durable before it takes requests.

Why stepping down is safe
    A write that is under way may still become durable. INIT waits until everything that was
    submitted is durable or has failed, and only then looks at where the log ends. A term's row that
    comes so late is an empty term at the end of the log, as after a crash between that row and the
    first batch. No other member can have won that term, and this one never stands in it again.

The tables
    They may be on another disk. While that hangs at a snapshot's cut, nothing is applied and
    nothing is proposed. So a leader whose applier waits for too long steps down too, and does not
    stand again before the applier continues.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import trio

from ...errors import RefusedError
from ...log_events import log_event
from ..protocol.causes import Cause
from ..protocol.role import SLOWEST_DISK, Role
from ..protocol.signal import Signal, sleep_until

if TYPE_CHECKING:
    from ...storage import Store
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from .handover import Handover
    from .replication import Replication

log = logging.getLogger("quorate.node")


class Progress:
    """When a store last made progress with what waits to be written.

    Args:
        store: the one to watch.

    Attributes:
        moved_at: when that was, as of the last look; the time of the look if nothing waited.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorded = store.recorded
        self._now = trio.lowlevel.current_clock().current_time  # cheaper, per batch
        self.moved_at = self._now()

    def look(self) -> None:
        """Check whether it has moved, or has nothing to do."""
        recorded = self._store.recorded
        # By identity: each commit makes a new record, also one that moves no position, such as a
        # vote.
        if recorded is not self._recorded or recorded is self._store.submitted:
            self._recorded = recorded
            self.moved_at = self._now()


class DiskWatch:
    """Watches the disk of a leader.

    Args:
        state: of the member.
        store: whose disk is watched.
        applier: whose waits are watched, too.
    """

    def __init__(self, state: MemberState, store: Store, applier: Applier) -> None:
        self._state = state
        self._store = store
        self._applier = applier
        self._progress = Progress(store)
        self._begun = Signal()

    def look(self) -> None:
        """Check progress: before something is submitted, and when something became durable."""
        self._progress.look()
        self._begun.notify()

    def _nothing_to_watch(self, replication: Replication) -> bool:
        """Whether there is nothing to watch: everything proposed is durable and applied."""
        store, applier = self._store, self._applier
        return (
            # In an election or a handover, the store writes more than batches.
            replication.accepting
            and store.recorded is store.submitted
            and applier.applied_position >= replication.end
            and applier.waits_since == math.inf
        )

    async def run(
        self, role: Role, replication: Replication, handover: Handover, nursery: trio.Nursery
    ) -> None:
        """Watch; until cancelled, or the role has ended.

        Args:
            role: the leader's role, which ends when the disk stalls.
            replication: the log that is to be written.
            handover: gives the leadership to another member before that.
            nursery: of the role's tasks; a handover runs in it while the watch goes on.
        """
        timeouts = self._state.timeouts
        timeout = timeouts.leader_heartbeat_timeout
        while role.ended is None:
            self.look()
            now = trio.current_time()
            # A disk that is slow, but not stalled, gets time for what waits to be written.
            unwritten = replication.end - self._store.append_position
            end = self._progress.moved_at + 2 * timeout + unwritten / SLOWEST_DISK
            if end <= now:
                role.end("our disk has stalled", Cause.DISK)
            elif self._applier.stalled(timeout):
                role.end("nothing is applied for too long, as at a snapshot's cut", Cause.DISK)
            # Half a timeout earlier, so that there is still time for it before we step down.
            elif end - timeout / 2 <= now and replication.accepting:
                self._hand_over(handover, nursery)
            if self._nothing_to_watch(replication):
                # An idle leader does not wake up for this watch; `look` before an append wakes it.
                await self._begun.wait()
                now = self._progress.moved_at = trio.current_time()
            again = now + timeouts.leader_heartbeat_interval
            await sleep_until(again)
            # While the whole process was held up, the disk is not to blame.
            self._progress.moved_at += trio.current_time() - again

    def _hand_over(self, handover: Handover, nursery: trio.Nursery) -> None:
        """Begin to hand over if a follower has the whole log; returns at once."""
        best = handover.best_successor()
        if best is not None:
            log_event(
                log,
                logging.WARNING,
                "hands_over",
                "member %(member)d: %(why)s; handing over to member %(to)d",
                member=self._state.member_id,
                to=best,
                why="our disk stalls",
            )
            # Not awaited: if the successor does not take over, we still have to step down in time.
            nursery.start_soon(self._to_best, handover)

    async def _to_best(self, handover: Handover) -> None:
        try:
            # Not drained: the next leader commits what is in flight.
            await handover.to_best(drain=False)
        except RefusedError as error:
            own, words = self._state.member_id, "member %(member)d: not handed over: %(why)s"
            log_event(log, logging.WARNING, "handover_failed", words, member=own, why=str(error))
