"""The pre-vote: before a member raises its term it asks whether it would be voted for in it.

It is a round of questions inside of NOMINATE, which binds nobody and writes nothing (the Raft
dissertation, section 9.6; BlazingMQ's elector calls it scouting, and so do our messages). So a
member that cannot win disturbs nobody. One that was cut off returns without a higher term. One that
alone has lost the leader learns from the other members that they still hear it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...storage import NodeState
from ...transport import Message, Scout, ScoutReply, VoteReason
from ..protocol import ballots
from ..protocol.states import State
from .transition import Candidacy, Next

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .context import ElectionContext


NOT_WAITED_FOR: Final = {VoteReason.NO_VOTE, VoteReason.PROMISED}
"""Refusals that are not objections; they never veto a candidate."""


class PreVote:
    """Our pre-vote, for as long as we are in NOMINATE.

    Args:
        ctx: of the member.

    Attributes:
        asking: a round of questions is under way.
    """

    def __init__(self, ctx: ElectionContext) -> None:
        # Chance decides which member asks first, so that not all ask at once. A member that the
        # leader has nominated has no rivals to wait for.
        patience = 0.0 if ctx.mandate else ctx.state.timeouts.election_timeout / 2
        self.asking = False
        # A witness lets members with tables ask first: it would only hand over to one of them.
        first = patience if ctx.state.witness else 0.0
        self._turn_at = trio.current_time() + first + ctx.rng.uniform(0, patience)
        self.ctx = ctx

    async def run(self) -> Next:
        """Wait for our turn and ask, again and again, until something comes of it."""
        while True:
            if step := await self.await_turn() or await self.ask_voters():
                return step

    def goes_before(self, other: Scout) -> bool:
        """Whether we are asking, and the other member that asks has to yield."""
        state = self.ctx.state
        # A member that the leader has nominated does not yield; it would only return to that
        # leader and wait.
        nominated = self.ctx.mandate is not None
        yields = ballots.gives_way(state.log_end, state.member_id, other)
        return self.asking and (nominated or not yields)

    def give_way(self) -> None:
        """Let another member go first: its answer would be lost if we raised our term as well."""
        self.asking = False
        # Long enough for the ballot of the other member to be won or lost.
        self._turn_at = trio.current_time() + self.ctx.state.timeouts.election_timeout

    async def await_turn(self) -> Next | None:
        """Wait until it is our turn; longer if we give way to another member in the meantime."""
        ctx, again = self.ctx, trio.current_time()
        while trio.current_time() < self._turn_at:
            if trio.current_time() >= again:
                # Members that have just begun to canvass must hear us, too.
                ctx.canvass_once()
                again = trio.current_time() + ctx.state.timeouts.canvass_interval
            event = await ctx.inbox.receive(min(again, self._turn_at))
            if event is not None and (step := await ctx.react(*event)) is not None:
                return step
        return None

    async def ask_voters(self) -> Next | None:
        """Ask all that have a vote; stand if a quorum would vote for us.

        Returns:
            What comes next; None if we gave way to another member that asks as well.
        """
        # New questions for each attempt: an answer may have changed while we gave way.
        questions = Questions(self.ctx)
        self.asking = True
        try:
            while self.asking:
                # `asking` is cleared by `give_way`, while a message is handled below.
                supported = questions.verdict()
                if supported is not None:
                    # From here on the vote is durable: a term is used up even if the ballot is
                    # lost. So a term is only raised with a quorum behind us (L-3).
                    return await questions.conclude() if supported else questions.withdraw()
                questions.ask()
                event = await self.ctx.inbox.receive(questions.wakes_at)
                if event is not None and (step := await questions.hear(*event)) is not None:
                    return step
            return None
        finally:
            self.asking = False


async def stand(ctx: ElectionContext, term: int, not_waited_for: Iterable[int] = ()) -> Next:
    """Raise our term, and become a candidate in it.

    Args:
        ctx: of the member.
        term: to stand in.
        not_waited_for: see `Candidacy`.
    """
    assert not ctx.voter.lease_promise.binds, "a promise to the leader still holds"
    # The vote for ourselves is durable before any member hears of our candidacy.
    await ctx.voter.promise(NodeState(term, ctx.state.member_id))
    # A mandate is good for one ballot.
    mandate, ctx.mandate = ctx.mandate, None
    candidacy = Candidacy(term, mandate, {*not_waited_for})
    return Next(State.CANDIDATE_BALLOT, f"candidate for term {term}", candidacy)


class Questions:
    """One round of questions, and the answers so far."""

    def __init__(self, ctx: ElectionContext) -> None:
        self._ctx = ctx
        # Half an election timeout: a member that hangs must not hold up those that answer.
        self._ends_at = trio.current_time() + ctx.state.timeouts.election_timeout / 2
        self._restart()

    def _restart(self) -> None:
        ctx, end, mandate = self._ctx, self._ctx.state.log_end, self._ctx.mandate
        # The nonce sets answers to this question apart from late answers to an earlier one.
        self._question = Scout(
            ctx.next_term,
            end.term,
            end.position,
            ctx.state.member_id,
            ctx.rng.getrandbits(62),
            force=mandate is not None,
            even_if_behind=mandate is not None and mandate.even_if_behind,
        )
        self._answers: dict[int, VoteReason] = {}
        self._ask_at = trio.current_time()

    @property
    def _silent(self) -> list[int]:
        return [peer for peer in self._ctx.state.voters if peer not in self._answers]

    @property
    def wakes_at(self) -> float:
        """When the question is repeated, or the round is over."""
        return min(self._ask_at, self._ends_at)

    def verdict(self) -> bool | None:
        """Say whether a quorum would vote for us; None means that we wait for more answers."""
        if self._question.force and VoteReason.LEADER_ALIVE in self._answers.values():
            # The leader does not wait for us any more, so it leads on.
            return False
        # Before the end silence may still turn into an answer; after it, it is none.
        over = trio.current_time() >= self._ends_at
        return self._supported(wait=not over)

    def _supported(self, *, wait: bool) -> bool | None:
        state = self._ctx.state
        answers = {state.names[each]: reason for each, reason in self._answers.items()}
        # Not the names of the silent members: a voter may be a store with which no member speaks.
        absent = state.quorums.voters
        if wait:
            absent = self._ctx.absent_voters
        return ballots.is_supported(answers, state.own, state.quorums, absent)

    def ask(self) -> None:
        """Send the question, if it is due, to those that have not answered."""
        now = trio.current_time()
        if now >= self._ask_at:
            for peer in self._silent:
                self._ctx.links.send(peer, self._question)
            self._ask_at = now + self._ctx.state.timeouts.canvass_interval

    async def hear(self, sender: int, message: Message) -> Next | None:
        """Take an answer, or any other message; return the state that follows from it, if any."""
        ctx, step = self._ctx, None
        if isinstance(message, ScoutReply):
            # An answer to an earlier question may have been about another term. A standby has no
            # vote, so its answer counts for nothing.
            if message.nonce == self._question.nonce and sender in ctx.state.voters:
                self._take(sender, message)
        else:
            step = await ctx.react(sender, message)
        if max(ctx.promised_term, ctx.highest_term_heard) >= self._question.proposed_term_id:
            self._restart()  # nobody would vote in that term any more
        return step

    def _take(self, sender: int, reply: ScoutReply) -> None:
        ctx = self._ctx
        self._answers[sender] = reply.reason
        # A voter that has promised more would refuse us for ever, unless we ask above its term.
        ctx.highest_term_heard = max(ctx.highest_term_heard, reply.candidate_term_id)
        if self._supported(wait=False):
            # A quorum is enough: the members that are still silent are not waited for long.
            patience = trio.current_time() + ctx.state.timeouts.canvass_interval
            self._ends_at = min(self._ends_at, patience)

    async def conclude(self) -> Next:
        """Stand: a quorum would vote for us."""
        # To wait for these in the ballot would cost a whole election timeout: they are silent, have
        # no vote, or are bound by a lease.
        without = [m for m, why in self._answers.items() if why in NOT_WAITED_FOR]
        return await stand(self._ctx, self._question.proposed_term_id, [*self._silent, *without])

    def withdraw(self) -> Next:
        """Do not stand, and do not ask again for a while."""
        ctx, term = self._ctx, self._question.proposed_term_id
        # A promise to a leader ends by itself, so it is no reason for a longer pause.
        ctx.hold_back.failed(refused=VoteReason.PROMISED not in self._answers.values())
        # If the leader still wants us, it asks anew; until then we stand like any other member.
        ctx.mandate = None
        said = ", ".join(f"{peer} {why.name}" for peer, why in sorted(self._answers.items()))
        why = f"no quorum would vote for us in term {term}: {said or 'no answers'}"
        return Next(State.CANVASS, why)
