"""Orderly termination: all members stop at one position of the log (Aeron: TerminationPosition).

The leader stops taking requests, waits until everything in flight is committed, and sends its
followers the position at which the log ends. A follower that has applied everything up to there
acknowledges, stands in no election any more, and stops. The leader stops when all followers that
it has heard lately have acknowledged, or after a while.

A follower that knows the position needs no leader to get there if it has the log. A follower
without the log goes into an election as always, with the members that remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...errors import RefusedError
from ...transport import TerminationPosition
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transport import Links, TerminationAck
    from ..state import MemberState
    from .follower_progress import Follower, Followers
    from .replication import Replication

TERMINATION_SECONDS: Final = 10.0
"""How long the leader waits for its followers (Aeron: termination timeout). If smaller, a slow one
is left behind and looks for a leader. If larger, a stuck one holds up the stop."""


class Termination:
    """The leader's side of a termination.

    Args:
        term: the leadership term.
        state: of the member.
        links: to the followers.
        followers: the other members.
        replication: is drained.
        resume: has the leader take requests again.
    """

    def __init__(
        self,
        term: int,
        *,
        state: MemberState,
        links: Links,
        followers: Followers,
        replication: Replication,
        resume: Callable[[], None],
    ) -> None:
        self._term = term
        self._state = state
        self._links = links
        self._followers = followers
        self._replication = replication
        self._resume = resume
        self._position = -1
        self._stopped: dict[int, None] = {}
        self._heard = Signal()

    def on_ack(self, sender: int, message: TerminationAck) -> None:
        """Note that a follower stops."""
        # An acknowledgement of another attempt names another position, and is not about this stop.
        if message.log_position == self._position:
            self._stopped[sender] = None
            self._heard.notify()

    async def run(self) -> str:
        """Stop the cluster; return which members stop where, in words.

        Raises:
            RefusedError: the batches in flight were not committed in time; nothing has changed.
        """
        state, replication = self._state, self._replication
        with trio.move_on_after(2 * state.timeouts.leader_heartbeat_timeout) as scope:
            # All members stop at one position, so nothing may be in flight behind it.
            await replication.drain()
        if scope.cancelled_caught:
            # Nothing was sent yet, so the cluster can go on as if it had not been asked.
            self._resume()
            raise RefusedError("what is in flight is not committed: no quorum answers")
        self._position = replication.end
        # No batch will carry the last commit position.
        replication.announce_commit()
        with trio.move_on_after(TERMINATION_SECONDS):
            while missing := self._missing():
                # Again and again: a link drops what it has no room for, and repeats do no harm.
                for peer in missing:
                    self._links.send(peer, TerminationPosition(self._term, self._position))
                pause = trio.current_time() + state.timeouts.leader_heartbeat_interval
                await self._heard.wait(pause)
        # Also if some have not answered: they know the position, or elect a leader among
        # themselves.
        state.terminate()
        stopped = ", ".join(map(str, sorted([state.member_id, *self._stopped])))
        left = ", ".join(str(peer) for peer in state.peers if peer not in self._stopped)
        rest = f"; not reached: {left}" if left else ""
        return f"members {stopped} stop at position {self._position}{rest}"

    def _missing(self) -> list[int]:
        """Return the followers that have not acknowledged, and may yet do so."""
        return [
            peer
            for peer, follower in self._followers.items()
            if peer not in self._stopped and self._may_answer(peer, follower)
        ]

    def _may_answer(self, peer: int, follower: Follower) -> bool:
        """Whether a follower can be reached, or is likely to be again at once."""
        if follower.ready and self._links.connected(peer):
            return True
        # A member that is down must not hold up the stop. But a link that is made anew, as after
        # a change of certificates, is down for some milliseconds, and its end sends the follower
        # through an election.
        quiet = trio.current_time() - follower.heard_at
        return quiet < self._state.timeouts.leader_heartbeat_timeout
