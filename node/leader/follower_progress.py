"""What a leader knows of another member during its term."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from ..protocol.heartbeats import Heartbeats

if TYPE_CHECKING:
    from ..state import MemberState


@attrs.define(eq=False)
class Follower:
    """What the leader knows of another member in this term.

    Attributes:
        match: its durable position, as reported for our term: a proven common prefix.
        ready: our term is durably in its recording log.
        pulse: its reports for our term, and since the first of them parts of other messages.
        confirm_id: the highest confirmation number that it echoed.
        promised_at: when the newest number was made that it has echoed (:mod:`.lease`).
        live: it gets every batch on our link to it.
        join_position: where its live log begins, None before it asked.
        standby: it has no vote by the configuration.
        votes: its store has a vote, as far as it has said: only then is it counted.
        admission: where the entry that admits its store ends, None before there is one since it
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
        """It looks for a leader again."""
        self.live = self.ready = False
        self.promised_at = -math.inf  # its disk may be another one, which knows of no promise
        self.join_position = self.admission = None

    def says(self, *, has_vote: bool) -> None:
        """Note what it says of its store; a standby is not believed."""
        self.votes = has_vote and not self.standby

    @property
    def may_take_over(self) -> bool:
        """Whether it follows closely, and could lead."""
        return self.ready and self.live and self.votes

    @property
    def heard_at(self) -> float:
        """When it was last heard (trio's clock), minus infinity before."""
        return self.pulse.heard_at


def followers_of(state: MemberState) -> dict[int, Follower]:
    """Return what a member that begins to lead knows of the others: who is a standby."""
    interval = state.timeouts.leader_heartbeat_interval
    return {
        peer: Follower(peer, Heartbeats(interval), standby=peer not in state.voters)
        for peer in state.peers
    }
