"""What a leader announces of its terms, and what that means for a follower's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from quorate.node.protocol.log_matching import (
    CanvassAgain,
    Disregard,
    LogDecision,
    NextTerm,
    Replay,
    Replicate,
    Truncate,
    agreement,
    ends_early,
    follow,
    is_stale,
    next_term,
    spans_around,
)
from quorate.storage import TermRow
from quorate.storage.rows.term_table import cut_at
from quorate.transport import MAX_TERM_SPANS, NULL_VALUE, NewLeadershipTerm, TermSpan

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows(*given: tuple[int, int, int | None]) -> tuple[TermRow, ...]:
    """A recording log."""
    return tuple(TermRow(term, base, end, 0) for term, base, end in given)


def spans(*given: tuple[int, int, int]) -> tuple[TermSpan, ...]:
    return tuple(TermSpan(*one) for one in given)


def message(
    log_term: int, leader_term: int, leaders: tuple[TermSpan, ...], **changed: int
) -> NewLeadershipTerm:
    """What a leader with these terms says to a member that asks with `log_term`."""
    after = [span for span in leaders if span.term == log_term + 1]
    base = leaders[-1].base
    fields = {
        "next_leadership_term_id": after[0].term if after else NULL_VALUE,
        "next_term_base_log_position": after[0].base if after else NULL_VALUE,
        "next_log_position": after[0].end if after else NULL_VALUE,
        "log_position": base,
    } | changed
    return NewLeadershipTerm(
        log_leadership_term_id=log_term,
        leadership_term_id=leader_term,
        term_base_log_position=base,
        leader_recording_id=0,
        timestamp=0,
        leader_member_id=1,
        log_session_id=7,
        app_version=1,
        is_startup=False,
        commit_position=0,
        replication_position=0,
        terms=leaders,
        **fields,
    )


# --- what the leader tells ------------------------------------------------------------------------

# terms 0 and 2 have entries, 1 is empty; the last one is the leader's own, once it is written
TERMS = rows((0, 0, 2848), (1, 2848, 2848), (2, 2848, 4064))
OWN = (*TERMS, *rows((3, 4064, None)))


@pytest.mark.parametrize(
    ("terms", "log_term", "expected"),
    [
        (TERMS, -1, NextTerm(0, 0, 2848)),  # an empty log
        (TERMS, 0, NextTerm(1, 2848, 2848)),  # an empty term follows
        (TERMS, 1, NextTerm(2, 2848, 4064)),
        (TERMS, 2, NextTerm(3, 4064, NULL_VALUE)),  # the leader's own, which it has not written yet
        (OWN, 2, NextTerm(3, 4064, NULL_VALUE)),  # nor closed
        (OWN, 3, NextTerm()),  # nothing follows its own
        (OWN, 4, NextTerm()),
        ((), -1, NextTerm(3, 4064, NULL_VALUE)),
    ],
)
def test_the_leader_tells_which_term_follows_the_askers(
    terms: tuple[TermRow, ...], log_term: int, expected: NextTerm
) -> None:
    assert next_term(terms, log_term, leader_term=3, base=4064) == expected


@pytest.mark.parametrize("terms", [TERMS, OWN])
def test_the_leader_lists_its_terms_with_its_own_at_the_end(terms: tuple[TermRow, ...]) -> None:
    expected = spans((0, 0, 2848), (1, 2848, 2848), (2, 2848, 4064), (3, 4064, -1))
    assert spans_around(terms, 0, leader_term=3, base=4064) == expected


def test_a_term_that_is_open_in_its_recording_log_ends_where_the_leaders_own_begins() -> None:
    found = spans_around(rows((0, 0, None)), -1, leader_term=1, base=96)
    assert found == spans((0, 0, 96), (1, 96, -1))


def test_terms_that_were_skipped_are_not_told() -> None:
    found = spans_around(rows((0, 0, None)), -1, leader_term=4, base=96)
    assert found == spans((0, 0, 96), (4, 96, -1))
    assert spans_around((), -1, leader_term=2, base=0) == spans((2, 0, -1))
    skipping = rows((0, 0, 96), (7, 96, 96), (2**40, 96, None))
    found = spans_around(skipping, 5, leader_term=2**61, base=128)
    assert found == spans((0, 0, 96), (7, 96, 96), (2**40, 96, 128), (2**61, 128, -1))
    assert next_term(skipping, 0, leader_term=2**61, base=128) == NextTerm(7, 96, 96)
    assert next_term(skipping, 9, leader_term=2**61, base=128) == NextTerm(2**40, 96, 128)


MANY = rows(*((term, term * 32, term * 32 + 32) for term in range(2000)))


@pytest.mark.parametrize("log_term", [-1, 0, 63, 64, 65, 500, 1998, 1999])
def test_of_many_terms_those_around_the_askers_are_told(log_term: int) -> None:
    found = spans_around(MANY, log_term, leader_term=2000, base=64_000)
    terms = [span.term for span in found]
    first = max(0, log_term - 64)
    assert terms[:-1] == list(range(first, min(first + MAX_TERM_SPANS - 1, 2000)))
    assert found[-1] == TermSpan(2000, 64_000, -1)


@pytest.mark.parametrize("log_term", [1, 100, 3000, 4999, 2**61])
def test_an_empty_term_of_which_the_leader_never_heard_is_dropped(log_term: int) -> None:
    leader = spans_around(rows((0, 0, None)), log_term, leader_term=2**61 + 1, base=128)
    mine = rows((0, 0, 96), (log_term, 96, None))
    step = follow(message(log_term, 2**61 + 1, leader), terms=mine, append=96)
    assert step == Truncate(96, 0)
    told = attrs.evolve(
        message(0, 2**61 + 1, leader),
        next_leadership_term_id=2**61 + 1,
        next_term_base_log_position=128,
    )
    assert follow(told, terms=cut_at(mine, 96, 0), append=96) == Replicate(0, None, 128)


def test_a_table_that_begins_at_0_is_of_all_terms_with_entries() -> None:
    """The leader's first term is newer than all that we have: nothing of ours is common."""
    told = spans_around((), 3, leader_term=5, base=0)
    mine = rows((3, 0, None))
    assert follow(message(3, 5, told), terms=mine, append=96) == Truncate(0, -1)
    told = spans((5, 96, 128), (6, 128, -1))  # of a member whose table is cut off
    decision = follow(message(3, 6, told), terms=mine, append=96)
    assert isinstance(decision, Disregard)


