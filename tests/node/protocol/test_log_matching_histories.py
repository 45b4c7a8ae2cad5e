"""What a follower makes of a leader's term table, in random histories of a cluster.

A history is a row of leaders that come one after the other, each of which continues some log that
exists, as far as it likes; some of their terms stay empty, and some are skipped, which older
members note as empty. Whatever two logs of such a history are compared, the judgement must be
right for the bytes that they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from hypothesis import given
from hypothesis import strategies as st

from quorate.node.protocol.log_matching import (
    Replay,
    Replicate,
    Truncate,
    agreement,
    follow,
    next_term,
    spans_around,
)
from quorate.transport import NULL_VALUE, NewLeadershipTerm, TermSpan
from tests.node.protocol.test_log_matching import message, rows

if TYPE_CHECKING:
    from quorate.storage import TermRow


@attrs.frozen
class Log:
    """A log as it was at some moment: the term of each entry, and its term table.

    An entry is its term and its number within it, so equal entries are equal bytes.
    """

    entries: tuple[tuple[int, int], ...] = ()
    terms: tuple[TermRow, ...] = ()

    @property
    def end(self) -> int:
        return len(self.entries)

    def led(self, term: int, count: int, *, filled: bool = False) -> Log:
        """The log of a leader of `term` that begins with this one and appends so many entries."""
        base, last = self.end, list(self.terms)
        if last and last[-1].end is None:
            last[-1] = attrs.evolve(last[-1], end=base)
        following = last[-1].term + 1 if last else 0
        if filled:
            last += rows(*((empty, base, base) for empty in range(following, term)))
        last += rows((term, base, None))
        return Log((*self.entries, *((term, i) for i in range(count))), tuple(last))

    def until(self, end: int) -> Log:
        """A member's copy: the first entries, and the rows of the terms that it has seen."""
        kept = [row for row in self.terms if row.base < end]
        if kept:
            kept[-1] = attrs.evolve(kept[-1], end=None)
        return Log(self.entries[:end], tuple(kept))

    def replicated(self, count: int) -> Log:
        """A member's copy of the first terms, replicated whole: the last one is closed."""
        kept = [row for row in self.terms if row.end is not None][:count]
        return Log(self.entries[: kept[-1].end] if kept else (), tuple(kept))

    def shared(self, other: Log) -> int:
        """How many entries are equal from the beginning."""
        count = 0
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                break
            count += 1
        return count


@st.composite
def histories(draw: st.DrawFn) -> list[Log]:
    """Logs of one cluster, oldest leader first; each continues some part of an older one."""
    logs, term = [Log()], -1
    for _ in range(draw(st.integers(1, 6))):
        term += draw(st.integers(1, 3))
        older = draw(st.sampled_from(logs))
        start = older.until(draw(st.integers(0, older.end)))
        logs.append(start.led(term, draw(st.integers(0, 4)), filled=draw(st.booleans())))
    return logs


def copies(data: st.DataObject, history: list[Log]) -> Log:
    """What some member may hold of some log of the history."""
    one = data.draw(st.sampled_from(history))
    if data.draw(st.booleans()):
        return one.replicated(data.draw(st.integers(0, len(one.terms))))
    return one.until(data.draw(st.integers(0, one.end)))


def told_by(leader: Log, asker: Log) -> NewLeadershipTerm:
    """What the leader of the last term of its log says to the asker, with its whole log durable."""
    own, log_term = leader.terms[-1], asker.terms[-1].term if asker.terms else NULL_VALUE
    following = next_term(leader.terms, log_term, leader_term=own.term, base=own.base)
    return message(
        log_term,
        own.term,
        spans_around(leader.terms, log_term, leader_term=own.term, base=own.base),
        next_leadership_term_id=following.term,
        next_term_base_log_position=following.base,
        next_log_position=following.end,
        log_position=leader.end,
    )


@given(histories(), st.data())
def test_agreement_never_exceeds_what_two_logs_share(
    history: list[Log], data: st.DataObject
) -> None:
    other = data.draw(st.sampled_from(history))
    mine = copies(data, history)
    theirs = tuple(
        TermSpan(row.term, row.base, NULL_VALUE if row.end is None else row.end)
        for row in other.terms
    )
    position, term = agreement(mine.terms, mine.end, theirs)
    assert position <= mine.end
    # an open term of theirs may grow; up to its present end it holds exactly these entries
    assert mine.shared(other) >= min(position, other.end)
    assert term == NULL_VALUE or term in {row.term for row in mine.terms}


@given(histories(), st.data())
def test_follow_truncates_exactly_what_the_leader_does_not_share(
    history: list[Log], data: st.DataObject
) -> None:
    leader, mine = history[-1], copies(data, history)
    match follow(told_by(leader, mine), terms=mine.terms, append=mine.end):
        case Truncate(to=position, last_term=term):
            assert position == min(mine.shared(leader), mine.end)
            last = mine.terms[-1]
            assert position < mine.end or term != last.term or last.end is not None
        case Replicate() | Replay():
            assert mine.shared(leader) == mine.end
        case decision:
            raise AssertionError(f"{decision}: the leader spoke of our log term")


@given(histories(), st.data())
def test_round_by_round_every_log_becomes_the_leaders(
    history: list[Log], data: st.DataObject
) -> None:
    leader, mine = history[-1], copies(data, history)
    own = leader.terms[-1]
    for _ in range(2 * own.term + 4):
        match follow(told_by(leader, mine), terms=mine.terms, append=mine.end):
            case Truncate(to=position, last_term=term):
                kept = [row for row in mine.terms if row.base <= position and row.term <= term]
                if kept:
                    kept[-1] = attrs.evolve(kept[-1], end=None)
                mine = Log(mine.entries[:position], tuple(kept))
            case Replicate(term=term, stop=stop):
                known = tuple(row for row in leader.terms if row.term <= term)
                mine = Log(leader.entries[:stop], known)
            case Replay():
                assert own.base <= mine.end <= leader.end
                return
            case decision:
                raise AssertionError(f"{decision}: the leader spoke of our log term")
    raise AssertionError("it never reached the leader's term")
