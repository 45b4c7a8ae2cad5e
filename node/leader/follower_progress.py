"""What a leader knows of the other members during its term."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from ..protocol.heartbeats import Heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transport import AdmissionRequest
    from ..protocol.quorum import VoterId
    from ..state import MemberState

T = TypeVar("T", int, float)


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
        standby: it has no vote by the configuration.
        votes: its store has a vote, as far as it has reported: only then is it counted.
        admission: where the entry that admits its store ends; None if there is none since it
            joined.
    """

    member_id: int
    pulse: Heartbeats
    match: int = 0
    ready: bool = False
    confirm_id: int = 0
    promised_at: float = -math.inf
    live: bool = False
    join_position: int | None = None
    standby: bool = False
    votes: bool = attrs.field(default=attrs.Factory(lambda self: not self.standby, takes_self=True))
    admission: int | None = None

    def rejoins(self) -> None:
        """Note that it looks for a leader again."""
        # A member that looks for a leader ignores batches, so it has a gap behind what it has. Its
        # next READY must be about its next joining (I-28).
        self.live = self.ready = False
        # It may come back with another disk, which knows of no promise.
        self.promised_at = -math.inf
        self.join_position = self.admission = None

    def renew(self, pulse: Heartbeats) -> None:
        """Forget what its last store has reported; nothing of that holds for another store."""
        self.rejoins()
        self.pulse = pulse
        self.match = self.confirm_id = 0

    def reports_vote(self, *, has_vote: bool) -> None:
        """Note whether its store has a vote; a standby never has one, whatever it reports."""
        self.votes = has_vote and not self.standby

    def may_be_admitted(self, message: AdmissionRequest) -> bool:
        """Whether to append the entry that admits its store: once each time that it joins.

        Why that is safe is argued in :mod:`..membership.admission`.
        """
        follows = self.ready and self.live and not self.votes and not self.standby
        return message.member_id == self.member_id and follows and self.admission is None

    @property
    def may_take_over(self) -> bool:
        """Whether it follows the live log, and could lead."""
        return self.ready and self.live and self.votes

    @property
    def heard_at(self) -> float:
        """When it was last heard (trio's clock), minus infinity before."""
        return self.pulse.heard_at


MATCH: Final[Callable[[Follower], int]] = attrgetter("match")
CONFIRM_ID: Final[Callable[[Follower], int]] = attrgetter("confirm_id")
HEARD_AT: Final[Callable[[Follower], float]] = attrgetter("heard_at")
PROMISED_AT: Final[Callable[[Follower], float]] = attrgetter("promised_at")


class Followers(dict[int, Follower]):
    """All other members, by their ids.

    Args:
        state: of the member that begins to lead.
    """

    def __init__(self, state: MemberState) -> None:
        super().__init__()
        self._state = state
        for peer in state.peers:
            standby = peer not in state.voters
            self[peer] = Follower(peer, self._pulse(), standby=standby)

    def _pulse(self) -> Heartbeats:
        return Heartbeats(self._state.timeouts.leader_heartbeat_interval)

    def renew(self, member: int) -> None:
        """Begin anew with a member that speaks with another store than before."""
        self[member].renew(self._pulse())

    @property
    def voters(self) -> list[Follower]:
        """The followers that count for a quorum: those that have a vote."""
        # Asked anew each time: a store may be admitted within the term.
        return [each for each in self.values() if each.votes]

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
