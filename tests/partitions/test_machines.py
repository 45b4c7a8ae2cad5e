"""A machine drains, loses its members, and is forgotten."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import ConfigurationError, UsageError
from quorate.keyvalue.slots.cluster_map import (
    META,
    ClusterMap,
    Machine,
    decode_map_untrusted,
    encode_map,
)
from quorate.node.leader.members.orders import Add, Remove, parse_member_order_untrusted
from quorate.partitions.balance import differences, first_map, rebalanced
from quorate.partitions.director import Director
from quorate.partitions.groups import Group
from quorate.partitions.machines import drained, forgotten, groups_on, names_of, undrained
from quorate.partitions.metadata import change
from quorate.partitions.replicas import MemberList
from tests.support.partitions_world import Link, LinkedGroup, World, machines, opened


def founded(there: list[Machine], partitions: int = 6) -> ClusterMap:
    """A founded cluster on the first three of some machines."""
    first = first_map("orders", there[:3], partitions, 3)
    return msgspec.structs.replace(
        first,
        machines=tuple(there),
        partitions=tuple(
            msgspec.structs.replace(each, members=each.replicas) for each in first.partitions
        ),
        metadata_members=first.metadata,
    )


def settled(cluster_map: ClusterMap) -> ClusterMap:
    """The map, once each group has the members that it is to have."""
    return msgspec.structs.replace(
        cluster_map,
        partitions=tuple(
            msgspec.structs.replace(each, members=each.replicas) for each in cluster_map.partitions
        ),
        metadata_members=cluster_map.metadata,
    )


def lists_of(cluster_map: ClusterMap) -> dict[int, MemberList]:
    """What the leaders of all groups say, where all have the members of the map."""
    return {
        number: seated(list(cluster_map.present_in(number)))
        for number in range(META, len(cluster_map.partitions))
    }


def seated(voters: list[int], leader: int | None = None, joining: tuple[int, ...] = ()) -> Any:
    states = dict.fromkeys(joining, "joining") | dict.fromkeys(voters, "voter")
    members = [
        {"member_id": member, "role": "voter", "state": state, "live": True}
        for member, state in sorted(states.items())
    ]
    found = {"leader": voters[0] if leader is None else leader, "joint": False, "members": members}
    return msgspec.convert(found, MemberList)


def test_a_machine_that_drains_leads_nothing_and_another_one_has_its_replicas() -> None:
    before = founded(machines(4))
    after = decode_map_untrusted(encode_map(drained(before, 1, range(4))))
    assert groups_on(after, 1) == []
    assert {each.replicas for each in after.partitions} == {(0, 2, 3)}
    assert after.metadata == (0, 2, 3)
    assert 1 not in {each.preferred for each in after.partitions}
    # What does not concern the machine stays.
    stays = [each.preferred for each in before.partitions if each.preferred != 1]
    now = [each.preferred for each in after.partitions]
    assert [one for one, was in zip(now, before.partitions, strict=True) if was.preferred != 1] == (
        stays
    )
    assert differences(before, after)[0] == "machine 1: drains"
    assert drained(after, 1, range(4)) == after


def test_replicas_stay_where_every_other_machine_has_one() -> None:
    before = founded(machines(3))
    after = drained(before, 1, range(3))
    assert groups_on(after, 1) == [META, *range(6)]
    assert 1 not in {each.preferred for each in after.partitions}
    # One that is not well gets none either.
    assert groups_on(drained(founded(machines(4)), 1, {0, 1, 2}), 1) == [META, *range(6)]


@given(st.integers(4, 8), st.integers(0, 3), st.data())
def test_a_drained_machine_can_be_forgotten_once_its_members_are_elsewhere(
    count: int, racks: int, data: st.DataObject
) -> None:
    before = settled(rebalanced(founded(machines(count, racks)), range(count)))
    gone = data.draw(st.integers(0, count - 1))
    after = settled(drained(before, gone, range(count)))
    assert all(len(each.replicas) == 3 for each in after.partitions)
    left = forgotten(after, gone, lists_of(after))
    assert decode_map_untrusted(encode_map(left)).machine(gone) is None
    assert differences(after, left) == [f"machine {gone}: forgotten"]


def test_the_last_machine_does_not_drain() -> None:
    one_left = founded([msgspec.structs.replace(each, draining=True) for each in machines(3)])
    one_left = undrained(one_left, 2)
    with pytest.raises(ConfigurationError, match="machine 2: all other machines drain already"):
        drained(one_left, 2, range(3))


def test_a_machine_that_stays_after_all_may_have_replicas_again() -> None:
    before = drained(founded(machines(4)), 1, range(4))
    after = undrained(before, 1)
    assert differences(before, after) == ["machine 1: stays"]
    assert groups_on(rebalanced(settled(after), range(4)), 1)


@pytest.mark.parametrize("machine", [-1, 4])
def test_a_machine_that_is_not_there_is_named(machine: int) -> None:
    before = founded(machines(4))
    said = f"machine {machine}: expected one of 0, 1, 2, 3"
    with pytest.raises(UsageError, match=said):
        drained(before, machine, range(4))
    with pytest.raises(UsageError, match=said):
        undrained(before, machine)
    with pytest.raises(UsageError, match=said):
        forgotten(before, machine, {})


def test_a_machine_with_members_is_not_forgotten() -> None:
    before = founded(machines(4), partitions=2)
    with pytest.raises(
        ConfigurationError,
        match=r"members of the metadata group and partitions 0, 1: .* quorate machine drain 1",
    ):
        forgotten(before, 1, lists_of(before))
    # By the map they are still there, or only by what a group says.
    after = drained(before, 1, range(4))
    with pytest.raises(ConfigurationError, match="machine 1 still has members of the metadata gr"):
        forgotten(after, 1, lists_of(after))
    after = settled(after)
    late = lists_of(after) | {0: seated([0, 2, 3], joining=(1,))}
    with pytest.raises(ConfigurationError, match="machine 1 still has members of partition 0: exp"):
        forgotten(after, 1, late)
    silent = lists_of(after)
    del silent[1]
    with pytest.raises(ConfigurationError, match="partition 1: no leader says which members it ha"):
        forgotten(after, 1, silent)


def test_groups_have_names_for_people() -> None:
    assert names_of([META]) == "the metadata group"
    assert names_of([2]) == "partition 2"
    assert names_of([3, META, 1]) == "the metadata group and partitions 1, 3"


# --- in virtual time


class Seats:
    """Who is a member of a group. One that joins is a voter some seconds later."""

    def __init__(self, world: World, voters: tuple[int, ...], leader: int) -> None:
        self._world = world
        self.voters, self.leader = {*voters}, leader
        self.joining: dict[int, int | None] = {}
        self.done: list[str] = []

    async def ask(self, words: str) -> str:
        await trio.sleep(0.01)
        if words == "member list":
            now = seated(sorted(self.voters), self.leader, tuple(self.joining))
            return msgspec.json.encode(now).decode()
        self.done.append(words.split(" host=", maxsplit=1)[0])
        if words.startswith("transfer "):
            self.leader = int(words.split()[1])
            return "done"
        match parse_member_order_untrusted(words.split()[1:]):
            case Add(member_id=int(member), seat=seat):
                self.joining[member] = seat.replaces
                self._world.nursery.start_soon(self._join, member)
            case Remove(member_id=member):
                self._leave(member)
            case order:
                raise AssertionError(order)
        return "done"

    async def _join(self, member: int) -> None:
        await trio.sleep(3)
        self.voters.add(member)
        self._leave(self.joining.pop(member))

    def _leave(self, member: int | None) -> None:
        assert member != self.leader, "its group would have to elect"
        self.voters.discard(-1 if member is None else member)

    def status(self) -> dict[str, Any]:
        peers = [
            {"member_id": each, "connected": True, "append_position": 0}
            for each in (self.voters | self.joining.keys()) - {self.leader}
        ]
        return {"member_id": self.leader, "append_position": 0, "peers": peers}


class SeatedGroup(LinkedGroup):
    def __init__(self, link: Link, partition: int, seats: Seats) -> None:
        super().__init__(link, partition)
        self._seats = seats

    async def control(self, words: str) -> str:
        return await self._seats.ask(words)

    async def status(self) -> dict[str, Any]:
        return self._seats.status()


class SeatedGroups(Link):
    """The groups of a world, with members."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        now = world.map()
        leaders = {each.partition: each.preferred for each in now.partitions}
        self.seats = {
            number: Seats(world, now.replicas_of(number), leaders.get(number, 1))
            for number in range(META, len(now.partitions))
        }

    def group(self, partition: int) -> Group:
        return SeatedGroup(self, partition, self.seats[partition])


async def test_leaders_leave_a_machine_that_drains_before_members_do_and_then_it_is_empty(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = msgspec.structs.replace(
        first_map("orders", machines(3), 2, 3), machines=tuple(machines(4))
    )
    async with opened(tmp_path, 2, first=first) as world:
        groups = SeatedGroups(world)
        meta = groups.group(META)
        world.nursery.start_soon(Director(groups, random.Random(1)).run)
        await trio.sleep(20)
        assert world.map().is_founded(0)
        led = [number for number, each in groups.seats.items() if each.leader == 1]
        assert led == [META, 1]

        await change(meta, lambda now: drained(now, 1, range(4)))
        await trio.sleep(60)

        for number, seats in groups.seats.items():
            assert seats.voters == {0, 2, 3}
            kinds = [each.split()[0] for each in seats.done]
            # Never away from a leader that would only have to leave, too.
            assert kinds == (["transfer", "member"] if number in led else ["member"]), seats.done
        now = world.map()
        lists = {number: seated(sorted(each.voters)) for number, each in groups.seats.items()}
        after = await change(meta, lambda now: forgotten(now, 1, lists))
        assert [each.machine_id for each in after.machines] == [0, 2, 3]
        assert after.epoch == now.epoch + 1
