"""What a state returns, and what observers see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..protocol.ballots import log_end
from ..protocol.quorum import VoterId

if TYPE_CHECKING:
    from ...storage import LogEnd
    from ...transport import NewLeadershipTerm, TimeoutNow, Vote
    from ..protocol.log_matching import WayToJoin
    from ..protocol.states import State


@attrs.frozen
class Adoption:
    """The leader that was adopted, and what its announcement means for our log.

    Args:
        message: the announcement.
        way: how our log is to become the leader's.
    """

    message: NewLeadershipTerm
    way: WayToJoin


@attrs.define(eq=False)
class Candidacy:
    """A ballot of ours, from the durable vote for ourselves to the term that it wins.

    Args:
        term: the term that we stand in.
        mandate: the message by which the leader has asked us to take over; None without one.
        not_waited_for: members that did not answer the pre-vote, have no vote, or are bound by a
            lease.

    Attributes:
        votes: the answers so far, by voter.
        ahead: the vote for us whose log goes furthest, if further than ours. Only a candidate with
            a mandate that allows it gets such votes.
    """

    term: int
    mandate: TimeoutNow | None = None
    not_waited_for: set[int] = attrs.field(factory=set[int])
    votes: dict[VoterId, bool] = attrs.field(factory=dict[VoterId, bool])
    ahead: Vote | None = None

    @property
    def by_operator(self) -> bool:
        """Whether an operator has chosen us; the configuration's preference then does not count."""
        return self.mandate is not None and self.mandate.by_operator

    @property
    def even_if_behind(self) -> bool:
        """Whether we may win with a log that is shorter than that of a voter."""
        return self.mandate is not None and self.mandate.even_if_behind

    def note_log(self, vote: Vote, own: LogEnd) -> None:
        """Note how far the log of a voter goes, `own` being where ours ends."""
        longest = own if self.ahead is None else log_end(self.ahead)
        # A refusal carries no terms, so its sender's log could not be compared with ours.
        if vote.vote and log_end(vote) > longest:
            self.ahead = vote


@attrs.frozen
class Next:
    """What a state returns: the state that comes next, and why.

    Args:
        state: to be entered.
        reason: in words, for the log and for observers.
        data: what the next state needs from this one: the candidacy in CANDIDATE_BALLOT and in the
            states of a leader, the adoption in the states of a follower, else nothing.
    """

    state: State
    reason: str
    data: Adoption | Candidacy | None = None


@attrs.frozen
class Transition:
    """One step of an election, as observers see it.

    Args:
        at: when it was made (trio's clock, seconds).
        member_id: of the member.
        election: how many elections there were since its start, this one included.
        before: the state that it left.
        after: the state that it entered.
        reason: in words.
        term: the term that the member lives in; in a ballot the one that it has promised.
        log_end: where its durable log ended.
        commit_position: bytes of the log known to be committed.
    """

    at: float
    member_id: int
    election: int
    before: State
    after: State
    reason: str
    term: int
    log_end: LogEnd
    commit_position: int