def test_a_log_that_parted_hundreds_of_terms_ago_is_not_taken_for_the_leaders() -> None:
    leader = rows((0, 0, None))
    mine = rows((0, 0, 800), *((term, 800, 800) for term in range(1, 100)), (100, 800, None))
    told = spans_around(leader, 100, leader_term=700, base=900)
    step = follow(message(100, 700, told), terms=mine, append=1100)
    assert isinstance(step, Truncate)
    assert step.to == 800


@pytest.mark.parametrize("gap", [60, 64, 66, 80, 400, 2000])
def test_empty_terms_prove_nothing_about_those_before_them(gap: int) -> None:
    """Two logs of one length, with other bytes in terms 4 and 5, and then only empty terms."""
    last = 5 + gap
    common = tuple((term, term * 10, term * 10 + 10) for term in range(4))
    mine = rows(*common, (4, 40, 90), *((t, 90, 90) for t in range(5, last)), (last, 90, None))
    theirs = rows(*common, (4, 40, 40), (5, 40, 90))
    asked = 0
    while True:
        told = spans_around(theirs, mine[-1].term, leader_term=last + 1, base=90)
        step = follow(message(mine[-1].term, last + 1, told), terms=mine, append=90)
        assert isinstance(step, Truncate), step
        if step.to < 90:
            break
        mine, asked = cut_at(mine, step.to, step.last_term), asked + 1
    assert step == Truncate(40, 4)
    assert asked <= gap // 60 + 1


def test_where_logs_part_is_found_however_long_ago() -> None:
    """If the leader lists only terms that are not common, the older ones are asked for next."""
    leader = rows(*((t, 8 * t, 8 * t + 8) for t in range(50)), (50, 400, None))
    mine = rows(
        *((t, 8 * t, 8 * t + 8) for t in range(20)),
        *((t, 8 * t + 1, 8 * t + 9) for t in range(20, 899)),
        (899, 7193, None),
    )
    mine = (*mine[:19], attrs.evolve(mine[19], end=161), *mine[20:])
    append, asked = 7200, 0
    while True:
        log_term = mine[-1].term
        told = spans_around(leader, log_term, leader_term=900, base=1000)
        step = follow(message(log_term, 900, told), terms=mine, append=append)
        if not isinstance(step, Truncate):
            break
        assert step.to >= 160
        mine, append, asked = cut_at(mine, step.to, step.last_term), step.to, asked + 1
    assert (mine[-1].term, append) == (19, 160)
    assert asked < 20


