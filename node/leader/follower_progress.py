"""What a leader knows of the other members during its term."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs
import trio

from ..protocol.heartbeats import Heartbeats
from ..protocol.membership import MemberRole
from ..protocol.quorum import VoterId, is_active

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ...transport import CanvassPosition, Links
    from ..protocol.membership import Membership
    from ..state import MemberState
    from ..state_machine.applier import Applier

T = TypeVar("T", int, float)
K = TypeVar("K", bound="Hashable")


@attrs.define(eq=False)
class Follower:
    """What the leader knows of another member in this term.

    Attributes:
        member_id: of the member.
        pulse: its reports for our term, and parts of messages once the first report came.
        match: its durable position, as reported for our term: a proven common prefix.
        ready: our term is durably in its recording log.
        confirm_id: the highest confirmation number that it echoed.
        promised_at: when we made the newest number that it echoed (:mod:`.lease`).
        live: it gets every batch on our link to it.
        join_position: where its live log begins, None before it asked for it.
        heir: by the configuration, it may lead: it is a voter that stays, and no witness.
        votes: its last report says that its store may vote, or it has not reported yet; without
            that it is not counted.
        has_room: its last report says that its disk has room, or it has not reported yet.
        gets_no_log: it gets nothing of our log until the configuration in force is committed.
        known_since: when this leader began to watch it, with the store that it has now.
        canvass: the last one that was answered.
        answered_at: when that was (trio's clock).
    """

    member_id: int
    pulse: Heartbeats
    match: int = 0
    ready: bool = False
    confirm_id: int = 0
    promised_at: float = -math.inf
    live: bool = False
    join_position: int | None = None
    heir: bool = True
    votes: bool = True
    has_room: bool = True
    gets_no_log: bool = False
    known_since: float = attrs.field(factory=trio.current_time)
    canvass: CanvassPosition | None = None
    answered_at: float = -math.inf

    def rejoins(self) -> None:
        """Note that it looks for a leader again."""
        # A member that looks for a leader ignores batches, so it has a gap behind what it has. Its
        # next READY must be about its next joining (I-28).
        self.live = self.ready = False
        # It may come back with another disk, which knows of no promise.
        self.promised_at = -math.inf
        self.join_position = None

    def renew(self, pulse: Heartbeats) -> None:
        """Forget what its last store has reported; nothing of that holds for another store."""
        self.rejoins()
        self.pulse, self.known_since = pulse, trio.current_time()
        self.match = self.confirm_id = 0

    @property
    def follows(self) -> bool:
        """Whether it has our term, and gets the live log."""
        return self.ready and self.live

    @property
    def fine(self) -> bool:
        """Whether its last report had no flag but READY."""
        return self.ready and self.votes and self.has_room

    @property
    def may_take_over(self) -> bool:
        """Whether it follows the live log, and could lead."""
        return self.follows and self.votes and self.heir

    @property
    def heard_at(self) -> float:
        """When it was last heard (trio's clock), minus infinity before."""
        return self.pulse.heard_at


MATCH: Final[Callable[[Follower], int]] = attrgetter("match")
CONFIRM_ID: Final[Callable[[Follower], int]] = attrgetter("confirm_id")
HEARD_AT: Final[Callable[[Follower], float]] = attrgetter("heard_at")
PROMISED_AT: Final[Callable[[Follower], float]] = attrgetter("promised_at")


class Followers(dict[int, Follower]):
    """The other members of the configuration in force, by their ids.

    Args:
        state: of the member that begins to lead.
        links: to the other members.
        committed: the commit position.
    """

    def __init__(self, state: MemberState, links: Links, *, committed: int) -> None:
        super().__init__()
        self._state = state
        self._links = links
        self._committed = committed
        self.use_configuration(committed=committed)

    def use_configuration(self, *, committed: int) -> None:
        """Take over the configuration in force.

        Args:
            committed: the commit position.
        """
        membership, self._committed = self._state.membership, committed
        dropped = (
            self._dropped() if self._state.configurations.end > committed else frozenset[VoterId]()
        )
        for member in {*self} - {*membership.ids}:
            del self[member]
        for seat in membership.seats:
            if (member := seat.member_id) != self._state.member_id:
                follower = self.setdefault(member, Follower(member, self._pulse()))
                stays = self._state.names.get(member) in membership.voters
                follower.heir = stays and seat.role is not MemberRole.WITNESS
                # Its store counts: another one of the same member may be a voter now.
                name = VoterId(member, self._state.speaks_with(member))
                follower.gets_no_log = name in dropped
                # An entry takes its vote, and is not committed yet. If it had that entry, it could
                # not stand; but until then its log may be the newest, which a new leader needs.
                follower.live = follower.live and not follower.gets_no_log

    def _dropped(self) -> frozenset[VoterId]:
        """Return the voters that the configuration in force has taken the vote from."""
        before, now = self._state.configurations.before, self._state.membership
        if now.joint or not before.joint:
            return frozenset()
        return frozenset(before.outgoing).difference(now.voters)

    def _pulse(self) -> Heartbeats:
        state = self._state
        return Heartbeats(state.timeouts.leader_heartbeat_interval, state.counts)

    def renew(self, member: int) -> None:
        """Begin anew with a member that speaks with another store than before."""
        if member in self:
            self[member].renew(self._pulse())
            self.use_configuration(committed=self._committed)

    @property
    def voters(self) -> list[Follower]:
        """The followers whose stores may vote; which of them count is for the quorums to say."""
        # Asked anew each time: a store may be admitted within the term.
        return [each for each in self.values() if each.votes]

    def keep_quorum(self, after: Membership) -> bool:
        """Whether the voters that answer are enough for a configuration and the one before it."""
        state, now = self._state, trio.current_time()
        timeout = state.timeouts.leader_heartbeat_timeout
        live = {
            VoterId(each.member_id, state.speaks_with(each.member_id))
            for each in self.voters
            if each.follows
            and is_active(each.heard_at, now, timeout)
            # The end of a process is seen at once, and its silence only after a timeout.
            and self._links.connected(each.member_id)
        }
        return after.quorums.agree({state.own_store, *live})

    def by_voter(self, own: T, of: Callable[[Follower], T]) -> dict[VoterId, T]:
        """Return a figure of each member whose store has a vote.

        Args:
            own: our own figure.
            of: reads the figure of a follower.
        """
        names = self._state.names
        figures = {names[each.member_id]: of(each) for each in self.voters}
        # Whether our own counts is for the sets of voters to say.
        figures[self._state.own] = own
        return figures


class Steady(Generic[K]):
    """For how long followers have been fine at every look, and never far behind.

    Args:
        applier: knows what is committed.
        longest_gap: seconds between two looks, after which all are watched anew.
    """

    def __init__(self, applier: Applier, *, longest_gap: float) -> None:
        self._applier = applier
        self._longest_gap = longest_gap
        self._commit = applier.commit_position
        self._looked_at = -math.inf
        self._since: dict[K, float] = {}

    def look(self, fine: Mapping[K, Follower]) -> None:
        """Begin anew with those that are not fine now, or that miss what a look ago was committed.

        Args:
            fine: the followers that are fine now, under the names by which `seconds` is asked.
        """
        now = trio.current_time()
        # Nobody has looked for long, so nobody knows how they were.
        before = self._since if now - self._looked_at <= self._longest_gap else {}
        self._since = {
            name: before.get(name, now)
            for name, follower in fine.items()
            if follower.match >= self._commit
        }
        self._looked_at = now
        # Used at the next look: on a busy leader no follower has what was committed just now.
        self._commit = self._applier.commit_position

    def restart(self, name: K) -> None:
        """Begin anew with one of them."""
        self._since.pop(name, None)

    def seconds(self, name: K) -> float:
        """Return for how long a follower has been steady; 0 if it is not."""
        return trio.current_time() - self._since[name] if name in self._since else 0.0
