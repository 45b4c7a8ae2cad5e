"""Appends configurations, one after the other, and only those that a cluster may have.

The rules that make a change safe are in this file; they were explored in ``tests/model/change.py``:

- A configuration is appended only once an entry of our own term is committed, and so is the
  configuration before (`Changes.obstacle`). So the final one follows a committed joint one.
- Every change of voters is joint (:mod:`...protocol.membership`), and begins only while those that
  answer are enough for both sets of voters.
- A member that loses its vote by a configuration gets that only once it is committed
  (`Follower.gets_no_log`).

What is to be appended, and when, is for :mod:`.reconfiguration` to say.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ....errors import RefusedError, UnknownOutcomeError
from ....log_events import log_event
from ....storage import Entry, EntryKind
from ...protocol.membership import check, encode_membership, named
from ...protocol.signal import Signal
from .promotion import WOULD_LOSE_QUORUM

if TYPE_CHECKING:
    from ....storage import Store
    from ...protocol.membership import Membership
    from ...state import MemberState
    from ...state_machine.applier import Applier
    from ..follower_progress import Followers
    from ..replication import Replication

log = logging.getLogger("quorate.node")

IN_FLIGHT: Final = "in-flight"
NOT_SETTLED: Final = "not-settled"
_OBSTACLES: Final = {
    IN_FLIGHT: "another change of the members is under way",
    NOT_SETTLED: "this leader has just been elected, or hands over",
}


class Changes:
    """The configurations of one leadership.

    Args:
        base: where the term begins.
        state: of the member; has the configuration in force.
        store: of the member.
        applier: knows what is committed.
        followers: the other members.
        replication: appends configurations.

    Attributes:
        happened: another configuration is in force, or the one in force is committed.
    """

    def __init__(
        self,
        base: int,
        *,
        state: MemberState,
        store: Store,
        applier: Applier,
        followers: Followers,
        replication: Replication,
    ) -> None:
        self.happened = Signal()
        self._base = base
        self._state = state
        self._store = store
        self._applier = applier
        self._followers = followers
        self._replication = replication
        self._began = trio.current_time()

    @property
    def awaited(self) -> int:
        """Where the configuration ends that is not committed yet; 0 if it is."""
        end = self._state.configurations.end
        return end if end > self._applier.commit_position else 0

    @property
    def obstacle(self) -> str:
        """The word for why no configuration may be appended now; empty if one may."""
        if self._applier.commit_position <= self._base or not self._replication.accepting:
            return NOT_SETTLED
        return IN_FLIGHT if self.awaited else ""

    @property
    def settled(self) -> bool:
        """Whether no change is under way, and one may begin."""
        return not (self.obstacle or self._state.membership.joint)

    @property
    def _gathers(self) -> bool:
        """Whether this leader is so new that voters may still be on their way to it."""
        if trio.current_time() >= self._began + self._state.timeouts.leader_heartbeat_timeout:
            return False
        return not all(self._followers[voter].follows for voter in self._state.voters)

    def named(self) -> Membership:
        """Return the configuration in force, with all voters named with their stores."""
        state, status = self._state, self._store.voting_status
        stores = dict(status.founders)
        for member, follower in self._followers.items():
            if follower.ready and follower.votes:
                stores[member] = state.speaks_with(member)
        stores[state.member_id] = state.speaks_with(state.member_id)
        first = attrs.evolve(state.membership, founders=status.founders, floor=status.floor)
        return named(first, stores)

    def vet(self, after: Membership) -> None:
        """Refuse a configuration that no cluster should have, or not now.

        Raises:
            RefusedError: it begins with a word for the reason, and a colon.
        """
        check(after)
        # Also the first one, which names the voters with their stores: one whose store is not known
        # counts no more.
        if (after.joint or after.version == 1) and not self._followers.keep_quorum(after):
            raise RefusedError(
                f"{WOULD_LOSE_QUORUM}: too few of the other voters follow; without them nothing "
                "could be committed"
            )

    def append(self, after: Membership, principal: int = 0) -> None:
        """Append a configuration; it is in force when this returns.

        Args:
            after: the configuration.
            principal: number of the user that asked for it; 0 for the leader itself.

        Raises:
            RefusedError: see `vet`.
        """
        self.vet(after)
        if not after.joint:
            # Before the entry is sent: a member that loses its vote by it must not get it yet.
            for voter in {*self._state.membership.outgoing} - {*after.voters}:
                follower = self._followers.get(voter.member_id)
                if follower is not None and self._state.names[voter.member_id] == voter:
                    follower.live = False
        text = encode_membership(after)
        self._replication.append([Entry(EntryKind.MEMBERSHIP, text, principal=principal)])
        log_event(
            log,
            logging.INFO,
            "config",
            "configuration %(version)d: voters %(voters)s, of members %(members)s",
            version=after.version,
            voters=[voter.member_id for voter in after.voters],
            joint=after.joint,
            outgoing=[voter.member_id for voter in after.outgoing],
            members=[*after.ids],
            position=self._replication.end,
        )

    async def wait_settled(self) -> None:
        """Wait for the change under way, and for the voters to follow, but not for long.

        Raises:
            RefusedError: it is not over.
        """
        timeouts = self._state.timeouts
        with trio.move_on_after(timeouts.leader_heartbeat_timeout):
            # A new leader whose voters come one after the other would refuse what it can do soon.
            while not self.settled or self._gathers:
                # Looked at again, since nothing notifies of the end of a handover.
                await self.happened.wait(trio.current_time() + timeouts.leader_heartbeat_interval)
        if not self.settled:
            word = self.obstacle or IN_FLIGHT
            raise RefusedError(f"{word}: {_OBSTACLES[word]}")

    async def wait_committed(self) -> None:
        """Wait until the change under way is committed to its end.

        Raises:
            UnknownOutcomeError: it is not, for long; it may still be.
        """
        with trio.move_on_after(10 * self._state.timeouts.leader_heartbeat_timeout) as scope:
            while self.awaited or self._state.membership.joint:
                await self.happened.wait()
        if scope.cancelled_caught:
            raise UnknownOutcomeError(
                f"version {self._state.membership.version} of the configuration is in the log, and "
                "not committed yet: see quorate member list"
            )
