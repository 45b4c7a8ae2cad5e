"""Steps from one configuration to the next: any two that follow each other share a quorum."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import RefusedError, WireError
from quorate.node.protocol.membership import (
    MAX_PAYLOAD_BYTES,
    MAX_SEATS,
    MAX_VOTERS,
    UNKNOWN_STORE,
    MemberRole,
    Membership,
    Seat,
    check,
    completed,
    decode_membership_untrusted,
    encode_membership,
    named,
    promoted,
    with_seat,
    without_seat,
    without_vote,
)
from quorate.node.protocol.quorum import VoterId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.node.protocol.quorum import Quorums


def seat_of(member: int, *, role: MemberRole = MemberRole.VOTER, instance: int = 0) -> Seat:
    return Seat(member, f"h{member}", 7000, 6000, role=role, instance=instance)


def cluster(voters: int) -> Membership:
    """The configuration of founders, named with their stores."""
    seats = tuple(seat_of(n) for n in range(voters))
    first = Membership(seats, tuple(VoterId(n) for n in range(voters)), next_id=voters)
    return attrs.evolve(named(first, {n: 100 + n for n in range(voters)}), version=1)


def joined(now: Membership, *, replaces: int | None = None) -> Membership:
    """The configuration with one more member, which has claimed its seat."""
    member = now.next_id
    seat = attrs.evolve(seat_of(member, instance=100 + member), replaces=replaces)
    return with_seat(now, seat)


def meet(one: Quorums[VoterId], other: Quorums[VoterId]) -> bool:
    """Say whether each group that decides by one has a member in each that decides by the other."""
    everybody = sorted(one.voters | other.voters)
    groups = [
        frozenset(group)
        for count in range(1, len(everybody) + 1)
        for group in itertools.combinations(everybody, count)
    ]
    deciding = [group for group in groups if one.agree(group)]
    others = [group for group in groups if other.agree(group)]
    return all(group & rest for group in deciding for rest in others)


@st.composite
def histories(draw: st.DrawFn) -> list[Membership]:
    """Configurations, each one step behind the one before."""
    now = cluster(draw(st.integers(1, 4)))
    found = [now]
    for _ in range(draw(st.integers(1, 8))):
        now = completed(now) if now.joint else draw(st.sampled_from([*_steps(now)]))
        found.append(now)
    return found


def _steps(now: Membership) -> Iterator[Membership]:
    """Yield all that may come next."""
    voters = [voter.member_id for voter in now.voters]
    if len(now.seats) < 5:
        yield joined(now)
        yield joined(now, replaces=voters[0])
    # A wiped voter claims its seat anew.
    lost = now.seat(voters[0])
    if lost is not None and lost.instance < 1000:
        yield with_seat(now, attrs.evolve(lost, instance=lost.instance + 1000))
    joining = [seat.member_id for seat in now.joining]
    if joining:
        yield promoted(now, joining)
        yield promoted(now, joining[:1])
    for member in voters:
        if len(voters) > 1:
            yield without_vote(now, member, role=MemberRole.LEAVING)
            yield without_vote(now, member, role=MemberRole.STANDBY)
    for seat in now.seats:
        if not now.has_vote(seat.member_id):
            yield without_seat(now, seat.member_id)


@given(histories())
def test_consecutive_configurations_share_a_quorum(history: list[Membership]) -> None:
    for before, after in itertools.pairwise(history):
        assert after.version == before.version + 1
        assert len(after.quorums.sets) <= 2
        assert after.joint == (len(after.quorums.sets) == 2)
        assert meet(before.quorums, after.quorums)
        # Nobody votes twice, and everybody that votes after the change has a seat.
        assert len({voter.member_id for voter in after.voters}) == len(after.voters)
        assert {voter.member_id for voter in after.voters} <= {*after.ids}
        assert [*after.ids] == sorted(after.ids)
        assert all(member < after.next_id for member in after.ids)
        assert after.next_id >= before.next_id
        if after.joint:
            assert after.outgoing == before.voters
            assert {*after.ids} == {*before.ids}


@given(histories())
def test_an_entry_is_read_as_it_was_written(history: list[Membership]) -> None:
    for each in history:
        payload = encode_membership(each)
        assert decode_membership_untrusted(payload) == each
        assert len(payload) <= MAX_PAYLOAD_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = ("version", "next_id", "voters", "outgoing", "seats", "founders", "floor")


def decoded(payload: bytes) -> None:
    """Decode, and check that what is found can be used."""
    try:
        found = decode_membership_untrusted(payload)
    except WireError:
        return
    if found is not None:
        assert found.version
        assert found.quorums.voters
        assert all(voter.instance_id for voter in found.quorums.voters)
        assert {*found.voters} != {*found.outgoing}
        for voters in (found.voters, found.outgoing):
            members = [voter.member_id for voter in voters]
            assert len({*members}) == len(members)
            assert {*members} <= {*found.ids}
        assert decode_membership_untrusted(encode_membership(found)) == found


@settings(max_examples=40)
@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_configuration_or_a_wire_error(payload: bytes) -> None:
    decoded(payload)


IDS = st.integers(0, 4)
PAIRS = st.lists(
    st.tuples(IDS, st.sampled_from(["00000000000000aa", "00000000000000bb"])), max_size=5
)


@given(PAIRS, PAIRS, st.sets(IDS, max_size=4))
def test_any_sets_of_voters_count_each_member_once(
    voters: list[tuple[int, str]], outgoing: list[tuple[int, str]], seats: set[int]
) -> None:
    body = json.loads(encode_membership(joined(cluster(5))))
    seated = [seat for seat in body["seats"] if seat["member_id"] in seats]
    sets = {"voters": voters, "outgoing": outgoing, "seats": seated}
    decoded(json.dumps(body | sets).encode())


@given(st.sampled_from(FIELDS), JSON)
def test_a_field_of_any_kind_is_no_crash(field: str, value: object) -> None:
    body = json.loads(encode_membership(joined(cluster(3))))
    decoded(json.dumps(body | {field: value}).encode())


@given(st.sampled_from(sorted(attrs.fields_dict(Seat))), JSON)
def test_a_field_of_a_seat_of_any_kind_is_no_crash(field: str, value: object) -> None:
    body = json.loads(encode_membership(joined(cluster(3))))
    body["seats"][0][field] = value
    decoded(json.dumps(body).encode())


@pytest.mark.parametrize("store", ["0" * 16, "1", "0x00000000000000", "-000000000000001", "f" * 17])
def test_a_voter_without_a_proper_store_is_refused(store: str) -> None:
    body = json.loads(encode_membership(cluster(3)))
    body["voters"][0][1] = store
    with pytest.raises(WireError):
        decode_membership_untrusted(json.dumps(body).encode())


# --- single steps ---------------------------------------------------------------------------------


def test_the_first_change_names_all_stores() -> None:
    first = Membership(tuple(map(seat_of, range(3))), tuple(map(VoterId, range(3))), next_id=3)
    after = named(first, {0: 10, 1: 11})
    assert after.voters == (VoterId(0, 10), VoterId(1, 11), VoterId(2, UNKNOWN_STORE))
    # Nobody knows its store: it stays a voter that counts for nothing, until it claims its seat.
    assert [seat.member_id for seat in after.joining] == [2]
    assert named(cluster(3), {0: 77}) == cluster(3)


def test_a_joiner_takes_the_place_of_another_member_in_one_change() -> None:
    now = joined(cluster(3), replaces=2)
    joint = promoted(now, {3})
    assert [voter.member_id for voter in joint.voters] == [0, 1, 3]
    assert [voter.member_id for voter in joint.outgoing] == [0, 1, 2]
    final = completed(joint)
    assert final.ids == (0, 1, 3)
    assert final.is_removed(2)
    assert not final.is_removed(4)


def test_the_member_to_be_replaced_may_be_gone() -> None:
    now = joined(cluster(3), replaces=2)
    now = completed(without_vote(now, 2, role=MemberRole.LEAVING))
    final = completed(promoted(now, {3}))
    assert [voter.member_id for voter in final.voters] == [0, 1, 3]


def test_a_member_that_is_gone_is_not_to_be_replaced_any_more() -> None:
    now = joined(cluster(3), replaces=2)
    after = completed(without_vote(now, 2, role=MemberRole.LEAVING))
    assert [seat.replaces for seat in after.seats] == [None] * 3
    standby = with_seat(now, seat_of(4, role=MemberRole.STANDBY))
    other = with_seat(standby, attrs.evolve(seat_of(5), replaces=4))
    assert [seat.replaces for seat in without_seat(other, 4).seats] == [None, None, None, 2, None]


def test_the_member_to_be_replaced_may_be_a_standby_by_now() -> None:
    now = joined(cluster(3), replaces=2)
    now = completed(without_vote(now, 2, role=MemberRole.STANDBY))
    assert completed(promoted(now, {3})).ids == (0, 1, 3)


def test_a_joiner_that_is_to_be_replaced_leaves_although_it_is_ready() -> None:
    now = joined(cluster(1))
    now = joined(now, replaces=1)
    final = completed(promoted(now, {1, 2}))
    assert [voter.member_id for voter in final.voters] == [0, 2]
    assert final.ids == (0, 2)


def test_another_store_of_a_voter_is_another_voter() -> None:
    now = with_seat(cluster(3), seat_of(2, instance=999))
    assert [seat.member_id for seat in now.joining] == [2]
    joint = promoted(now, {2})
    assert VoterId(2, 999) in joint.voters
    assert VoterId(2, 102) in joint.outgoing
    # The live ones are a majority of both sets, and the lost store is none of them.
    assert joint.quorums.agree({VoterId(0, 100), VoterId(1, 101)})


def test_members_that_join_or_leave_may_stand() -> None:
    now = joined(cluster(3))
    assert now.may_stand(VoterId(3, 103))
    assert not now.may_stand(VoterId(3, 104))  # another store has the seat
    assert not now.may_stand(VoterId(4, 104))
    joint = without_vote(now, 2, role=MemberRole.LEAVING)
    assert joint.may_stand(VoterId(2, 102))
    assert not completed(joint).may_stand(VoterId(2, 102))
    standby = completed(without_vote(now, 2, role=MemberRole.STANDBY))
    assert not standby.may_stand(VoterId(2, 102))


def test_any_store_of_a_founder_may_stand_before_stores_are_named() -> None:
    first = Membership(tuple(map(seat_of, range(3))), tuple(map(VoterId, range(3))), next_id=3)
    assert first.may_stand(VoterId(1, 123))
    assert not first.may_stand(VoterId(3, 123))


# --- what is refused ------------------------------------------------------------------------------


def test_nine_voters_may_all_be_replaced_but_not_outnumbered() -> None:
    now = cluster(MAX_VOTERS)
    for member in range(MAX_VOTERS):
        now = joined(now, replaces=member)
        check(now)
    assert len(now.seats) == MAX_SEATS
    with pytest.raises(RefusedError, match=r"^too-many: "):
        check(joined(cluster(MAX_VOTERS)))
    standby = attrs.evolve(seat_of(MAX_SEATS, role=MemberRole.STANDBY))
    with pytest.raises(RefusedError, match=r"^too-many: "):
        check(with_seat(now, standby))


def test_a_standby_that_would_replace_a_voter_makes_no_room_for_another_one() -> None:
    now = cluster(MAX_VOTERS)
    standby = attrs.evolve(seat_of(now.next_id, role=MemberRole.STANDBY), replaces=0)
    with pytest.raises(RefusedError, match=r"^too-many: "):
        check(joined(with_seat(now, standby)))


def test_a_cluster_keeps_a_voter() -> None:
    with pytest.raises(RefusedError, match=r"^last-voter: "):
        check(without_vote(cluster(1), 0, role=MemberRole.STANDBY))


def test_two_members_have_no_port_in_common() -> None:
    taken = attrs.evolve(seat_of(3), host="h0", member_port=6000, client_port=5000)
    with pytest.raises(RefusedError, match=r"^address: h0:6000 is the address of member 0"):
        check(with_seat(cluster(3), taken))
