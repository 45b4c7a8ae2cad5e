"""An executable specification of the elector, every state of which can be explored.

A few members, a few terms, one entry of the log for each term. Every judgement is made by the very
functions of `quorate.node.protocol` that a member uses; what stands here is only what the
members' tasks do around them. The environment is as bad as can be:

- A message once sent may be heard at any time, any number of times, in any order, or never.
- A member may fall back to its canvass at any time. That is a timeout, or a crash: all that it
  has in memory is lost, and its promise, its vote and its log are not, since they are durable.
- A member scouts whenever it likes, whatever it has heard in its canvass; answers to an earlier
  round of scouting in the same term count, which in a member they don't.
- A leader may ask any of its followers to take over, also one that is behind.
- A member may lose its disk, once, at any time. What its old store has said may still be heard
  ever after. A leader may write the entry that admits the new store at any time from then on.

So there are more behaviours here than members have, and what holds here holds for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from quorate.node.protocol import ballots, log_matching
from quorate.storage import NodeState
from quorate.transport import Scout, VoteReason
from tests.model.cluster import (
    ADMITTED,
    BALLOT,
    BEHIND,
    CANVASS,
    FIRST,
    FOLLOWING,
    FORCED,
    LEADING,
    NOBODY,
    RECOVERING,
    SCOUTING,
    VOTED,
    Asked,
    Has,
    Leads,
    Log,
    Member,
    Message,
    ScoutSent,
    Stale,
    State,
    ViolationError,
    VoteAsked,
    VoteGiven,
    Yes,
    admitted_at,
    agreed,
    changed,
    end_of,
    essence,
    new_term,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def drawn_level(member: Member, given: Sequence[VoteGiven]) -> Log:
    """The log with which a winner leads: see :mod:`quorate.node.election.adopt_voter_log`."""
    logs = [member.log, *(vote.log for vote in given)]
    return max(logs, key=end_of) if member.forced == BEHIND else member.log


@attrs.frozen
class Elector:
    """The moves.

    Args:
        size: how many members.
        terms: the highest term that is explored.
        transfers: leaders may ask others to take over.
        steady: members that never lose their leader, nor their leadership, by a timeout; if there
            are any, no term may be raised, and they must stay what they are.
        scouting: members scout before they stand.
        wipes: one member may lose its disk.
    """

    size: int
    terms: int
    transfers: bool = False
    steady: frozenset[int] = frozenset()
    scouting: bool = True
    wipes: bool = False

    def start(self) -> State:
        """Nobody has ever led; or if members are steady, the first leads and the others follow."""
        if not self.steady:
            return State(tuple(Member() for _ in range(self.size)), frozenset())
        members = [Member(promised=0, voted=NOBODY) for _ in range(self.size)]
        for i in self.steady:
            members[i] = Member(FOLLOWING, 1, 0, 0, 1, 0, (1,))
        members[0] = Member(LEADING, 1, NOBODY, 0, 1, 0, (1,))
        sent: frozenset[Message] = frozenset({Leads(1, 0, ()), Leads(1, 0, (1,))})
        return State(tuple(members), sent, ((1, 0),), (1,))

    def check(self, state: State) -> None:
        """See that steady members stay so.

        Raises:
            ViolationError: they don't, or somebody has raised a term.
        """
        for i, member in enumerate(state.members):
            if self.steady and member.promised > 1:
                raise ViolationError(f"member {i} raised its term to {member.promised}")
            if i in self.steady and member.role != (FOLLOWING if i else LEADING):
                raise ViolationError(f"member {i} was steady")

    def moves(self, state: State) -> Iterator[State]:
        """Yield all that may come next.

        Raises:
            ViolationError: a property is violated by a move.
        """
        for i, member in enumerate(state.members):
            if member.role != CANVASS and i not in self.steady:
                yield changed(state, i, member.back())
            if self.wipes:
                yield from self._loses_or_gains(state, i, member)
            yield from self._acts(state, i, member)
            for message in state.sent:
                yield from self._hears(state, i, member, message)

    # --- what a member does by itself

    def _loses_or_gains(self, state: State, i: int, member: Member) -> Iterator[State]:
        """Lose everything; or learn that the entry that admits the new store is committed."""
        if all(each.store == FIRST for each in state.members):
            yield changed(state, i, Member(store=RECOVERING))
        at = admitted_at(state.committed)
        if member.store == RECOVERING and at and member.log[:at] == state.committed[:at]:
            after = member._replace(store=ADMITTED)
            yield changed(state, i, after, *_reports(after, i))

    def _acts(self, state: State, i: int, member: Member) -> Iterator[State]:
        match member.role:
            case 0 if member.promised < self.terms and member.votes:
                yield self._scout(state, i, member, 0)
            case 1:
                yield from self._stand(state, i, member)
            case 2:
                yield from self._win(state, i, member)
            case 4:
                yield from self._write(state, i, member)
                if self.transfers and member.term < self.terms:
                    yield from self._ask(state, i, member)
            case _:
                pass

    def _scout(self, state: State, i: int, member: Member, forced: int) -> State:
        term = member.promised + 1
        if not self.scouting:
            stands = member.back().promising(NodeState(term, i))
            stands = stands._replace(role=BALLOT, term=term, forced=forced)
            return changed(state, i, stands, VoteAsked(term, i, member.log, forced))
        asked = ScoutSent(term, i, member.log, forced)
        return changed(
            state, i, member.back()._replace(role=SCOUTING, term=term, forced=forced), asked
        )

    def _stand(self, state: State, i: int, member: Member) -> Iterator[State]:
        answers = {
            sent.sender: VoteReason.GRANTED
            for sent in state.sent
            if isinstance(sent, Yes)
            and (sent.term, sent.receiver, sent.forced) == (member.term, i, member.forced)
        }
        others = self._others(i)
        if member.promised < member.term and ballots.is_supported(answers, others, others):
            stands = member.promising(NodeState(member.term, i))._replace(role=BALLOT)
            yield changed(state, i, stands, VoteAsked(member.term, i, member.log, member.forced))

    def _win(self, state: State, i: int, member: Member) -> Iterator[State]:
        given = [
            sent
            for sent in state.sent
            if isinstance(sent, VoteGiven) and (sent.term, sent.receiver) == (member.term, i)
        ]
        if not ballots.has_majority({vote.sender: True for vote in given}, self.size):
            return
        log = drawn_level(member, given)
        for term, winner in state.won:
            if term == member.term and winner != i:
                raise ViolationError(f"members {winner} and {i} both won term {term}")
        older = state.committed[-1:] < (member.term,)
        if older and log[: len(state.committed)] != state.committed:
            raise ViolationError(f"member {i} leads with {log}, committed is {state.committed}")
        leads = member._replace(role=LEADING, other=NOBODY, forced=0, log=log)
        won = tuple(sorted({*state.won, (member.term, i)}))
        yield changed(state, i, leads, Leads(member.term, i, log))._replace(won=won)

    def _write(self, state: State, i: int, member: Member) -> Iterator[State]:
        """Write the entry of the term once a quorum has it; commit it once a quorum has that."""
        at = {
            sent.sender: True
            for sent in state.sent
            if isinstance(sent, Has) and (sent.term, sent.log) == (member.term, member.log)
        }
        if not ballots.has_majority(at, self.size):
            return
        admits = any(not each.votes for each in state.members) and not admitted_at(member.log)
        if member.log[-1:] != (member.term,) or admits:
            log = (*member.log, member.term)
            yield changed(state, i, member._replace(log=log), Leads(member.term, i, log))
        if member.log[-1:] != (member.term,):
            return
        both = min(len(member.log), len(state.committed))
        if member.log[:both] != state.committed[:both]:
            raise ViolationError(f"{member.log} and {state.committed} are both committed")
        if len(member.log) > both:
            yield state._replace(committed=member.log)

    def _ask(self, state: State, i: int, member: Member) -> Iterator[State]:
        for other in self._others(i):
            for forced in (FORCED, BEHIND):
                asks = member._replace(other=other)
                yield changed(state, i, asks, Asked(member.term, other, forced))

    def _others(self, i: int) -> tuple[int, ...]:
        return tuple(other for other in range(self.size) if other != i)

    # --- what it hears

    def _hears(self, state: State, i: int, member: Member, message: Message) -> Iterator[State]:
        match message:
            case ScoutSent() if message.sender != i:
                yield from self._hears_scout(state, i, member, message)
            case VoteAsked() if message.sender != i:
                yield from self._hears_request(state, i, member, message)
            case Leads() if message.sender != i:
                yield from self._hears_leader(state, i, member, message)
            case Stale() if member.role == LEADING and message.term > member.term:
                yield changed(state, i, member.back())
            case Asked() if (
                member.role == FOLLOWING
                and message.receiver == i
                and message.term == member.term
                and member.promised < self.terms
                and member.votes
            ):
                yield self._scout(state, i, member, message.forced)
            case _:
                pass

    def _hears_scout(
        self, state: State, i: int, member: Member, message: ScoutSent
    ) -> Iterator[State]:
        asks = request(message)
        scout = Scout(
            message.term,
            asks.log_leadership_term_id,
            asks.log_position,
            message.sender,
            0,
            force=asks.force,
            even_if_behind=asks.even_if_behind,
        )
        first = member.role == SCOUTING and not ballots.gives_way(member.end, i, scout)
        in_ballot, alive = member.role in (CANVASS, SCOUTING) and not first, False
        if member.role == LEADING:
            in_ballot = member.other == message.sender
            alive = not in_ballot
        elif member.role == FOLLOWING:
            in_ballot, alive = asks.force, not asks.force
        reason = ballots.consider_prevote(
            scout, _voter(member), in_ballot=in_ballot, leader_alive=alive
        )
        if reason is VoteReason.GRANTED:
            gone = member.back() if member.role == SCOUTING else member
            yield changed(state, i, gone, Yes(message.term, i, message.sender, message.forced))

    def _hears_request(
        self, state: State, i: int, member: Member, message: VoteAsked
    ) -> Iterator[State]:
        asks = request(message)
        if member.role in (LEADING, FOLLOWING):
            leaves = ballots.may_take_over(asks, own=member.end, term=member.term)
            asked = member.role == FOLLOWING or member.other == message.sender
            if leaves and asked:
                yield from self._votes(state, i, member.back(), message)
                return
            decision = ballots.consider(asks, _voter(member), in_ballot=False, leader_alive=True)
            if decision.promise is not None:
                raise ViolationError(f"member {i} promises {decision.promise} and has a leader")
            return
        yield from self._votes(state, i, member, message)

    def _votes(self, state: State, i: int, member: Member, message: VoteAsked) -> Iterator[State]:
        decision = ballots.consider(
            request(message), _voter(member), in_ballot=True, leader_alive=False
        )
        after = member.promising(decision.promise)
        if decision.vote:
            voted = after.back()._replace(role=VOTED) if self.scouting else after.back()
            log = after.log if message.forced == BEHIND else ()
            yield changed(state, i, voted, VoteGiven(message.term, i, message.sender, log))
        elif decision.promise is not None:
            yield changed(state, i, after.back())  # what we stood for is over

    def _hears_leader(
        self, state: State, i: int, member: Member, message: Leads
    ) -> Iterator[State]:
        if message.term == member.term and member.role == LEADING:
            raise ViolationError(f"members {i} and {message.sender} both lead term {member.term}")
        if log_matching.is_stale(new_term(message.term, message.sender), member.promised):
            if self.steady:  # else leaders give up at any time anyway
                yield state._replace(sent=state.sent | {Stale(member.promised)})
            return
        if message.term > member.promised:
            member = member.promising(NodeState(message.term, NOBODY))
        follows = member.role == FOLLOWING and member.term == message.term
        if follows and len(message.log) <= len(member.log):
            return  # an older message about our own term never truncates
        kept = member.log[: agreed(member.log, message.log, message.term)]
        log = kept if len(kept) > len(message.log) else message.log
        joined = member.back()._replace(
            role=FOLLOWING, term=message.term, other=message.sender, log=log
        )
        yield changed(state, i, joined, *_reports(joined, i))


def _reports(member: Member, i: int) -> tuple[Has, ...]:
    """What a leader counts of what a follower tells: nothing, if its store has no vote."""
    follows = member.role == FOLLOWING and member.votes
    return (Has(member.term, i, member.log),) if follows else ()


def _voter(member: Member) -> ballots.VoterView:
    """What the rules look at in a member."""
    at = admitted_at(member.log)
    return ballots.VoterView(
        member.end, member.promise, admission=end_of(member.log[:at]), has_vote=member.votes
    )


def explore(elector: Elector, start: State, most: int | None = None) -> int:
    """Visit every state that can be reached; return how many there are.

    Args:
        elector: the moves.
        start: where to begin.
        most: give up if there are more.

    Raises:
        ViolationError: a property is violated.
        OverflowError: there are more states than that.
    """
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        for move in elector.moves(state):
            after = essence(move)
            if after not in seen:
                elector.check(after)
                seen.add(after)
                todo.append(after)
        if most is not None and len(seen) > most:
            raise OverflowError(f"more than {most} states")
    return len(seen)
