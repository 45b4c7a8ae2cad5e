"""The torture's members that come and go: where they run, and how their ends are judged."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.local.cluster import LocalCluster, MemberProcess
from quorate.local.member_list import Listed, decode_list_untrusted
from quorate.node.config.config import load_config
from quorate.torture.keeper import EX_REMOVED, Keeper
from quorate.torture.machines import Machines, Place
from quorate.torture.members import Members
from quorate.torture.picture import Expected, Picture

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node.config.config import NodeConfig

SECONDS = 25


class FakeProcess(MemberProcess):
    """A process that ends as a test says."""

    def __init__(self, config: NodeConfig, status: int | None = None) -> None:
        super().__init__(config)
        self.status = status
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return 1 if self.status is None else None

    @property
    def returncode(self) -> int | None:
        return self.status

    async def start(self) -> None:
        assert self.pid is None
        self.starts += 1
        self.status = None


def seat(member_id: int, place: Place, *, state: str = "voter") -> dict[str, object]:
    """One member as a leader lists it."""
    found: dict[str, object] = {
        "member_id": member_id,
        "role": "standby" if state == "standby" else "voter",
        "state": state,
        "instance": "00000000000000ab",
        "host": place.host,
        "live": True,
        "match": 0,
        "behind": 0,
    }
    return found | {
        "member_port": place.member_port,
        "client_port": place.client_port,
        "redirect_port": place.redirect_port,
    }


def listed_of(*seats: dict[str, object], next_id: int = 9, joint: bool = False) -> Listed:
    """The answer of a leader."""
    head = {"version": 3, "joint": joint, "next_id": next_id, "leader": 0, "term": 2}
    return decode_list_untrusted(json.dumps(head | {"members": seats}))


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, 4)


@pytest.fixture
def keeper(machines: Machines) -> Keeper:
    """Of three members that run."""
    cluster = LocalCluster(machines.founders(3))
    cluster.members[:] = [FakeProcess(each.config) for each in cluster.members]
    told: list[str] = []
    return Keeper(cluster, told.append, [])


# Machines ---------------------------------------------------------------------------------------


def test_a_member_comes_to_a_machine_without_one(machines: Machines) -> None:
    members = [MemberProcess(config) for config in machines.founders(3)]
    assert [machines.of(each).machine for each in members] == [0, 1, 2]
    place = machines.choose(random.Random(1), members)
    assert place is not None
    assert place.machine == 3


def test_no_member_comes_if_all_machines_have_one(tmp_path: Path) -> None:
    machines = Machines(tmp_path, 3)
    members = [MemberProcess(config) for config in machines.founders(3)]
    assert machines.choose(random.Random(1), members) is None


def test_a_joiner_gets_a_file_with_itself_and_the_members(machines: Machines) -> None:
    members = [MemberProcess(config) for config in machines.founders(3)]
    place = machines.choose(random.Random(1), members)
    assert place is not None
    seats = [seat(each.member_id, machines.of(each)) for each in members]
    joiner = machines.join(listed_of(*seats, seat(5, place, state="joining")), 5)
    config = load_config(joiner.config.directory / "node.toml")
    assert config.join
    assert [each.member_id for each in config.members] == [0, 1, 2, 5]
    assert machines.of(joiner) == place
    assert config.etcd.port == place.etcd_port


def test_a_witness_serves_no_clients_of_etcd(machines: Machines) -> None:
    members = [MemberProcess(config) for config in machines.founders(3)]
    place = machines.choose(random.Random(1), members)
    assert place is not None
    assert [each.config.etcd.port for each in members] == [
        machines.of(each).etcd_port for each in members
    ]
    seats = [seat(each.member_id, machines.of(each)) for each in members]
    witness = seat(5, place, state="joining") | {"role": "witness"}
    assert machines.join(listed_of(*seats, witness), 5).config.etcd.port == 0


def test_a_member_moves_to_other_ports_of_its_machine(machines: Machines) -> None:
    member, *_ = [MemberProcess(config) for config in machines.founders(3)]
    before = machines.of(member)
    place = machines.neighbour(random.Random(1), member)
    assert place is not None
    assert (place.machine, place.client_port) != (0, before.client_port)
    assert place.machine == before.machine
    machines.move(member, place)
    assert machines.of(member) == place
    moved = load_config(member.config.directory / "node.toml")
    assert (moved.own.member_port, moved.etcd.port) == (place.member_port, place.etcd_port)


def test_no_file_gets_an_address_twice(machines: Machines) -> None:
    """The other entries of a file may have addresses of members that were here before."""
    member, *_ = [MemberProcess(config) for config in machines.founders(3)]
    place = machines.neighbour(random.Random(1), member)
    assert place is not None
    others = (
        attrs.evolve(
            each,
            client_port=place.client_port,
            member_port=place.member_port,
            redirect_port=place.redirect_port,
        )
        if each.member_id == 1
        else each
        for each in member.config.members
    )
    member.config = attrs.evolve(member.config, members=tuple(others))
    for seed in range(10):
        chosen = machines.neighbour(random.Random(seed), member)
        assert chosen is not None
        assert chosen not in {place, machines.of(member)}


def test_a_member_that_loses_its_disk_begins_without_a_vote(machines: Machines) -> None:
    first, second, _ = [MemberProcess(config) for config in machines.founders(3)]
    (first.config.directory / "log").mkdir()
    first.log.touch()
    seats = [seat(each.member_id, machines.of(each)) for each in (first, second)]
    machines.wipe(first, listed_of(*seats))
    assert {each.name for each in first.config.directory.iterdir()} == {"node.toml", "member.log"}
    assert first.config.join
    assert first.config.etcd.port == machines.of(first).etcd_port
    lost = first.config.directory.with_name("lost-0-3")
    assert {each.name for each in lost.iterdir()} == {"node.toml", "log"}


# Ends -------------------------------------------------------------------------------------------


async def test_a_removed_member_may_end(keeper: Keeper) -> None:
    process = keeper.cluster.members[1]
    assert isinstance(process, FakeProcess)
    keeper.leaving.add(1)
    process.status = EX_REMOVED
    await keeper.look_after()
    assert keeper.violations == []
    assert keeper.former == [process]
    assert process not in keeper.cluster.members
    await keeper.start(process)
    assert process.starts == 0


@pytest.mark.parametrize("status", [EX_REMOVED, -9, 1, 0])
async def test_no_other_member_may_end(keeper: Keeper, status: int) -> None:
    process = keeper.cluster.members[1]
    assert isinstance(process, FakeProcess)
    process.log.write_text("first\nlast\n")
    process.status = status
    await keeper.look_after()
    (violation,) = keeper.violations
    assert violation == f"member 1 ended by itself with {status}: first / last"
    assert process.starts == 1


async def test_a_member_that_a_fault_keeps_down_is_not_started(keeper: Keeper) -> None:
    process = keeper.cluster.members[1]
    assert isinstance(process, FakeProcess)
    keeper.hold(process)
    process.status = -9
    await keeper.look_after()
    await keeper.start(process)
    assert process.starts == 0
    await keeper.release(process)
    await keeper.look_after()
    assert (process.starts, keeper.violations, keeper.is_held(1)) == (1, [], False)


async def test_a_member_that_two_faults_keep_down_waits_for_both(keeper: Keeper) -> None:
    process = keeper.cluster.members[1]
    assert isinstance(process, FakeProcess)
    keeper.hold(process)
    keeper.hold(process)
    process.status = -9
    await keeper.release(process)
    await keeper.look_after()
    assert (process.starts, keeper.violations) == (0, [])
    await keeper.release(process)
    assert process.starts == 1


async def test_a_full_disk_may_end_a_member(keeper: Keeper) -> None:
    process = keeper.cluster.members[2]
    assert isinstance(process, FakeProcess)
    process.status = os.EX_IOERR
    keeper.full[2] = trio.current_time()
    await keeper.look_after()
    assert (process.starts, keeper.violations) == (1, [])


async def test_a_disk_that_was_full_long_ago_is_no_excuse(keeper: Keeper) -> None:
    process = keeper.cluster.members[2]
    assert isinstance(process, FakeProcess)
    process.log.touch()
    process.status = os.EX_IOERR
    keeper.full[2] = trio.current_time() - 60
    await keeper.look_after()
    assert keeper.violations == [f"member 2 ended by itself with {os.EX_IOERR}: "]


# The picture ------------------------------------------------------------------------------------


class FakePicture(Picture):
    """Sees what a test lists."""

    listed: Listed | None = None

    async def _committed(self) -> Listed | None:
        return self.listed


@pytest.fixture
def picture(keeper: Keeper, machines: Machines) -> FakePicture:
    return FakePicture(keeper, machines)


def seats_of(picture: Picture, *members: int) -> list[dict[str, object]]:
    processes = filter(None, map(picture.keeper.find, members))
    return [seat(each.member_id, picture.machines.of(each)) for each in processes]


async def test_a_removed_member_that_is_dead_is_started_to_hear_it(picture: FakePicture) -> None:
    picture.listed = listed_of(*seats_of(picture, 0, 1))
    picture.keeper.leaving.add(2)
    process = picture.keeper.find(2)
    assert isinstance(process, FakeProcess)
    picture.keeper.hold(process)
    process.status = -9
    listed = await picture.look()
    assert (process.starts, picture.keeper.violations) == (1, [])
    assert picture.unsettled(listed) == "member 2 was removed, and has not ended"
    process.status = EX_REMOVED
    await picture.keeper.look_after()
    assert picture.unsettled(listed) == ""


async def test_a_seat_that_is_lost_without_an_order_is_a_violation(picture: FakePicture) -> None:
    picture.listed = listed_of(*seats_of(picture, 0, 1))
    await picture.look()
    await picture.look()
    assert picture.keeper.violations == ["member 2 has lost its seat, and nobody asked for that"]


async def test_a_member_that_was_added_since_is_not_removed(picture: FakePicture) -> None:
    picture.listed = listed_of(*seats_of(picture, 0, 1), next_id=2)
    await picture.look()
    assert picture.keeper.violations == []


async def test_an_order_is_completed_when_a_list_shows_it(picture: FakePicture) -> None:
    def is_gone(listed: Listed) -> bool:
        return listed.member(2) is None

    picture.expected.append(Expected("remove voter", "remove 2", is_gone))
    picture.keeper.leaving.add(2)
    picture.listed = listed_of(*seats_of(picture, 0, 1, 2))
    await picture.look()
    assert not picture.completed
    picture.listed = listed_of(*seats_of(picture, 0, 1))
    await picture.look()
    await picture.look()
    assert picture.completed == {"remove voter": 1}
    assert picture.expected == []


# Orders -----------------------------------------------------------------------------------------


class SlowToDie(FakeProcess):
    """A process on a busy machine: a signal ends it a second later."""

    async def wait(self) -> int:
        await trio.sleep(1)
        self.status = -9
        return -9


async def test_a_member_killed_in_a_change_is_dead_before_it_is_released(
    picture: FakePicture, autojump_clock: MockClock
) -> None:
    processes = [SlowToDie(each.config) for each in picture.keeper.cluster.members]
    picture.keeper.cluster.members[:] = processes
    members = Members(picture, random.Random(1), print)
    await getattr(members, "_kill_near")(processes[0])  # noqa: B009 - its strikes need real logs
    await picture.keeper.look_after()
    assert members.killed == sum(each.starts for each in processes) > 0
    assert picture.keeper.violations == []


def test_no_member_that_is_being_replaced_loses_its_disk(picture: FakePicture) -> None:
    seats = seats_of(picture, 0, 1, 2)
    place = picture.machines.choose(random.Random(1), picture.keeper.cluster.members)
    assert place is not None
    joiner = seat(5, place, state="joining") | {"replaces": 1}
    members = Members(picture, random.Random(1), print)
    ways = getattr(members, "_ways")(listed_of(*seats, joiner))  # noqa: B009 - as above
    (losers,) = [way.subjects for way in ways if way.act.__name__ == "_lose_disk"]
    assert [each.member_id for each in losers] == [0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "joining", "waits": "behind"}, "member 1 is joining, and waits: behind"),
        ({"live": False}, "member 1 is voter, and waits: it is not live"),
        ({"instance": "0" * 16}, "member 1 is voter, and waits: it has no store"),
    ],
)
async def test_a_member_that_is_not_ready_is_not_settled(
    picture: FakePicture, change: dict[str, object], words: str
) -> None:
    first, second, third = seats_of(picture, 0, 1, 2)
    assert picture.unsettled(listed_of(first, second | change, third)) == words


def test_a_cluster_in_a_change_is_not_settled(picture: FakePicture) -> None:
    assert picture.unsettled(None) == "no leader lists committed members"
    listed = listed_of(*seats_of(picture, 0, 1, 2), joint=True)
    assert picture.unsettled(listed) == "version 3 of the configuration is joint"


# All of it --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_members_come_and_go_under_faults_and_keep_every_promise() -> None:
    options = ["--seconds", str(SECONDS), "--kills", "1", "--seed", "1", "--json"]
    options += ["--faults", "members,kill"]
    ended = subprocess.run(
        [sys.executable, "-m", "quorate", "torture", *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(ended.stdout)
    assert told["violations"] == []
    assert (told["ok"], ended.returncode) == (True, 0)
    assert sum(told["changes"].values()) > 0
    assert told["version"] > 0
