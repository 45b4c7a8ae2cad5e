"""The position that a quorum has reached, and which members count for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.node.protocol.quorum import is_active, may_commit, quorum, quorum_position


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
    active = [position for position, at in heard if is_active(at, now, timeout)]
    assert quorum_position(active, 5) == expected
    counted = [position if is_active(at, now, timeout) else 0 for position, at in heard]
    assert quorum_position(counted, 5) == expected


@pytest.mark.parametrize(("now", "active"), [(14.9, True), (15.0, False), (15.1, False)])
def test_a_member_is_active_strictly_within_the_timeout(now: float, active: bool) -> None:  # noqa: FBT001
    assert is_active(5.0, now, 10.0) is active


@pytest.mark.parametrize(("reached", "committed"), [(0, False), (4064, False), (4160, True)])
def test_nothing_is_committed_before_an_entry_of_the_leaders_own_term(
    reached: int,
    committed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert may_commit(reached, base=4064) is committed


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_the_quorums_position_is_held_by_a_quorum_and_nothing_higher_is(
    positions: list[int],
) -> None:
    members = len(positions)
    reached = quorum_position(positions, members)
    assert sum(position >= reached for position in positions) >= quorum(members)
    assert sum(position > reached for position in positions) < quorum(members)


@given(st.lists(st.integers(1, 50), max_size=9), st.integers(0, 8))
def test_members_that_are_not_heard_count_as_empty(positions: list[int], silent: int) -> None:
    members = max(1, len(positions) + silent)
    reached = quorum_position(positions, members)
    assert reached == quorum_position(positions + [0] * (members - len(positions)), members)
    assert bool(reached) is (len(positions) >= quorum(members))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 8), st.integers(0, 9))
def test_no_report_ever_lowers_the_quorums_position(
    positions: list[int], which: int, more: int
) -> None:
    members, which = len(positions), which % len(positions)
    grown = [*positions[:which], positions[which] + more, *positions[which + 1 :]]
    assert quorum_position(grown, members) >= quorum_position(positions, members)
