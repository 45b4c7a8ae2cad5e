"""Leaders leave unhealthy machines, and come back only to those that stay well."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from quorate.errors import KeyValueError, NoLeaderError, RefusedError
from quorate.keyvalue.protocol.resp import Reply
from quorate.keyvalue.slots.cluster_map import META, ClusterMap, encode_map
from quorate.partitions.balance import first_map
from quorate.partitions.groups import Group
from quorate.partitions.health import faults, lasting_faults, watch_health
from tests.support.partitions_world import machines


class Cluster:
    """Groups that only have leaders, and machines of which some are not heard.

    Attributes:
        map: as the metadata group has it.
        leaders: by partition.
        silent: machines that nobody hears.
        deaf: partitions that do not answer.
        behind: members, by partition and machine, that miss much of the log.
        slow: machines and seconds of a sync.
        transfers: that were asked for.
    """

    def __init__(self) -> None:
        self.map = first_map("orders", machines(3), 3, 3)
        self.leaders = {META: 0, 0: 0, 1: 1, 2: 2}
        self.silent: set[int] = set()
        self.deaf: set[int] = set()
        self.behind: set[tuple[int, int]] = set()
        self.slow: dict[int, float] = {}
        self.full: set[int] = set()
        self.refuses = False
        self.transfers: list[tuple[int, int]] = []

    def group(self, partition: int) -> Group:
        return Led(self, partition)

    def drain(self, machine: int, *, draining: bool) -> None:
        after = [
            msgspec.structs.replace(each, draining=draining and each.machine_id == machine)
            for each in self.map.machines
        ]
        self.map = msgspec.structs.replace(self.map, machines=tuple(after))

    def statuses(self) -> dict[int, Mapping[str, Any]]:
        return {partition: Led(self, partition).describe() for partition in self.leaders}


class Led:
    """A group with a leader."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self._cluster = cluster
        self._partition = partition

    async def execute(self, *words: bytes | str | float) -> Reply:
        await trio.sleep(0.001)
        if words[0] != "GET":
            raise KeyValueError(f"ERR {words[0]!r}")
        return encode_map(self._cluster.map)

    async def control(self, words: str) -> str:
        await trio.sleep(0.01)
        verb, member = words.split()
        if verb != "transfer":
            raise RefusedError(words)
        self._cluster.transfers.append((self._partition, int(member)))
        if self._cluster.refuses:
            raise RefusedError("it is behind")
        self._cluster.leaders[self._partition] = int(member)
        return "done"

    async def status(self) -> Mapping[str, Any]:
        await trio.sleep(0.001)
        if self._partition in self._cluster.deaf:
            raise NoLeaderError("no answer")
        return self.describe()

    def describe(self) -> Mapping[str, Any]:
        cluster, leader = self._cluster, self._cluster.leaders[self._partition]
        peers = [
            {
                "member_id": machine,
                "connected": machine not in cluster.silent,
                "append_position": 0 if (self._partition, machine) in cluster.behind else 9 << 20,
            }
            for machine in range(3)
            if machine != leader
        ]
        sync = {"p50": 0.001, "p99": cluster.slow.get(leader, 0.002)}
        return {
            "member_id": leader,
            "peers": peers,
            "append_position": 9 << 20,
            "disk_full": leader in cluster.full,
            "damage": "",
            "recent": {"quantiles": {"sync": sync}},
        }


@asynccontextmanager
async def watched() -> AsyncGenerator[Cluster]:
    cluster = Cluster()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_health, cluster)
        yield cluster
        nursery.cancel_scope.cancel()


async def test_a_cluster_that_is_well_is_left_alone(autojump_clock: object) -> None:
    async with watched() as cluster:
        await trio.sleep(100)
        assert cluster.transfers == []


