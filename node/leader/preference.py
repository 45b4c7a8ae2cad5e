"""Leadership returns to the member that the configuration prefers, and stays there.

After a failure, any member that can lead does. Once a member of a higher priority has been caught
up and steady for a while, the leader hands over to it in order. Three rules keep leadership from
going back and forth:

- Only a higher priority is a reason.
- "A while" is ten heartbeat timeouts, and twice as long after each handover that did not last.
- A leader that an operator chose stays until the next failure.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import RefusedError
from ...log_events import log_event
from .follower_progress import Steady

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transport import Links
    from ..state import HandBack, MemberState
    from ..state_machine.applier import Applier
    from .follower_progress import Follower, Followers
    from .handover import Handover

log = logging.getLogger("quorate.node")

STEADY_TIMEOUTS: Final = 10
"""Heartbeat timeouts for which a member must be caught up and steady. If smaller, a member that
comes and goes takes the leadership each time. If larger, it returns later."""

MAX_DOUBLINGS: Final = 6
"""Limit of the doubling after handovers that did not last. If smaller, an unstable member gets the
leadership more often. If larger, a repaired member waits for hours."""


class Preference:
    """Hands over to a member of a higher priority, once it is steady.

    Args:
        state: of the member; records how handovers went.
        links: to the followers.
        applier: knows what is committed.
        followers: the other members.
        handover: of this leadership.
        free: returns whether the leader takes requests and no operator's request is under way.
    """

    def __init__(
        self,
        *,
        state: MemberState,
        links: Links,
        applier: Applier,
        followers: Followers,
        handover: Handover,
        free: Callable[[], bool],
    ) -> None:
        self._state = state
        self._links = links
        self._followers = followers
        self._handover = handover
        self._free = free
        self._patience = STEADY_TIMEOUTS * state.timeouts.leader_heartbeat_timeout
        # Longer than a handover that fails takes: it says nothing about the members.
        self._steady = Steady[int](applier, longest_gap=self._patience)
        for member in self._preferred:
            # Before the first look: a handover that did not last makes the next one wait longer.
            self._judge(state.handbacks[member])

    @property
    def _preferred(self) -> list[int]:
        """The voters of a higher priority than ours."""
        membership = self._state.membership
        own = membership.seat(self._state.member_id)
        # Strictly higher: between equals the leadership would go back and forth.
        return [
            seat.member_id
            for seat in membership.seats
            if own is not None and seat.is_to_vote and seat.priority > own.priority
        ]

    async def run(self) -> Never:
        """Check at every heartbeat; until cancelled."""
        timeouts = self._state.timeouts
        while True:
            # Mostly nobody is preferred; such a leader need not wake up at every heartbeat.
            preferred = bool(self._preferred)
            await trio.sleep(
                timeouts.leader_heartbeat_interval
                if preferred
                else timeouts.leader_heartbeat_timeout
            )
            self._look()
            best = self._handover.best_of(filter(self._is_steady, self._preferred))
            # An operator's request goes first, and may well be a transfer itself.
            if best is not None and self._free():
                await self._hand_over(best)

    def _look(self) -> None:
        """Note which of the preferred members are fine now."""
        members = ((each, self._followers.get(each)) for each in self._preferred)
        self._steady.look({member: it for member, it in members if it and self._fine(it)})

    def _fine(self, follower: Follower) -> bool:
        """Whether it follows, and was heard just now."""
        # Half a timeout: as a leader, a member that is heard later would soon be missed.
        silence = trio.current_time() - follower.heard_at
        recent = silence < self._state.timeouts.leader_heartbeat_timeout / 2
        return recent and follower.may_take_over and self._links.connected(follower.member_id)

    def _judge(self, handback: HandBack) -> None:
        """Now that we lead again, record whether our last handover to a member has lasted."""
        if handback.at is not None:
            # A hundred heartbeat timeouts: ten times as long as it had to be steady.
            lasted = trio.current_time() - handback.at > STEADY_TIMEOUTS * self._patience
            handback.failures = 0 if lasted else min(handback.failures + 1, MAX_DOUBLINGS)
            handback.at = None

    def _is_steady(self, member: int) -> bool:
        """Whether a member has been fine for long enough."""
        # Otherwise a member that fails under load would get the leadership, and lose it, for ever.
        patience = self._patience * (1 << self._state.handbacks[member].failures)
        return self._steady.seconds(member) >= patience

    async def _hand_over(self, member: int) -> None:
        """Hand over to a member; if it does not take over, its time begins again."""
        # Before the handover, because its success cancels this task.
        self._steady.restart(member)
        self._state.handbacks[member].at = trio.current_time()
        own = self._state.member_id
        words = "member %(member)d: hands over to member %(to)d by %(why)s"
        log_event(log, logging.INFO, "hands_over", words, member=own, to=member, why="priority")
        try:
            await self._handover.to(member)
        except RefusedError as error:
            words = "member %(member)d: not handed over by priority: %(why)s"
            log_event(log, logging.INFO, "handover_failed", words, member=own, why=str(error))
