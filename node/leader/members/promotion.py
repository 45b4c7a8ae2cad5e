"""Whether a member that joins may become a voter now; if not, why not, in a word.

A joiner is caught up by snapshot and log like any follower that lags. It is made a voter only if
the cluster would not be worse off at that moment. It has had, for a while, everything that was
committed a heartbeat ago. Its disk has room. And the voters that answer are enough for the old and
for the new configuration.

How far it lags is a difference of positions. A share of the log, as in etcd, would let it join a
long log while gigabytes are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ....errors import RefusedError
from ...protocol.membership import MemberRole, check, promoted
from ...protocol.quorum import VoterId, is_active
from ..follower_progress import Steady

if TYPE_CHECKING:
    from ....transport import Links
    from ...protocol.membership import Seat
    from ...state import MemberState
    from ...state_machine.applier import Applier
    from ..follower_progress import Followers
    from ..replication import Replication

MAX_LAG_BYTES: Final = 16 << 20
"""How much of the log a joiner may be behind. A commit would wait for that. If smaller, a busy
cluster promotes nobody. If larger, writes may stand still after the promotion."""

STEADY_TIMEOUTS: Final = 2
"""Heartbeat timeouts for which a joiner must have been caught up. If smaller, one that comes and
goes becomes a voter. If larger, a replacement takes longer."""

NOT_CLAIMED: Final = "not-claimed"
NOT_READY: Final = "not-ready"
BEHIND: Final = "behind"
LAGGING: Final = "lagging"
DISK_ROOM: Final = "disk-room"
WOULD_LOSE_QUORUM: Final = "would-lose-quorum"
EVEN: Final = "even"


class Promotion:
    """Watches the members that join.

    Args:
        state: of the member.
        links: to the followers.
        applier: knows what is committed.
        followers: the other members.
        replication: knows where the log ends.
    """

    def __init__(
        self,
        *,
        state: MemberState,
        links: Links,
        applier: Applier,
        followers: Followers,
        replication: Replication,
    ) -> None:
        self._state = state
        self._links = links
        self._followers = followers
        self._replication = replication
        self._steady = Steady[VoterId](applier, longest_gap=self._patience)

    @property
    def _patience(self) -> float:
        return STEADY_TIMEOUTS * self._state.timeouts.leader_heartbeat_timeout

    def observe(self) -> None:
        """Note which voters and joiners are caught up; called once in a heartbeat interval."""
        self._steady.look(
            {
                # By its store: another one of the same member has to be steady itself.
                seat.name: self._followers[seat.member_id]
                for seat in self._state.membership.seats
                # One whose disk is nearly full does not join, but it may lead: it has room until it
                # stops following. A leader that is to go does not wait for more.
                if seat.is_to_vote and self._missing_now(seat) in {"", DISK_ROOM}
            }
        )

    def _missing_now(self, seat: Seat) -> str:
        """Return the word for what is missing at one moment; empty if nothing is."""
        state, member = self._state, seat.member_id
        follower = self._followers.get(member)
        if follower is None:
            # We ourselves: one that joins may lead if it has the newest log, until it hands over.
            return NOT_READY
        claimed = seat.instance != 0 and state.speaks_with(member) == seat.instance
        connected = self._links.connected(member)
        # A store claims its seat once it follows. Before that it may fetch the log for long.
        if not (claimed or connected):
            return NOT_CLAIMED
        active = is_active(
            follower.heard_at, trio.current_time(), state.timeouts.leader_heartbeat_timeout
        )
        if not (active and connected):
            return NOT_READY
        # Before READY: while it is caught up it does not follow the live log yet.
        if self._replication.end - follower.match > MAX_LAG_BYTES:
            return LAGGING
        if not (claimed and follower.follows and follower.votes):
            return NOT_READY
        return "" if follower.has_room else DISK_ROOM

    def why_waiting(self, seat: Seat) -> str:
        """Return the word for what a joiner waits for; empty if it may become a voter by itself."""
        if word := self._missing_now(seat):
            return word
        return "" if self._is_steady(seat) else BEHIND

    def _is_steady(self, seat: Seat) -> bool:
        return self._steady.seconds(seat.name) >= self._patience

    def why_not_together(self, seats: list[Seat]) -> str:
        """Return why these joiners may not become voters together; empty if they may."""
        now = self._state.membership
        after = promoted(now, {seat.member_id for seat in seats})
        even_of_one = len(now.voters) == 1 and len(after.voters) == 2  # noqa: PLR2004 - see EVEN
        # The loss of either would stop both. Two joiners can be made voters at once.
        if even_of_one and not any(seat.even for seat in seats):
            return EVEN
        try:
            # The joiners that are ready may all be witnesses: too many, until others join as well.
            check(after)
        except RefusedError as error:
            return str(error).partition(":")[0]
        return "" if self._followers.keep_quorum(after) else WOULD_LOSE_QUORUM

    def ready_to_promote(self) -> list[Seat]:
        """Return the joiners to make voters now."""
        seats = [seat for seat in self._state.membership.joining if not self.why_waiting(seat)]
        # One that replaces us comes last, since we have to hand over before. If all voters are to
        # be replaced, the next leader would hand over in its turn, and so on without end.
        own = self._state.member_id
        seats.sort(key=lambda seat: seat.replaces == own)
        first = [seat for seat in seats if seat.replaces != own]
        # One at a time last: a witness that has to wait must not keep another joiner waiting.
        for some in (first, seats, *([seat] for seat in seats)):
            if some and not self.why_not_together(some):
                return some
        return []

    @property
    def has_steady_heir(self) -> bool:
        """Whether a follower that could lead has been caught up for a while."""
        return any(
            follower.may_take_over and self._is_steady(seat)
            for seat in self._state.membership.seats
            if (follower := self._followers.get(seat.member_id)) is not None
        )

    def lost_voter(self, patience: float) -> int | None:
        """Return a voter that was not heard for that many seconds; None without one."""
        # One that another member is to replace waits for that one, also if an operator wants it so.
        # But if that one followed already and is lost, too, a spare is nearer.
        replaced = {
            seat.replaces
            for seat in self._state.membership.joining
            if not (seat.may_be_spare and self._is_lost(seat.member_id, patience))
        }
        voters = (voter.member_id for voter in self._state.membership.voters)
        lost = (v for v in voters if v not in replaced and self._is_lost(v, patience))
        return next(lost, None)

    def _is_lost(self, member: int, patience: float) -> bool:
        follower = self._followers.get(member)
        if follower is None:
            return False  # we ourselves
        # One that has come back with another store begins anew: it has to fetch the log first.
        return trio.current_time() - max(follower.heard_at, follower.known_since) > patience

    def spare(self) -> Seat | None:
        """Return a spare that follows; None without one."""
        spares = (s for s in self._state.membership.seats if s.role is MemberRole.SPARE)
        return next((s for s in spares if not self._missing_now(s)), None)
