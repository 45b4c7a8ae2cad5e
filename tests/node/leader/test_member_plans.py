"""What an order changes, whichever configuration it meets; the order of seats decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import RefusedError
from quorate.node.leader.members.orders import Add, Demote, MemberOrder, Move, Promote, Remove
from quorate.node.leader.members.plans import plan
from quorate.node.protocol.membership import MemberRole, Membership, Seat, completed, promoted
from quorate.node.protocol.quorum import VoterId

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLES: tuple[MemberRole, ...] = (
    MemberRole.VOTER,
    MemberRole.STANDBY,
    MemberRole.WITNESS,
    MemberRole.SPARE,
)


def seat_of(member: int, **changes: object) -> Seat:
    seat = Seat(member, f"h{member}", 7000, 6000, instance=100 + member)
    return attrs.evolve(seat, **changes)  # type: ignore[arg-type] # fields of a seat


def cluster(*more: Seat) -> Membership:
    """Three voters, and further seats."""
    seats = (*map(seat_of, range(3)), *more)
    voters = tuple(VoterId(n, 100 + n) for n in range(3))
    return Membership(seats, voters, version=5, next_id=len(seats))


def adding(member: int, **changes: object) -> Add:
    """The order for a seat like that of a member."""
    return Add(attrs.evolve(seat_of(member, **changes), member_id=0, instance=0))


def outcome(now: Membership, order: MemberOrder) -> str:
    """Return the words of an order's plan, or the word of its refusal."""
    try:
        return plan(now, order).words
    except RefusedError as error:
        return str(error).partition(":")[0]


# --- a new seat ---


def test_an_order_may_name_the_id_of_a_new_member() -> None:
    planned = plan(cluster(), attrs.evolve(adding(7), member_id=7))
    assert planned.member == 7
    assert planned.after is not None
    assert planned.after.next_id == 8
    back = plan(planned.after, attrs.evolve(adding(5), member_id=5))
    assert back.member == 5
    assert back.after is not None
    assert back.after.next_id == 8


def test_a_named_id_that_has_a_seat_is_refused() -> None:
    assert outcome(cluster(), attrs.evolve(adding(7), member_id=2)) == "id"


# --- an order for a seat that is there ------------------------------------------------------------


def test_a_repeated_order_finds_its_seat_behind_that_of_another_one() -> None:
    """Member 3 replaces member 2 already, but the order is about member 4."""
    other, own = seat_of(3, replaces=2), seat_of(4, replaces=2)
    for seats in ((other, own), (own, other)):
        now = cluster(*(attrs.evolve(each, member_id=3 + i) for i, each in enumerate(seats)))
        for each in now.seats[3:]:
            again = plan(now, Add(attrs.evolve(each, member_id=0, instance=0)))
            assert (again.after, again.member) == (None, each.member_id)


def test_two_members_do_not_replace_one() -> None:
    now = cluster(seat_of(3, replaces=2), seat_of(4))
    assert outcome(now, adding(5, replaces=2)) == "in-flight"
    assert outcome(now, adding(4, replaces=2)) == "in-flight"


def test_a_seat_that_joins_may_replace_a_voter_after_all() -> None:
    planned = plan(cluster(seat_of(3)), adding(3, replaces=2))
    assert planned.after is not None
    assert planned.after.seats[3].replaces == 2
    assert planned.member == 3


def test_only_a_vote_can_be_taken_over() -> None:
    now = cluster(seat_of(3), seat_of(4, role=MemberRole.STANDBY))
    assert outcome(now, adding(3, replaces=4)) == "role"
    assert outcome(now, adding(5, replaces=4)) == "role"


def test_a_voter_that_has_its_seat_replaces_nobody() -> None:
    assert outcome(cluster(), adding(1, replaces=2)) == "address"


def test_an_order_to_replace_is_fulfilled_once_the_other_one_is_gone() -> None:
    now = completed(promoted(cluster(seat_of(3, replaces=2)), {3}))
    assert plan(now, adding(3, replaces=2)).after is None


# --- any order ------------------------------------------------------------------------------------


def moving(member: int, port: int) -> Move:
    return Move(member, {"member_port": port})


def more_of(kinds: Sequence[tuple[MemberRole, int | None]]) -> list[Seat]:
    return [
        seat_of(3 + i, role=role, replaces=replaces) for i, (role, replaces) in enumerate(kinds)
    ]


IDS = st.integers(0, 5)
ANY_ROLE = st.sampled_from(ROLES)
ORDERS: st.SearchStrategy[MemberOrder] = st.one_of(
    st.builds(adding, IDS, role=ANY_ROLE, replaces=st.none() | st.integers(0, 4)),
    st.builds(Promote, IDS, st.booleans()),
    st.builds(Demote, IDS),
    st.builds(Remove, IDS),
    st.builds(moving, IDS, st.sampled_from([7000, 7100])),
)
MORE = st.lists(st.tuples(ANY_ROLE, st.none() | st.integers(0, 2)), max_size=2).map(more_of)


@given(MORE, ORDERS)
def test_an_order_is_one_step_and_fulfilled_when_it_is_repeated(
    more: list[Seat], order: MemberOrder
) -> None:
    now = cluster(*more)
    refused = {"unknown-member", "removed", "role", "in-flight", "address"}
    if outcome(now, order) in refused:
        return
    planned = plan(now, order)
    if planned.after is None:
        return
    assert planned.after.version == now.version + 1
    assert planned.after.joint == ({*planned.after.voters} != {*now.voters})
    then = completed(planned.after) if planned.after.joint else planned.after
    again = plan(then, order)
    assert again.after is None
    assert again.member == planned.member


@pytest.mark.parametrize("order", [Promote(0), Demote(0), Remove(0)])
def test_an_order_for_another_version_is_refused(order: Promote | Demote | Remove) -> None:
    assert outcome(cluster(), attrs.evolve(order, if_version=4)) == "version"
    assert outcome(cluster(), attrs.evolve(order, if_version=5)) != "version"
