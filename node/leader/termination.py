"""Orderly termination: all members stop at one position of the log (Aeron: TerminationPosition).

The leader takes no more requests, lets what is in flight be committed, and tells its followers the
position at which the log ends. A follower that has applied everything up to there says so, stands
in no election any more, and stops; the leader does when all that it can reach have said so, or
after a while. A follower that knows the position needs no leader any more to get there, if it has
the log; one that has not goes into an election as ever, and is a member of what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...errors import RefusedError
from ...transport import TerminationPosition
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from ...transport import TerminationAck
    from .leadership import Leadership

TERMINATION_SECONDS: Final = 10.0
"""How long the leader waits for its followers (Aeron: termination timeout)."""


class Termination:
    """The leader's side.

    Args:
        leadership: whose.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._position = -1
        self._stopped: dict[int, None] = {}
        self._heard = Signal()

    def on_ack(self, sender: int, message: TerminationAck) -> None:
        """A follower stops."""
        if message.log_position == self._position:
            self._stopped[sender] = None
            self._heard.notify()

    async def run(self) -> str:
        """Stop the cluster; say who stops where.

        Raises:
            RefusedError: what was in flight could not be committed; nothing has changed.
        """
        leadership = self._leadership
        with trio.move_on_after(2 * leadership.state.timeouts.leader_heartbeat_timeout) as scope:
            await leadership.drain()
        if scope.cancelled_caught:
            leadership.open()
            raise RefusedError("what is in flight is not committed: no quorum answers")
        self._position = leadership.publication_position
        leadership.announce_commit()
        with trio.move_on_after(TERMINATION_SECONDS):
            while missing := self._missing():
                for peer in missing:
                    leadership.links.send(
                        peer, TerminationPosition(leadership.term, self._position)
                    )
                pause = trio.current_time() + leadership.state.timeouts.leader_heartbeat_interval
                await self._heard.wait(pause)
        leadership.state.terminate()
        who = ", ".join(map(str, sorted([leadership.state.member_id, *self._stopped])))
        left = ", ".join(str(peer) for peer in leadership.state.peers if peer not in self._stopped)
        rest = f"; not reached: {left}" if left else ""
        return f"members {who} stop at position {self._position}{rest}"

    def _missing(self) -> list[int]:
        """Followers that can be reached and have not said that they stop."""
        leadership = self._leadership
        return [
            peer
            for peer, follower in leadership.followers.items()
            if peer not in self._stopped and leadership.links.connected(peer) and follower.ready
        ]
