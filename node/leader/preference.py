"""Leadership returns to the member that the configuration prefers, and stays there.

After trouble whoever can lead does. Once a member of a higher priority has been level and steady
for a while, the leader hands over to it, in order, as an operator would have it do. What keeps that
from going to and fro: only a higher priority is a reason, nothing else ever hands over by itself;
"for a while" is ten heartbeat timeouts, and twice as long after each time that it did not last; and
a leader that an operator chose stays until there is trouble again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import RefusedError
from ..requests.request import Request, RequestKind
from .operator import BY_PRIORITY

if TYPE_CHECKING:
    from ...errors import RequestError
    from ..state import Returned
    from .follower_progress import Follower
    from .leadership import Leadership

log = logging.getLogger("quorate.node")

STEADY_TIMEOUTS: Final = 10
"""Heartbeat timeouts for which a member must be level and steady."""

MAX_DOUBLINGS: Final = 6


class Preference:
    """Looks for a member that should rather lead.

    Args:
        leadership: that would be handed over.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._state = leadership.state
        self._applier = leadership.applier
        self._links = leadership.links
        members = {member.member_id: member.priority for member in self._state.config.members}
        own = members[self._state.member_id]
        self._preferred = sorted(
            (each for each in members if members[each] > own), key=lambda each: -members[each]
        )
        self._since = dict.fromkeys(self._preferred, trio.current_time())
        self._commit = self._applier.commit_position
        self._patience = STEADY_TIMEOUTS * self._state.timeouts.leader_heartbeat_timeout
        for member in self._preferred:
            self._judge(self._state.returned[member])

    async def run(self) -> Never:
        """Look at every heartbeat; until cancelled."""
        if not self._preferred:
            await trio.sleep_forever()
        while True:
            await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
            self._look()
            self._commit = self._applier.commit_position
            due = [each for each in self._preferred if self._steady(each)]
            if due and self._leadership.accepting:
                self._hand_over(due[0])

    def _look(self) -> None:
        """Begin to count anew for whom something is amiss."""
        now = trio.current_time()
        for member in self._preferred:
            if not self._fine(self._leadership.followers[member], now):
                self._since[member] = now

    def _fine(self, follower: Follower, now: float) -> bool:
        """Whether it follows, was heard just now, and has what was committed one look ago."""
        recent = now - follower.heard_at < self._state.timeouts.leader_heartbeat_timeout / 2
        linked = self._links.connected(follower.member_id)
        return linked and follower.may_take_over and recent and follower.match >= self._commit

    def _judge(self, returned: Returned) -> None:
        """Since we lead again, say whether what we once handed over has lasted."""
        if returned.at is not None:
            lasted = trio.current_time() - returned.at > STEADY_TIMEOUTS * self._patience
            returned.failures = 0 if lasted else min(returned.failures + 1, MAX_DOUBLINGS)
            returned.at = None

    def _steady(self, member: int) -> bool:
        patience = self._patience * (1 << self._state.returned[member].failures)
        return trio.current_time() - self._since[member] >= patience

    def _hand_over(self, member: int) -> None:
        self._since[member] = self._state.returned[member].at = trio.current_time()
        log.info("member %d: hands over to member %d by priority", self._state.member_id, member)
        words = f"transfer {member} {BY_PRIORITY}".encode()
        self._leadership.submit(Request(RequestKind.CONTROL, words, 0, _tell))


def _tell(result: bytes | RequestError) -> None:
    """Say why it came to nothing; it will be tried again."""
    if isinstance(result, RefusedError):
        log.info("not handed over by priority: %s", result)