# --- how far two logs agree -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "append", "theirs", "expected"),
    [
        # nothing in common but the beginning
        ((), 0, [(0, 0, 96), (1, 96, -1)], (0, -1)),
        # mine is a beginning of theirs
        ([(0, 0, None)], 64, [(0, 0, 96), (1, 96, -1)], (64, 0)),
        ([(0, 0, None)], 96, [(0, 0, 96), (1, 96, -1)], (96, 0)),
        ([(0, 0, 96), (1, 96, None)], 128, [(0, 0, 96), (1, 96, -1)], (128, 1)),
        # mine goes on where their term ended
        ([(0, 0, None)], 160, [(0, 0, 96), (1, 96, -1)], (96, 0)),
        ([(0, 0, 160), (1, 160, None)], 160, [(0, 0, 96), (2, 96, -1)], (96, 0)),
        # their term is longer, but mine has another one behind it
        ([(0, 0, 96), (1, 96, None)], 160, [(0, 0, 128), (2, 128, -1)], (96, 0)),
        # the same term from another base: one of the two was told of it as empty
        ([(0, 0, 96), (1, 96, None)], 160, [(0, 0, 64), (1, 64, 64), (2, 64, -1)], (64, 0)),
        ([(0, 0, 96), (1, 96, 96), (2, 96, None)], 96, [(0, 0, 96), (1, 96, 128)], (96, 1)),
        # a term that is empty there and has entries here
        ([(0, 0, 96), (1, 96, None)], 160, [(0, 0, 96), (1, 96, 96), (2, 96, -1)], (96, 1)),
        # empty terms that one of the two never heard of, before a common one and behind it
        (
            [(0, 0, 96), (1, 96, 96), (5, 96, 128), (6, 128, None)],
            128,
            [(0, 0, 96), (5, 96, 160), (7, 160, -1)],
            (128, 5),
        ),
        ([(0, 0, 96), (5, 96, None)], 128, [(0, 0, 96), (2, 96, 96), (5, 96, 160)], (128, 5)),
        # an entry in a term that they do not list
        ([(0, 0, 96), (1, 96, 128), (5, 128, None)], 160, [(0, 0, 96), (5, 96, 160)], (96, 0)),
        # mine has an empty term that they do not list
        ([(0, 0, 96), (1, 96, None)], 96, [(0, 0, 96), (2, 96, -1)], (96, 0)),
        # the terms before the first one told are taken as agreed
        ([(7, 0, 96), (8, 96, None)], 160, [(8, 96, 128), (9, 128, -1)], (128, 8)),
        ([(7, 0, 96), (8, 96, None)], 160, [(9, 160, -1)], (160, 8)),
    ],
)
def test_two_logs_agree_up_to_where_their_tables_part(
    mine: Sequence[tuple[int, int, int | None]],
    append: int,
    theirs: Sequence[tuple[int, int, int]],
    expected: tuple[int, int],
) -> None:
    assert agreement(rows(*mine), append, spans(*theirs)) == expected


# --- what a follower does -------------------------------------------------------------------------

# The example of the protocol page: A = 1312, B = 2848, C = 4064, and D where the log ends.
ABCD = spans((0, 0, 2848), (1, 2848, 4064), (2, 4064, -1))


@pytest.mark.parametrize(
    ("log_term", "mine", "append", "expected"),
    [
        (0, [(0, 0, None)], 1312, Replicate(0, None, 2848)),
        (0, [(0, 0, 2848)], 2848, Replicate(1, 2848, 4064)),
        (1, [(0, 0, 2848), (1, 2848, None)], 3000, Replicate(1, None, 4064)),
        (1, [(0, 0, 2848), (1, 2848, 4064)], 4064, Replay(6656)),
        (2, [(0, 0, 2848), (1, 2848, 4064), (2, 4064, None)], 5280, Replay(6656)),
        (2, [(0, 0, 2848), (1, 2848, 4064), (2, 4064, None)], 6656, Replay(None)),
        (-1, (), 0, Replicate(0, 0, 2848)),
        # the log parts from the leader's
        (0, [(0, 0, None)], 3000, Truncate(2848, 0)),
        (1, [(0, 0, 2000), (1, 2000, None)], 2100, Truncate(2000, 0)),
        (1, [(0, 0, 2848), (1, 2848, None)], 5000, Truncate(4064, 1)),
        # a message for another log term says nothing about this one
        (1, [(0, 0, None)], 1312, CanvassAgain()),
        (0, [(0, 0, 2848), (1, 2848, None)], 2848, CanvassAgain()),
        (-1, [(0, 0, None)], 0, CanvassAgain()),
        (0, (), 0, CanvassAgain()),
    ],
)
def test_a_follower_does_what_its_log_lacks(
    log_term: int,
    mine: Sequence[tuple[int, int, int | None]],
    append: int,
    expected: LogDecision,
) -> None:
    told = message(log_term, 2, ABCD, log_position=6656)
    assert follow(told, terms=rows(*mine), append=append) == expected


