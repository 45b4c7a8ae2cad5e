"""The position that a quorum has reached, and which members count for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.node.protocol.quorum import Quorums, is_active, may_commit, quorum


@pytest.mark.parametrize(
    ("heard", "now", "timeout", "expected"),
    [
        # Aeron: ClusterMemberTest, quorumPosition; each member is (position, when it was heard)
        ([(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)], 5, 10, 3),
        ([(1, 0), (2, 0), (3, 0), (2, 0), (5, 0)], 5, 10, 2),
        ([(1, 1), (2, 0), (3, 1), (2, 0), (5, 1)], 5, 5, 1),
        ([(5, 0), (2, 1), (3, 0), (2, 1), (1, 0)], 5, 5, 0),
        ([(5, 5), (2, 5), (3, 5), (2, 0), (1, 0)], 8, 7, 2),
        ([(4, 5), (2, 5), (4, 5), (2, 0), (3, 3)], 8, 7, 3),
    ],
)
def test_the_quorums_position_is_that_of_the_active_members(
    heard: list[tuple[int, int]], now: int, timeout: int, expected: int
) -> None:
    five = Quorums.of(range(5))
    active = {i: each[0] for i, each in enumerate(heard) if is_active(each[1], now, timeout)}
    assert five.position(active) == expected
    assert five.position(dict.fromkeys(range(5), 0) | active) == expected


@pytest.mark.parametrize(("now", "active"), [(14.9, True), (15.0, False), (15.1, False)])
def test_a_member_is_active_strictly_within_the_timeout(now: float, active: bool) -> None:  # noqa: FBT001
    assert is_active(5.0, now, 10.0) is active


@pytest.mark.parametrize(("reached", "committed"), [(0, False), (4064, False), (4160, True)])
def test_nothing_is_committed_before_an_entry_of_the_leaders_own_term(
    reached: int,
    committed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert may_commit(reached, base=4064) is committed


# --- sets of voters -------------------------------------------------------------------------------

VOTERS = st.frozensets(st.integers(0, 8), min_size=1)
QUORUMS = st.lists(VOTERS, min_size=1, max_size=2).map(lambda sets: Quorums.of(*sets))
POSITIONS = st.dictionaries(st.integers(0, 8), st.integers(0, 50))


@pytest.mark.parametrize(
    ("yes", "enough"),
    [
        ({0, 1, 3}, True),  # a majority of both
        ({1, 2}, False),  # of the first alone
        ({1, 3, 4}, False),  # of the second alone
        ({0, 2, 3, 4}, True),
        ({0, 1, 2}, False),  # three of five, and of the second set one
        ({0, 1, 2, 7, 8, 9}, False),  # members of no set have no weight
    ],
)
def test_a_joint_decision_needs_a_majority_of_each_set(yes: set[int], enough: bool) -> None:  # noqa: FBT001
    assert Quorums.of([0, 1, 2], [1, 3, 4]).agree(yes) is enough


def test_a_member_that_is_in_no_set_has_no_weight() -> None:
    quorums = Quorums.of([1, 2])
    assert not quorums.agree({0, 1})
    assert quorums.position({0: 900, 1: 96, 2: 64}) == 64
    assert quorums.time({0: 9.0, 1: 3.0}) == -math.inf
    assert quorums.voters == {1, 2}


@pytest.mark.parametrize("sets", [[], [[]], [[0, 1], []]])
def test_a_set_without_voters_is_refused(sets: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="expected one or two that are not empty"):
        Quorums.of(*sets)


@given(VOTERS, VOTERS, st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)))
def test_what_the_joint_sets_decide_each_set_knows(
    old: frozenset[int], new: frozenset[int], first: set[int], second: set[int]
) -> None:
    # the reason of joint configurations: a decision of both sets shares a voter with every decision
    # of the old set, and with every decision of the new one
    if Quorums.of(old, new).agree(first):
        for alone in (old, new):
            assert not Quorums.of(alone).agree(second) or first & second & alone


@given(QUORUMS, POSITIONS)
def test_a_position_is_held_by_a_quorum_and_nothing_higher_is(
    quorums: Quorums[int], reached: dict[int, int]
) -> None:
    position = quorums.position(reached)
    assert quorums.agree({each for each in range(9) if reached.get(each, 0) >= position})
    assert not quorums.agree({each for each, at in reached.items() if at > position})


@given(QUORUMS, POSITIONS)
def test_members_that_are_not_heard_count_as_empty(
    quorums: Quorums[int], reached: dict[int, int]
) -> None:
    assert quorums.position(reached) == quorums.position(dict.fromkeys(range(9), 0) | reached)


@given(QUORUMS, POSITIONS, st.integers(0, 8), st.integers(0, 9))
def test_no_report_ever_lowers_the_position(
    quorums: Quorums[int], reached: dict[int, int], which: int, more: int
) -> None:
    grown = reached | {which: reached.get(which, 0) + more}
    assert quorums.position(grown) >= quorums.position(reached)


@given(QUORUMS, st.dictionaries(st.integers(0, 8), st.floats(0, 100)))
def test_a_quorum_was_heard_since_the_time(quorums: Quorums[int], heard: dict[int, float]) -> None:
    since = quorums.time(heard)
    assert quorums.agree({*heard}) is (since > -math.inf)
    assert not quorums.agree({each for each, at in heard.items() if at > since})


@given(st.integers(1, 99))
def test_two_majorities_have_a_member_in_common(members: int) -> None:
    assert 2 * quorum(members) > members
    assert 2 * (quorum(members) - 1) <= members
