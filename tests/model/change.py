"""An executable model of a change of the voters: every state of a few members is explored.

It is the design of a change that is an entry of the log (Raft dissertation, section 4.3), and is
explored before members have it. The rules that exist are the product's own: who gets a vote, where
two logs part, and what a quorum has.

The change
----------
Each log begins with the old set of voters. A leader appends J: from then on decisions need a
majority of the old set and one of the new. Once J is committed, it appends F, and from then on the
new set decides alone. The last of these entries in a member's own log is in force for it, from its
append on, whether it is committed or not. If the log is truncated, the one before is in force
again. In detail:

1. J is appended by a leader with a committed entry of its own term, while no change is under way.
2. F is appended by any leader that is in the new set and knows that J is committed, also if J is
   from another leadership.
3. A leader sends F to members that F drops only once it knows that F is committed.
4. A member votes for any candidate, also for one that is in none of its own sets.
5. A member stands unless F is in force in its log, and drops it. A member that J adds may stand
   before it has J.
6. A member counts by its own log, and counts itself only in the sets that it is in.

What is explored
----------------
There are a few terms. Each leader writes one plain entry, and then J and F if it may. Every message
may be received at any time, in any order, more than once or never, and a follower may have taken
any part of what its leader has sent. One state stands for several that are no less safe:

- There are no crashes, timeouts or pre-votes. A member that does nothing is in no worse place, and
  the promise and the log survive a crash. A member votes, stands or follows whatever it does now.
- A refusal promises nothing, and a candidacy that nobody can win is forgotten. A higher promise
  only takes possibilities away, since a member may stand in any term above its promise.
- A candidate wins with the vote that is enough, and a leader commits with the report that is
  enough. Waiting would only make less possible. What is checked of a new leader is checked of it
  also when an older one commits later.
- Members of equal roles in the change (`Change.alike`) may be exchanged.

`Change.patient` undoes the first three, and shows in smaller models that they hide nothing.

A wiped disk is not a move of its own: its new store is another voter, so it is the change that
replaces a member that falls silent.

What is checked
---------------
- A term has one leader.
- A new leader's log has all that was committed in older terms; committed logs agree.
- Someone can lead: survivors with a majority of each set that decides, by their logs and by what
  is committed, can elect one of them (`Change.check`). They never need a dead member.

What was found
--------------
Rules 2 to 6 are needed (`PLANTED`). Two of them only so that someone can lead:

- Rule 5 in its first form, "a member stands only if it is in a set of its own log", stops a cluster
  of A, B and C that adds D in place of C. Only C has J, which is not committed. A leader B without
  J sends its entry to D, and dies. C needs D, by its J, but D has the newer log. A needs C, but C
  has the newer log. D is in no set of its own log, so it would not stand.
- Rule 3 is not needed if a member that F drops may stand. Neither is that the leader is in the new
  set. It does not count itself in any case.

Rule 1 is not needed, neither its first half nor its second: an old majority is part of each J, so
two changes cannot pass each other. It keeps changes simple. If only one voter is added or removed,
the explored states are safe also if J is not committed before F. A majority of the union is found
wrong if several voters change: for one voter it is a majority of both sets.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from quorate.node.protocol import ballots
from quorate.node.protocol.quorum import Quorums, may_commit
from quorate.storage import NodeState
from quorate.transport import RequestVote
from tests.model.cluster import NOBODY, ViolationError, agreed, end_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Log = tuple[int, ...]
"""Entries, oldest first: term * KINDS + kind."""

PLAIN = 0
JOINT, RIVAL, NEXT = 1, 3, 5
"""The kinds of J: of the change, of its rival, and of the next one. F is the kind after its J."""
KINDS: Final = 7
LEADS: Final = -1
SETTLED: Final = (KINDS + PLAIN,)
"""A log with the plain entry of term 1."""


class Member(NamedTuple):
    """One member.

    Attributes:
        promised: durable: the highest term.
        log: durable.
        config: the kind of the entry that is in force, PLAIN for the old set.
        votes: bits of the members that voted for it in this term, if it is a candidate, else 0;
            LEADS if it leads in this term.
        has: for a leader, how far each member reported its log; 0 for what is committed already.
    """

    promised: int = 0
    log: Log = ()
    config: int = PLAIN
    votes: int = 0
    has: tuple[int, ...] = ()


class Sent(NamedTuple):
    """What a leader has sent, and may still be received: its log, and how far it is committed."""

    log: Log
    committed: int = 0


class State(NamedTuple):
    """The cluster, and the facts that the checks need.

    Attributes:
        members: the members by id.
        sent: by term; None if there was no leader, or nobody can follow it any more.
        committed: the longest log that was ever committed.
    """

    members: tuple[Member, ...]
    sent: tuple[Sent | None, ...]
    committed: Log = ()


@functools.cache
def terms_of(log: Log) -> Log:
    """Return the terms of the entries."""
    return tuple(entry // KINDS for entry in log)


@functools.cache
def config_of(log: Log) -> int:
    """Return the kind of the last entry that changes the voters; PLAIN without one."""
    return next((entry % KINDS for entry in reversed(log) if entry % KINDS), PLAIN)


def is_joint(kind: int) -> bool:
    """Say whether entries of a kind are a J."""
    return kind % 2 == 1


def is_final(kind: int) -> bool:
    """Say whether entries of a kind are an F."""
    return kind != PLAIN and not is_joint(kind)


@functools.cache
def index_of(log: Log, kind: int) -> int:
    """Return how long a log is up to the last entry of a kind; 0 without one."""
    return max((at + 1 for at, entry in enumerate(log) if entry % KINDS == kind), default=0)


@functools.cache
def shared(log: Log, leaders: Log, term: int) -> int:
    """Return how far a log equals that of a term's leader, by the members' own comparison."""
    return agreed(terms_of(log), terms_of(leaders), term)


@functools.cache
def gets_vote(term: int, log: Log, voter: Log, promised: int) -> bool:
    """Say whether a candidate with a log gets the vote of a member that may answer."""
    end = end_of(terms_of(log))
    asks = RequestVote(end.term, end.position, term, 0)
    view = ballots.VoterView(end_of(terms_of(voter)), NodeState(promised, NOBODY))
    return ballots.consider(asks, view, in_ballot=True, leader_alive=False).vote


@attrs.frozen(cache_hash=True)
class Change:
    """The moves.

    Args:
        old: the voters before the change.
        new: the voters after it.
        terms: the highest term that is explored.
        planted: rules that are left out, or wrong, by name (see `PLANTED`).
        leader: if given, this member leads term 1 from the start, and all old voters have its
            entry.
        rival: if given, a leader may begin a change to these voters instead.
        after: if given, a leader may then begin a change from the new set to these voters.
        more: a leader may write a plain entry behind its J, and behind its F.
        patient: members may also crash, promise a term for nothing, and win or commit later than
            they could. There are more states, and none that is worse.
        live: check that someone can lead; otherwise only what leaders and logs must not do.
    """

    old: frozenset[int]
    new: frozenset[int]
    terms: int
    planted: frozenset[str] = frozenset()
    leader: int | None = None
    rival: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()
    more: bool = False
    patient: bool = False
    live: bool = True
    size: int = attrs.field(init=False)
    by_config: tuple[Quorums[int], ...] = attrs.field(init=False)
    alike: tuple[tuple[int, ...], ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if unknown := self.planted - PLANTED.keys():
            raise ValueError(f"planted {unknown}: expected some of {[*PLANTED]}")
        by_config = [Quorums[int].of(self.old)]
        for old, new in (
            (self.old, self.new),
            (self.old, self.rival or self.new),
            (self.new, self.after or self.new),
        ):
            sets = (old | new,) if "union" in self.planted else (old, new)
            by_config += Quorums[int].of(*sets), Quorums[int].of(new)
        size = len(frozenset[int]().union(*self._sets))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "by_config", tuple(by_config))
        orders = itertools.permutations(range(size))
        alike = tuple(order for order in orders if self._is_alike(order))
        object.__setattr__(self, "alike", alike[1:])

    def _is_alike(self, order: tuple[int, ...]) -> bool:
        return all(frozenset(order[i] for i in voters) == voters for voters in self._sets)

    @property
    def _sets(self) -> tuple[frozenset[int], ...]:
        return self.old, self.new, self.rival, self.after

    def new_of(self, kind: int) -> frozenset[int]:
        """Return the voters after the change that a kind of J or F belongs to."""
        return self._sets[(kind + 1) // 2]

    def start(self) -> State:
        """Return the first state: no log has an entry, or a leader has settled in."""
        sent: list[Sent | None] = [None] * (self.terms + 1)
        members = [Member() for _ in range(self.size)]
        if self.leader is None:
            return State(tuple(members), tuple(sent))
        for i in self.old:
            members[i] = Member(1, SETTLED)
        members[self.leader] = Member(1, SETTLED, PLAIN, LEADS, (0,) * self.size)
        sent[1] = Sent(SETTLED, 1)
        return State(tuple(members), tuple(sent), SETTLED)

    # --- moves

    def moves(self, state: State) -> Iterator[State]:
        """Yield all possible next states.

        Raises:
            ViolationError: a move violates a property.
        """
        for i, member in enumerate(state.members):
            if member.votes == LEADS:
                yield from self._append(state, i, member)
            if self.may_stand(i, member.config):
                for term in range(member.promised + 1, self.terms + 1):
                    yield from self._vote(state, i, i, term)
            for c, candidate in enumerate(state.members):
                if candidate.votes > 0 and c != i and self._answers(member, candidate, c):
                    yield from self._vote(state, i, c, candidate.promised)
            for term in range(max(member.promised, 1), self.terms + 1):
                if state.sent[term] is not None and not (
                    member.votes == LEADS and member.promised == term
                ):
                    yield from self._follow(state, i, member, term)
            if self.patient:
                yield from self._wait(state, i, member)

    def _wait(self, state: State, i: int, member: Member) -> Iterator[State]:
        """Do what `moves` otherwise leaves out, or does at once."""
        after = member._replace(votes=0, has=())
        if member.votes:
            yield _with(state, i, after)
        for term in range(member.promised + 1, self.terms + 1):
            yield _with(state, i, after._replace(promised=term))
        if member.votes == LEADS:
            yield self._commit(state, i)
        elif member.votes and self._has_quorum(i, member):
            yield self._win(state, i)

    def may_stand(self, i: int, config: int) -> bool:
        """Say whether a member with a configuration in force may be a candidate."""
        if config == PLAIN and "joiners wait" in self.planted:
            return i in self.old
        if is_final(config) and "anybody stands" not in self.planted:
            return i in self.new_of(config)
        return True

    def _answers(self, member: Member, candidate: Member, c: int) -> bool:
        """Say whether a member votes for a candidate."""
        if "strangers refused" in self.planted and c not in self.by_config[member.config].voters:
            return False
        return gets_vote(candidate.promised, candidate.log, member.log, member.promised)

    def _vote(self, state: State, i: int, c: int, term: int) -> Iterator[State]:
        """Let a member vote for a candidate, or for itself; let the candidate win if it can."""
        members = list(state.members)
        members[i] = members[i]._replace(promised=term, votes=0, has=())
        candidate = members[c] = members[c]._replace(votes=members[c].votes | 1 << i)
        after = state._replace(members=tuple(members))
        wins = not self.patient and self._has_quorum(c, candidate)
        yield self._win(after, c) if wins else after

    def _has_quorum(self, c: int, candidate: Member) -> bool:
        given = {i: bool(candidate.votes >> i & 1) for i in range(self.size) if i != c}
        return ballots.has_quorum(given, c, self.by_config[candidate.config])

    def _win(self, state: State, c: int) -> State:
        """Let a candidate become the leader of its term."""
        candidate, committed = state.members[c], state.committed
        term, log = candidate.promised, candidate.log
        if state.sent[term] is not None:
            raise ViolationError(f"member {c} is the second one that wins term {term}")
        older = not committed or committed[-1] // KINDS < term
        if older and log[: len(committed)] != committed:
            raise ViolationError(f"member {c} leads with {log}, committed is {committed}")
        leads = candidate._replace(votes=LEADS, has=(0,) * self.size)
        return self._sends(_with(state, c, leads), term, Sent(log))

    def _append(self, state: State, i: int, member: Member) -> Iterator[State]:
        """Let a leader append the next entry."""
        term, log = member.promised, member.log
        sent = state.sent[term]
        assert sent is not None
        if log[-1:] < (term * KINDS,):
            yield from self._appends(state, i, PLAIN)
            if "own term" not in self.planted:
                return
        config = config_of(log)
        settled = sent.committed > 0 or "own term" in self.planted
        if config == PLAIN and settled:
            yield from self._appends(state, i, JOINT)
            if self.rival:
                yield from self._appends(state, i, RIVAL)
        ended = sent.committed >= index_of(log, config) or "one at a time" in self.planted
        if config == JOINT + 1 and ended and self.after:
            yield from self._appends(state, i, NEXT)
        joint = sent.committed >= index_of(log, config) or "joint commit" in self.planted
        outsider = "outsider" in self.planted or "counts itself" in self.planted
        if is_joint(config) and joint and (i in self.new_of(config) or outsider):
            yield from self._appends(state, i, config + 1)
        if self.more and log[-1] > term * KINDS:
            yield from self._appends(state, i, PLAIN)

    def _appends(self, state: State, i: int, kind: int) -> Iterator[State]:
        member = state.members[i]
        term, log = member.promised, (*member.log, member.promised * KINDS + kind)
        after = member._replace(log=log, config=self._in_force(member, log, len(member.log)))
        sent = state.sent[term]
        assert sent is not None
        made = self._sends(_with(state, i, after), term, sent._replace(log=log))
        yield made if self.patient else self._commit(made, i)

    def _in_force(self, member: Member, log: Log, kept: int, committed: int = 0) -> int:
        """Return what is in force after a log has changed behind an entry."""
        if "apply" in self.planted:
            return config_of(log[:committed]) or member.config
        if "kept" in self.planted:
            return config_of(log[kept:]) or member.config
        return config_of(log)

    def _follow(self, state: State, i: int, member: Member, term: int) -> Iterator[State]:
        """Let a member take a part of what a leader has sent."""
        sent = state.sent[term]
        assert sent is not None
        kept = shared(member.log, sent.log, term)
        config, end = config_of(sent.log), len(sent.log)
        final = index_of(sent.log, config)
        dropped = is_final(config) and i not in self.new_of(config)
        if dropped and sent.committed < final and "dropped" not in self.planted:
            end = final - 1
        # A member whose log is the leader's up to some point takes more, or nothing.
        for length in range(kept + (kept == len(member.log)), end + 1):
            log = sent.log[:length]
            known = min(length, sent.committed)
            in_force = {self._in_force(member, log, kept, known)}
            if "apply" in self.planted:
                in_force.add(member.config)
            for each in sorted(in_force):
                members = list(state.members)
                members[i] = Member(term, log, each)
                leader = self._report(members, i, term)
                made = State(tuple(members), state.sent, state.committed)
                yield made if leader is None or self.patient else self._commit(made, leader)

    def _report(self, members: list[Member], i: int, term: int) -> int | None:
        """Let the leader of a term hear how far a member has its log; return the leader."""
        for leader, member in enumerate(members):
            if member.votes == LEADS and member.promised == term:
                has = list(member.has)
                has[i] = max(has[i], len(members[i].log))
                members[leader] = member._replace(has=tuple(has))
                return leader
        return None

    def _sends(self, state: State, term: int, sent: Sent) -> State:
        return state._replace(sent=(*state.sent[:term], sent, *state.sent[term + 1 :]))

    def _commit(self, state: State, i: int) -> State:
        """Let a leader commit what a quorum has."""
        member = state.members[i]
        term, log = member.promised, member.log
        sent = state.sent[term]
        assert sent is not None
        base = sum(entry < term * KINDS for entry in log)
        reached = self._reached((*member.has[:i], len(log), *member.has[i + 1 :]), i, member.config)
        commit = sent.committed
        if may_commit(reached, base=base) and reached > commit:
            commit = reached
        has = tuple(each if each > max(commit, base) else 0 for each in member.has)
        config = member.config
        if "apply" in self.planted:
            config = config_of(log[:commit]) or config
        after = _with(state, i, member._replace(has=has, config=config))
        after = self._sends(after, term, sent._replace(committed=commit))
        return after._replace(committed=self._checked(after, term, log[:commit]))

    def _reached(self, ends: tuple[int, ...], i: int, config: int) -> int:
        quorums = self.by_config[config]
        reached = dict(enumerate(ends))
        if "counts itself" in self.planted and i not in quorums.voters:
            # In place of a voter that has least.
            reached[min(quorums.voters, key=ends.__getitem__)] = ends[i]
        return quorums.position(reached)

    def _checked(self, state: State, term: int, log: Log) -> Log:
        """Return the longest committed log, now that a leader of a term has committed one."""
        both = min(len(log), len(state.committed))
        if log[:both] != state.committed[:both]:
            raise ViolationError(f"{log} and {state.committed} are both committed")
        for newer in state.sent[term + 1 :]:
            if newer is not None and newer.log[: len(log)] != log:
                raise ViolationError(f"{log} is committed, a newer leader has {newer.log}")
        return max(log, state.committed, key=len)

    # --- states

    def essence(self, state: State) -> State:
        """Return the state that stands for this one and all that are as good."""
        members, sent, committed = state
        lowest = min([member.promised for member in members])
        if lowest > 1:
            sent = (*(None,) * lowest, *sent[lowest:])
        if self.alike:
            members = min(members, *[_reordered(members, order) for order in self.alike])
        return State(members, sent, committed)

    def check(self, state: State) -> None:
        """Check that survivors with a majority of each set that decides can elect a leader.

        Raises:
            ViolationError: they cannot, and nothing that they do changes that.
        """
        if not self.live:
            return
        logs = tuple((member.log, member.config) for member in state.members)
        if (stuck := _stuck(self, logs, config_of(state.committed))) is not None:
            raise ViolationError(f"survivors {set(stuck)} of {logs} elect nobody")


def _with(state: State, i: int, member: Member) -> State:
    """Return the state after a member has changed."""
    return state._replace(members=(*state.members[:i], member, *state.members[i + 1 :]))


def _reordered(members: tuple[Member, ...], order: tuple[int, ...]) -> tuple[Member, ...]:
    """Return the members after an exchange of equal roles."""
    return tuple([_renamed(members[i], order) for i in order])


@functools.cache
def _renamed(member: Member, order: tuple[int, ...]) -> Member:
    """Return a member that knows the others by their new ids."""
    promised, log, config, votes, has = member
    if votes > 0:
        votes = sum((votes >> each & 1) << at for at, each in enumerate(order))
    if has:
        has = tuple(has[each] for each in order)
    return Member(promised, log, config, votes, has)


@functools.cache
def _stuck(
    change: Change, logs: tuple[tuple[Log, int], ...], committed: int
) -> frozenset[int] | None:
    """Return survivors that should be able to elect a leader, but cannot; None without such."""
    for count in range(1, change.size + 1):
        for survivors in map(frozenset, itertools.combinations(range(change.size), count)):
            kinds = {committed, *(config_of(logs[i][0]) for i in survivors)}
            needed = [change.new_of(kind) for kind in kinds if kind >= committed]
            # And the set before, until F is committed: the members that have F may be dead.
            if committed == NEXT:
                needed.append(change.new)
            elif not is_final(committed):
                needed.append(change.old)
            if Quorums[int].of(*needed).agree(survivors) and not _elects(change, logs, survivors):
                return survivors
    return None


def _elects(change: Change, logs: tuple[tuple[Log, int], ...], survivors: frozenset[int]) -> bool:
    for i in survivors:
        log, config = logs[i]
        given = {
            voter
            for voter in survivors - {i}
            if gets_vote(1, log, logs[voter][0], 0)
            and (
                "strangers refused" not in change.planted
                or i in change.by_config[logs[voter][1]].voters
            )
        }
        if change.may_stand(i, config) and change.by_config[config].agree({i, *given}):
            return True
    return False


PLANTED: Final = {
    "own term": "a leader appends J before an entry of its own term is committed",
    "apply": "J and F are in force once a member knows that they are committed",
    "union": "under J a majority of the union decides",
    "kept": "what was in force stays in force if it is truncated",
    "strangers refused": "a member votes only for candidates in its own sets",
    "one at a time": "a leader appends the next J before F is committed",
    "joint commit": "a leader appends F before J is committed",
    "dropped": "a leader sends F to members that F drops before F is committed",
    "outsider": "a leader that F drops appends F",
    "counts itself": "a leader that F drops appends F, and counts itself",
    "joiners wait": "a member that J adds does not stand before it has J",
    "anybody stands": "a member that F drops stands although it has F",
}
"""What may be planted."""


def explore(change: Change, most: int | None = None) -> int:
    """Visit every reachable state; return the number of states.

    Args:
        change: the moves.
        most: give up after this many states.

    Raises:
        ViolationError: a property is violated.
        OverflowError: there are more than `most` states.
    """
    start = change.start()
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        for move in change.moves(state):
            # Most moves lead to a state that was seen as it is.
            if move in seen:
                continue
            after = change.essence(move)
            if after not in seen:
                change.check(after)
                seen.add(after)
                todo.append(after)
        if most is not None and len(seen) > most:
            raise OverflowError(f"more than {most} states")
    return len(seen)