@pytest.mark.parametrize(
    ("mine", "early"),
    [
        ((), False),
        ([(0, 0, None)], False),  # it is open: more of it may come
        ([(0, 0, 2848)], False),  # it ends where the leader's does
        ([(0, 0, 1312)], True),  # an earlier leader had less of it
        ([(0, 0, 2848), (1, 2848, 2848)], True),  # or nothing
        ([(0, 0, 2848), (1, 2848, 4064), (2, 4064, 4064)], True),
        ([(0, 0, 2848), (1, 2848, 4064), (2, 4064, 4064), (3, 4064, 4064)], False),  # not told
    ],
)
def test_a_last_term_that_was_closed_too_early_is_noticed(
    mine: Sequence[tuple[int, int, int | None]],
    early: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert ends_early(rows(*mine), ABCD) is early


def test_a_last_term_that_was_closed_too_early_is_opened_again() -> None:
    decision = follow(message(0, 2, ABCD), terms=rows((0, 0, 1312)), append=1312)
    assert decision == Truncate(1312, 0)


def test_the_first_term_of_an_empty_cluster_is_followed_at_once() -> None:
    told = message(-1, 0, spans((0, 0, -1)))
    assert follow(told, terms=(), append=0) == Replay(None)


def test_an_older_message_about_our_own_term_never_truncates() -> None:
    # it was written before the leader's term had entries, and we have recorded some since
    mine = rows((0, 0, 96), (1, 96, None))
    told = attrs.evolve(message(1, 1, spans((0, 0, 64), (1, 64, -1))), log_position=64)
    assert isinstance(follow(told, terms=mine, append=960), Disregard)


def test_a_message_of_our_own_term_with_a_shorter_log_is_followed_as_it_is() -> None:
    mine = rows((0, 0, 96), (1, 96, None))
    told = message(1, 1, spans((0, 0, 96), (1, 96, -1)), log_position=96)
    assert follow(told, terms=mine, append=960) == Replay(None)


def test_only_terms_that_are_not_the_leaders_are_dropped_although_they_are_empty() -> None:
    mine = rows((0, 0, 96), (1, 96, 96), (2, 96, None))
    told = message(2, 3, spans((0, 0, 96), (1, 96, 128), (2, 128, 128), (3, 128, -1)))
    assert follow(told, terms=mine, append=96) == Truncate(96, 1)


def test_a_message_below_whose_term_our_log_ends_and_that_names_no_next_term_is_malformed() -> None:
    told = message(0, 2, ABCD, next_leadership_term_id=NULL_VALUE)
    decision = follow(told, terms=rows((0, 0, None)), append=1312)
    assert isinstance(decision, Disregard)
    assert "malformed" in decision.reason


def test_a_term_that_is_still_open_at_the_leader_is_not_replicated() -> None:
    told = message(0, 2, ABCD, next_log_position=NULL_VALUE)
    decision = follow(told, terms=rows((0, 0, 2848)), append=2848)
    assert isinstance(decision, Disregard)


def test_interim_empty_terms_are_walked_one_by_one() -> None:
    # Aeron: ElectionTest.followerShouldProgressThroughInterimElectionsTerms, for positions that
    # meet: terms 1 to 8 are empty at 0, term 9 covers [0, 128), the leader's term 10 begins there
    leaders = spans(*((term, 0, 0) for term in range(9)), (9, 0, 128), (10, 128, -1))
    mine = rows((0, 0, None))
    for log_term in range(8):
        told = message(log_term, 10, leaders)
        assert follow(told, terms=mine, append=0) == Replicate(log_term + 1, 0, 0)
        mine = rows(*((term, 0, 0) for term in range(log_term + 2)))
    assert follow(message(8, 10, leaders), terms=mine, append=0) == Replicate(9, 0, 128)
    mine = rows(*((term, 0, 0) for term in range(9)), (9, 0, 128))
    assert follow(message(9, 10, leaders), terms=mine, append=128) == Replay(None)


@pytest.mark.parametrize(("promised", "stale"), [(1, False), (2, False), (3, True), (900, True)])
def test_a_leader_below_the_promised_term_is_stale(promised: int, stale: bool) -> None:  # noqa: FBT001
    assert is_stale(message(1, 2, ABCD), promised) is stale