async def test_leaders_go_to_the_preferred_machines(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.leaders = {META: 2, 0: 2, 1: 2, 2: 2}
        await trio.sleep(5)
        assert cluster.transfers == [(0, 0), (1, 1)]


async def test_leaders_leave_a_machine_that_drains_and_come_back(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.drain(0, draining=True)
        await trio.sleep(15)
        assert sorted(partition for partition, _ in cluster.transfers) == [META, 0]
        assert 0 not in cluster.leaders.values()
        cluster.drain(0, draining=False)
        await trio.sleep(15)
        assert cluster.leaders[0] == 0


async def test_a_full_disk_gets_leaders_back_after_it_was_well_for_a_while(
    autojump_clock: object,
) -> None:
    async with watched() as cluster:
        cluster.full = {1}
        await trio.sleep(10)
        assert cluster.leaders[1] != 1
        cluster.full = set()
        # While it leads nothing nobody says how its disk is: it is well.
        await trio.sleep(20)
        assert cluster.leaders[1] != 1
        await trio.sleep(25)
        assert cluster.leaders[1] == 1


async def test_each_relapse_doubles_the_rest(autojump_clock: object) -> None:
    """A disk that is bad whenever it is used gets a leader ever more rarely."""
    async with watched() as cluster:
        cluster.full = {1}
        await trio.sleep(500)
        first = len(cluster.transfers)
        assert first <= 10
        await trio.sleep(1500)
        assert len(cluster.transfers) - first <= 6


async def test_a_short_silence_moves_nothing(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.silent = {0}
        await trio.sleep(1.5)
        cluster.silent = set()
        await trio.sleep(100)
        assert cluster.transfers == []


async def test_nothing_happens_without_a_majority_of_answers(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.leaders[0], cluster.deaf = 1, {1, 2}
        await trio.sleep(100)
        assert cluster.transfers == []


async def test_no_leadership_goes_to_a_member_that_is_behind(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.leaders[0], cluster.behind = 1, {(0, 0)}
        await trio.sleep(30)
        assert cluster.transfers == []
        cluster.behind = set()
        await trio.sleep(5)
        assert cluster.transfers == [(0, 0)]


async def test_a_transfer_that_is_refused_is_tried_again_later(autojump_clock: object) -> None:
    async with watched() as cluster:
        cluster.leaders[0], cluster.refuses = 1, True
        await trio.sleep(60)
        assert 4 <= len(cluster.transfers) <= 7


def test_a_machine_that_most_leaders_do_not_hear_is_unhealthy() -> None:
    cluster = Cluster()
    cluster.silent = {2}
    cluster.leaders[2] = 0
    assert faults(cluster.map, cluster.statuses()) == {2: "it does not answer"}


def test_a_disk_that_is_far_slower_than_the_others_is_a_fault() -> None:
    cluster = Cluster()
    cluster.slow = {1: 0.5}
    assert faults(cluster.map, cluster.statuses()) == {1: "its disk takes 0.50 s for a sync"}
    cluster.slow = {0: 0.5, 1: 0.5, 2: 0.5}
    assert faults(cluster.map, cluster.statuses()) == {}


def test_too_few_answers_say_nothing() -> None:
    cluster = Cluster()
    few = {partition: status for partition, status in cluster.statuses().items() if partition < 1}
    assert faults(cluster.map, few) is None
    assert isinstance(cluster.map, ClusterMap)


async def test_a_plan_is_not_made_of_a_single_look(autojump_clock: object) -> None:
    cluster = Cluster()
    began = trio.current_time()
    assert await lasting_faults(cluster, cluster.map) == {}
    assert trio.current_time() - began < 0.1, "who is well need not be looked at again"
    cluster.silent = {1}
    assert await lasting_faults(cluster, cluster.map) == {1: "it does not answer"}

    async def hear_again() -> None:
        await trio.sleep(1.5)
        cluster.silent = {2}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear_again)
        assert await lasting_faults(cluster, cluster.map) == {}
    cluster.deaf = {0, 1}
    assert await lasting_faults(cluster, cluster.map) is None
