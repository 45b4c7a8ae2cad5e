"""An executable specification of the elector that can be explored exhaustively.

It has a few members, a few terms, and one entry of the log for each term. Every decision calls the
same functions of `quorate.node.protocol` as a member does; this module only replaces the members'
tasks around them. The environment is as hostile as possible:

- A message may be received at any time after it was sent, any number of times, in any order, or
  never.
- A member may return to its canvass at any time, by a timeout or a crash. Then everything in memory
  is lost; its promise, its vote and its log are durable and stay.
- A member may start a pre-vote at any time, whatever it has received in its canvass. Answers to an
  earlier round of pre-votes in the same term count, unlike in a member.
- A leader may nominate any of its followers, even one that is behind.
- A member may lose its disk, once, at any time. Messages from its old store may still be received
  at any later time. From then on, a leader may write the entry that admits the new store at any
  time.

So the model has more behaviours than real members, and every property of the model holds for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from quorate.node.protocol import ballots, log_matching
from quorate.node.protocol.quorum import Quorums
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
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def drawn_level(member: Member, given: Sequence[VoteGiven]) -> Log:
    """Return the log with which a winner leads."""
    logs = [member.log, *(vote.log for vote in given)]
    return max(logs, key=end_of) if member.forced == BEHIND else member.log


@attrs.frozen
class Elector:
    """The moves.

    Args:
        size: number of members.
        terms: the highest term that is explored.
        transfers: leaders may nominate a successor.
        steady: members that never lose their leader or leadership by a timeout; with such members,
            no term may be raised, and their roles must not change.
        scouting: members run a pre-vote before they become candidates.
        wipes: one member may lose its disk.
        sets: of voters; a decision needs a majority of each. Without any: all members are one set.
        alone: members that count by the first set alone, since they do not know yet that the voters
            change, or know already that the change is over.
    """

    size: int
    terms: int
    transfers: bool = False
    steady: frozenset[int] = frozenset()
    scouting: bool = True
    wipes: bool = False
    sets: tuple[frozenset[int], ...] = ()
    alone: frozenset[int] = frozenset()

    def quorums(self, i: int) -> Quorums[int]:
        """Return what a member counts by."""
        return Quorums[int](self._sets[:1] if i in self.alone else self._sets)

    @property
    def _sets(self) -> tuple[frozenset[int], ...]:
        return self.sets or (frozenset(range(self.size)),)

    def start(self) -> State:
        """Return the first state: no leader yet; with steady members, the first one leads."""
        if not self.steady:
            return State(tuple(Member() for _ in range(self.size)), frozenset())
        members = [Member(promised=0, voted=NOBODY) for _ in range(self.size)]
        for i in self.steady:
            members[i] = Member(FOLLOWING, 1, 0, 0, 1, 0, (1,))
        members[0] = Member(LEADING, 1, NOBODY, 0, 1, 0, (1,))
        sent: frozenset[Message] = frozenset({Leads(1, 0, ()), Leads(1, 0, (1,))})
        return State(tuple(members), sent, ((1, 0),), (1,))

    def check(self, state: State) -> None:
        """Check that steady members keep their roles.

        Raises:
            ViolationError: a role has changed, or a member has raised a term.
        """
        for i, member in enumerate(state.members):
            if self.steady and member.promised > 1:
                raise ViolationError(f"member {i} raised its term to {member.promised}")
            if i in self.steady and member.role != (FOLLOWING if i else LEADING):
                raise ViolationError(f"member {i} was steady")

    def moves(self, state: State) -> Iterator[State]:
        """Yield all possible next states.

        Raises:
            ViolationError: a move violates a property.
        """
        for i, member in enumerate(state.members):
            if member.role != CANVASS and i not in self.steady:
                yield changed(state, i, member.back())
            if self.wipes:
                yield from self._loses_or_gains(state, i, member)
            yield from self._acts(state, i, member)
            for message in state.sent:
                yield from self._hears(state, i, member, message)

    # --- moves of a member by itself

    def _loses_or_gains(self, state: State, i: int, member: Member) -> Iterator[State]:
        """Lose the disk; or learn that the entry that admits the new store is committed."""
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
        quorums = self.quorums(i)
        # All are absent: the round may be over at any time.
        enough = ballots.is_supported(answers, i, quorums, quorums.voters)
        if member.promised < member.term and enough:
            stands = member.promising(NodeState(member.term, i))._replace(role=BALLOT)
            yield changed(state, i, stands, VoteAsked(member.term, i, member.log, member.forced))

    def _win(self, state: State, i: int, member: Member) -> Iterator[State]:
        given = [
            sent
            for sent in state.sent
            if isinstance(sent, VoteGiven) and (sent.term, sent.receiver) == (member.term, i)
        ]
        if not ballots.has_quorum({vote.sender: True for vote in given}, i, self.quorums(i)):
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
        """Write the term's entry once a quorum has the term; commit it once a quorum has it."""
        at = {
            sent.sender: True
            for sent in state.sent
            if isinstance(sent, Has) and (sent.term, sent.log) == (member.term, member.log)
        }
        if not ballots.has_quorum(at, i, self.quorums(i)):
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
        for other in set(range(self.size)) - {i}:
            for forced in (FORCED, BEHIND):
                asks = member._replace(other=other)
                yield changed(state, i, asks, Asked(member.term, other, forced))

    # --- received messages

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
            yield changed(state, i, after.back())  # our candidacy is over

    def _hears_leader(
        self, state: State, i: int, member: Member, message: Leads
    ) -> Iterator[State]:
        if message.term == member.term and member.role == LEADING:
            raise ViolationError(f"members {i} and {message.sender} both lead term {member.term}")
        if log_matching.is_stale(new_term(message.term, message.sender), member.promised):
            if self.steady:  # otherwise leaders may give up at any time
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
    """Return a follower's report as the leader counts it: nothing, if its store has no vote."""
    follows = member.role == FOLLOWING and member.votes
    return (Has(member.term, i, member.log),) if follows else ()


def _voter(member: Member) -> ballots.VoterView:
    """Return the fields of a member that the rules read."""
    at = admitted_at(member.log)
    return ballots.VoterView(
        member.end,
        member.promise,
        admission=end_of(member.log[:at]),
        terms=[row.term for row in rows(member.log)],
        has_vote=member.votes,
    )


def explore(elector: Elector, start: State, most: int | None = None) -> int:
    """Visit every reachable state; return the number of states.

    Args:
        elector: the moves.
        start: the first state.
        most: give up after this many states.

    Raises:
        ViolationError: a property is violated.
        OverflowError: there are more than `most` states.
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
