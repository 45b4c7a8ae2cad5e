"""The members of a group become those that the map says, one step after the other."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.slots.cluster_map import META, ClusterMap
from quorate.node.leader.members.orders import Add, Remove, parse_member_order_untrusted
from quorate.partitions.balance import first_map
from quorate.partitions.groups import Group
from quorate.partitions.replicas import MemberList, ask_members, next_order, with_members
from tests.support.partitions_world import machines

FIRST = first_map("orders", machines(6), 2, 3)


def with_replicas(*replicas: int) -> ClusterMap:
    after = msgspec.structs.replace(FIRST.partitions[0], replicas=replicas, preferred=replicas[0])
    return msgspec.structs.replace(FIRST, partitions=(after, FIRST.partitions[1]))


def members(
    joining: Iterable[int] = (), voters: Iterable[int] = (0, 1, 2), *, joint: bool = False
) -> MemberList:
    """Return a list of members, of which the first voter leads."""
    states = dict.fromkeys(joining, "joining") | dict.fromkeys(voters, "voter")
    listed = [
        {"member_id": member, "role": "voter", "state": state, "live": True}
        for member, state in sorted(states.items())
    ]
    return msgspec.convert({"leader": min(voters), "joint": joint, "members": listed}, MemberList)


def test_members_that_are_as_wanted_stay() -> None:
    assert next_order(FIRST, 0, members()) is None


def test_a_new_machine_takes_the_place_of_one_that_goes() -> None:
    order = next_order(with_replicas(0, 1, 4), 0, members()) or ""
    parsed = parse_member_order_untrusted(order.split()[1:])
    assert isinstance(parsed, Add)
    assert parsed.member_id == 4
    assert order == "member add host=10.0.0.4 member_port=8001 client_port=7001 replaces=2 id=4"


def test_nothing_is_removed_while_a_member_joins() -> None:
    assert next_order(with_replicas(0, 1, 4), 0, members([4])) is None


def test_nothing_is_asked_for_while_the_voters_change() -> None:
    assert next_order(with_replicas(0, 1, 4), 0, members(joint=True)) is None


def test_each_new_machine_takes_the_place_of_another_one() -> None:
    wanted = with_replicas(0, 4, 5)
    assert (next_order(wanted, 0, members()) or "").endswith("replaces=1 id=4")
    one = members([4])
    assert (next_order(wanted, 0, one) or "").endswith("replaces=2 id=5")


def test_more_replicas_are_all_added_before_they_join() -> None:
    wanted = with_replicas(0, 1, 2, 4, 5)
    assert (next_order(wanted, 0, members()) or "").endswith("client_port=7001 id=4")
    one = members([4])
    assert (next_order(wanted, 0, one) or "").endswith("client_port=7001 id=5")


def test_fewer_replicas_go_one_by_one_and_the_leader_last() -> None:
    five = members(voters=[0, 1, 2, 4, 5])
    assert next_order(with_replicas(1, 2, 4), 0, five) == "member remove 5"
    four = members(voters=[0, 1, 2, 4])
    assert next_order(with_replicas(1, 2, 4), 0, four) == "member remove 0"


def test_one_that_was_to_join_and_is_not_wanted_any_more_goes_first() -> None:
    assert next_order(FIRST, 0, members([5])) == "member remove 5"


def test_the_metadata_group_has_members_like_any_other() -> None:
    wanted = msgspec.structs.replace(FIRST, metadata=(0, 1, 5))
    order = next_order(wanted, META, members()) or ""
    assert order.startswith("member add host=10.0.0.5 member_port=8000 client_port=7000 ")


def test_a_leader_whose_machine_drains_hands_over_before_a_member_takes_its_place() -> None:
    wanted = with_replicas(1, 2, 4)
    drains = msgspec.structs.replace(
        wanted,
        machines=tuple(
            msgspec.structs.replace(each, draining=each.machine_id == 0) for each in wanted.machines
        ),
    )
    assert next_order(drains, 0, members()) is None
    led_elsewhere = msgspec.structs.replace(members(), leader=2)
    assert (next_order(drains, 0, led_elsewhere) or "").endswith("replaces=0 id=4")
    # Nobody can take over from the only one.
    assert (next_order(drains, 0, members(voters=[0])) or "").endswith("replaces=0 id=1")


@given(st.sets(st.integers(0, 5), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_any_members_become_any_others(before: set[int], wanted: set[int]) -> None:
    """The steps end, and there are never fewer voters than before and after."""
    cluster_map = with_replicas(*sorted(wanted))
    voters, joining = set(before), dict[int, int | None]()
    fewest = min(len(before), len(wanted))
    for _ in range(40):
        order = next_order(cluster_map, 0, members(joining, voters))
        if order is None:
            if not joining:
                break
            for member, replaced in joining.items():
                voters.add(member)
                voters.discard(-1 if replaced is None else replaced)
            joining.clear()
        else:
            parsed = parse_member_order_untrusted(order.split()[1:])
            if isinstance(parsed, Add):
                assert parsed.member_id is not None
                joining[parsed.member_id] = parsed.seat.replaces
            else:
                assert isinstance(parsed, Remove)
                voters.discard(parsed.member_id)
        assert len(voters) >= fewest
    assert voters == wanted


@pytest.mark.parametrize("partition", [META, 0, 1])
def test_every_group_of_a_new_cluster_is_as_the_map_says(partition: int) -> None:
    there = members(voters=FIRST.replicas_of(partition))
    assert next_order(FIRST, partition, there) is None


def test_the_map_has_the_members_that_groups_say_to_have() -> None:
    assert not FIRST.is_founded(0)
    said = with_members(FIRST, {META: members(), 0: members([5], [0, 1, 4])})
    assert said is not None
    assert (said.metadata_members, said.partitions[0].members) == ((0, 1, 2), (0, 1, 4))
    assert said.is_founded(0)
    assert not said.is_founded(1)
    # They are looked for there, and where they are to be.
    assert said.members_of(0) == (0, 1, 2, 4)
    assert said.present_in(0) == (0, 1, 4)
    assert with_members(said, {META: members(), 0: members(voters=[0, 1, 4])}) is None
    assert with_members(said, {0: members(voters=[77])}) is None  # no machine of the map


class Young:
    """A group with a leader, whose state machine has no slots yet."""

    def __init__(self) -> None:
        self.founded = False

    async def execute(self, *words: object) -> bytes:
        assert words[:2] == ("QUORATE.SLOTS", "STATE")
        return msgspec.json.encode({"founded": self.founded})

    async def control(self, words: str) -> str:
        assert words == "member list"
        return msgspec.json.encode(members()).decode()

    async def status(self) -> dict[str, object]:
        return {}


class YoungGroups:
    def __init__(self, young: Young) -> None:
        self._young = young

    def group(self, partition: int) -> Group:
        return self._young


async def test_members_are_not_noted_before_the_first_slots() -> None:
    # Noted earlier, the group would pass for one that has lost its slots, and never get any.
    young, lists = Young(), dict[int, MemberList]()
    await ask_members(YoungGroups(young), 0, lists)
    assert not lists
    young.founded = True
    await ask_members(YoungGroups(young), 0, lists)
    assert set(lists) == {0}
