"""The follower's side of an orderly termination (:mod:`..leader.termination`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...transport import TerminationAck
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from ...transport import Links
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots


class FollowerTermination:
    """Stops a follower at the position that its leader names.

    Args:
        term: the leader's term.
        leader_id: the leader.
        state: of the member.
        links: to the leader.
        applier: applies the log up to that position.
        snapshots: of the service.
    """

    def __init__(
        self,
        term: int,
        leader_id: int,
        *,
        state: MemberState,
        links: Links,
        applier: Applier,
        snapshots: Snapshots,
    ) -> None:
        self._term = term
        self._leader_id = leader_id
        self._state = state
        self._links = links
        self._applier = applier
        self._snapshots = snapshots
        self._position: int | None = None
        self._named = Signal()

    def stop_at(self, position: int) -> None:
        """Note the position at which the cluster stops."""
        self._position = position
        self._named.notify()

    async def run(self) -> None:
        """Wait for the position, apply the log up to it, report that, and stop."""
        while self._position is None:
            await self._named.wait()
        await self._applier.applied(self._position)
        # The last batch may ask for a snapshot: it must have begun, and then be complete.
        while self._applier.lagging:
            await self._applier.caught_up.wait()
        await self._snapshots.quiet()
        self._state.terminate()
        # Again and again, as long as the role lasts: the leader may have missed it.
        while True:
            ack = TerminationAck(self._term, self._position, self._state.member_id)
            self._links.send(self._leader_id, ack)
            await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
