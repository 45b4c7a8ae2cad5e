"""Handover: the leader gives its leadership to another member, in order.

Four parts of a member want that, and all of them use this file:

- an operator: the request names the member (:mod:`.operator`);
- the configuration, by priority (:mod:`.preference`);
- the watch over the log's disk, when it stalls (:mod:`.disk_watch`);
- the watch over the free disk space, when it runs out (:mod:`..upkeep.disk_space`).

How it works (Raft dissertation, section 3.10; BlazingMQ: the designated leader):

1. Stop taking requests. They wait, and go to the new leader; none is lost.
2. Drain: wait until the batches in flight are committed. A leader whose disk stalls cannot commit,
   so it skips this step; the new leader commits them.
3. Choose the successor: the highest priority among the followers that have the whole log, then the
   lowest id. An operator and a preference have named it already.
4. Wait until it has the whole log.
5. Ask it (`TimeoutNow`). It becomes a candidate at once, and this leader and its followers vote for
   it although a leader is alive.

Only one handover is under way at a time. The end of the leadership is its success. If that does
not come within a heartbeat timeout, this leader takes requests again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import trio

from ...errors import RefusedError
from ...transport import TimeoutNow
from ..protocol.membership import MemberRole
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...transport import Links
    from ..protocol.membership import Membership
    from ..protocol.role import Role
    from ..state import MemberState
    from .follower_progress import Follower, Followers
    from .lease import Lease
    from .replication import Replication


class Handover:
    """Hands one leadership over.

    Args:
        term: the leadership term.
        role: the leader's role; it ends when the successor takes over.
        state: of the member.
        links: to the followers.
        lease: is given up before another member is asked to lead.
        followers: the other members.
        replication: is drained.
        resume: has the leader take requests again.

    Attributes:
        successor: the member that was asked to take over, while we wait for it; None otherwise.
        under_way: a handover is under way.
    """

    def __init__(
        self,
        term: int,
        *,
        role: Role,
        state: MemberState,
        links: Links,
        lease: Lease,
        followers: Followers,
        replication: Replication,
        resume: Callable[[], None],
    ) -> None:
        self.successor: int | None = None
        self.under_way = False
        self._term = term
        self._role = role
        self._state = state
        self._links = links
        self._lease = lease
        self._followers = followers
        self._replication = replication
        self._resume = resume
        self._over = Signal()

    # --- choosing ---------------------------------------------------------------------------------

    def best_of(self, members: Iterable[int]) -> int | None:
        """Return the member of the highest priority, then of the lowest id; None of none."""
        priorities = {seat.member_id: seat.priority for seat in self._state.membership.seats}
        return max(members, key=lambda each: (priorities.get(each, 0), -each), default=None)

    def best_successor(self) -> int | None:
        """Return the best of the linked followers that may lead and have the whole log, or None."""
        end = self._replication.end
        return self.best_of(
            member
            for member, follower in self._followers.items()
            if follower.may_take_over and follower.match == end and self._links.connected(member)
        )

    # --- handing over -----------------------------------------------------------------------------

    async def to(
        self, target: int, *, even_if_behind: bool = False, by_operator: bool = False
    ) -> Never:
        """Hand over to a member; wait until the end of the leadership cancels the caller.

        Args:
            target: the member.
            even_if_behind: do not wait until it has the whole log; once it has won, it fetches the
                rest from a voter before it leads.
            by_operator: an operator chose it, so no preference takes the leadership from it again.

        Raises:
            RefusedError: it cannot take over, or did not in time; this leader goes on.
        """
        follower = self._followers.get(target)
        if follower is None:
            raise RefusedError(f"member {target} is no member any more")
        if not follower.heir:
            raise RefusedError(_unable(target, self._state.membership))
        if not follower.votes:
            raise RefusedError(f"member {target} is not admitted yet: its store is new")
        # A member that does not follow us would stand with an old log, lose, and cost a pause of
        # writes.
        if not even_if_behind:
            await self._until_follows(follower)
        follows = follower.may_take_over or even_if_behind
        if not self._links.connected(target) or not follows:
            raise RefusedError(
                f"member {target} does not follow: its log is known up to {follower.match} of "
                f"{self._replication.end}"
            )
        await self._hand_over(
            target, drain=True, even_if_behind=even_if_behind, by_operator=by_operator
        )

    async def _until_follows(self, follower: Follower) -> None:
        """Wait for a member that is about to follow, as the last leader is after a transfer."""
        with trio.move_on_after(self._state.timeouts.leader_heartbeat_timeout):
            while self._links.connected(follower.member_id) and not follower.may_take_over:
                await self._role.changed.wait()

    async def to_best(self, *, drain: bool) -> Never:
        """Hand over to the best successor; wait until the end of the leadership cancels the caller.

        It does not wait for an operator's request that is under way.

        Args:
            drain: wait first until what is in flight is committed, which takes a disk that works.

        Raises:
            RefusedError: there is none, or it did not take over in time; this leader goes on.
        """
        await self._hand_over(None, drain=drain, even_if_behind=False, by_operator=False)

    async def idle(self) -> None:
        """Wait until no handover is under way."""
        while self.under_way:
            await self._over.wait()

    async def _hand_over(
        self, target: int | None, *, drain: bool, even_if_behind: bool, by_operator: bool
    ) -> Never:
        """Go through the steps at the top of this file; `target` is None for the best successor."""
        # One at a time: `successor` names one member, and another's vote request would be refused.
        if not self._replication.accepting:
            raise RefusedError("this leader hands over or stops already")
        # Before anything is awaited: no request may get into the log behind the successor's end.
        self.under_way, self._replication.accepting = True, False
        try:
            # Requests wait all the while; a fail-over would take about as long.
            with trio.move_on_after(self._state.timeouts.leader_heartbeat_timeout):
                if drain:
                    await self._replication.drain()
                # Chosen after the drain: before it, on a busy leader, no follower has everything.
                if target is None and (target := self.best_successor()) is None:
                    raise RefusedError("no follower has the whole log and could lead")
                follower = self._followers.get(target)
                if follower is not None and not even_if_behind:
                    await self._replication.wait_caught_up(follower)
                await self._ask(target, even_if_behind=even_if_behind, by_operator=by_operator)
        finally:
            self.under_way, self.successor = False, None
            # A leader that was deposed must not take requests again.
            if self._role.ended is None:
                self._resume()
            self._over.notify()
        taker = "the best successor" if target is None else f"member {target}"
        raise RefusedError(f"{taker} did not take over in time")

    async def _ask(self, target: int, *, even_if_behind: bool, by_operator: bool) -> Never:
        """Ask a member to take over, and wait until the end of the role cancels us."""
        # Before the message leaves: `Leadership._on_candidate` lets a vote request pass only from
        # this member.
        self.successor = target
        # It may lead from now on, although its promise to us has not expired.
        self._lease.void(self._followers.values())
        own = self._state.member_id
        self._links.send(target, TimeoutNow(self._term, own, target, even_if_behind, by_operator))
        # Success has no message of its own: the vote request ends the role, which cancels us.
        await trio.sleep_forever()
        raise AssertionError("it sleeps for ever")  # pragma: no cover - never reached


def _unable(member: int, membership: Membership) -> str:
    """Return why a member of a configuration never leads, or not now."""
    seat = membership.seat(member)
    if seat is not None and seat.role is MemberRole.WITNESS:
        return f"member {member} is a witness: it has no tables and never leads for long"
    if seat is not None and seat.role is MemberRole.LEAVING:
        return f"member {member} is being removed"
    if seat is not None and not seat.is_to_vote:
        return f"member {member} is a standby: it has no vote and never leads"
    return f"member {member} is not admitted yet: its store is new, or it is joining"
