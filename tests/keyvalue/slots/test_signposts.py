"""Where a member sends clients: by its log, the map, and the boards of its machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs
import msgspec
import pytest
import trio
import trio.testing

from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Partition, encode_map
from quorate.keyvalue.slots.folder import MAP_FILE, Notice, board_file, replace_file
from quorate.keyvalue.slots.hashing import SLOTS
from quorate.keyvalue.slots.notices import RETRY_SECONDS, Notices
from quorate.keyvalue.slots.signposts import FRESH_SECONDS, NOT_SERVED, Signposts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MACHINES = tuple(Machine(n, f"10.0.0.{n}", 7000, 8000, tls_port=9000 * (n < 2)) for n in range(3))
LOW, HIGH = 100, 9000
"""A slot of each of two partitions."""


def two_partitions(epoch: int, *slots: str) -> ClusterMap:
    """Return a map of partitions on three machines, partition n preferably led by machine n."""
    partitions = tuple(
        Partition(n, (0, 1, 2), preferred=n, founders=(0, 1, 2), slots=text)
        for n, text in enumerate(slots)
    )
    return ClusterMap("orders", epoch, MACHINES, partitions, metadata=(0, 1, 2))


def halves(epoch: int) -> ClusterMap:
    """Return a map of two partitions with half of the slots each."""
    return two_partitions(epoch, "0-8191", "8192-16383")


HALVES = halves(1)


@attrs.define
class Fake:
    """What partition 0 owns."""

    states: bytearray = attrs.field(factory=lambda: bytearray(b"\1" * 8192 + bytes(8192)))
    version: int = 0
    went: dict[int, int] = attrs.field(factory=dict[int, int])

    def went_to(self, slot: int) -> int | None:
        return self.went.get(slot)

    def listen(self, listener: Callable[[], None]) -> None:
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        return {}


@attrs.define
class World:
    """The signposts of a member of partition 0, whose clock goes on by itself."""

    machine: Path
    owned: Fake = attrs.field(factory=Fake)
    now: float = 0.0
    posts: Signposts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.posts = Signposts(self.machine, 0, self.owned, clock=lambda: self.now)

    def write(self, cluster_map: ClusterMap) -> None:
        replace_file(self.machine / MAP_FILE, encode_map(cluster_map))
        self.now += 1

    def note(self, partition: int, leader: int | None) -> None:
        notice = msgspec.json.encode(Notice(leader, 7))
        replace_file(board_file(self.machine, partition), notice)
        self.now += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_a_map_only_what_is_owned_is_known(world: World) -> None:
    assert world.posts.map is None
    assert world.posts.owner(LOW) == 0
    assert world.posts.owner(HIGH) == -1
    assert world.posts.moved(HIGH) == NOT_SERVED
    assert world.posts.ranges() == {0: [(0, 8191)]}


def test_a_client_is_sent_to_the_noted_leader_or_where_it_is_meant_to_be(world: World) -> None:
    world.write(HALVES)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"
    world.note(1, 2)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.2:7002\r\n"
    assert b"no port for clients with TLS" in world.posts.moved(HIGH, tls=True)
    for unknown in (None, 17):
        world.note(1, unknown)
        assert world.posts.moved(HIGH, tls=True) == b"-MOVED 9000 10.0.0.1:9002\r\n"
    board_file(world.machine, 1).write_bytes(b"{")
    world.now += 1
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"


def test_a_notice_that_is_taken_back_is_believed_no_more(world: World) -> None:
    world.write(HALVES)
    world.note(1, 2)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.2:7002\r\n"
    board_file(world.machine, 1).unlink()
    world.now += 1
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"
    world.note(1, 2)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.2:7002\r\n"


def test_a_client_is_sent_to_members_that_are_there(world: World) -> None:
    """The replicas are to be elsewhere, and their machines have no members yet."""
    there = msgspec.structs.replace(HALVES.partitions[1], members=(0, 2))
    world.write(msgspec.structs.replace(HALVES, partitions=(HALVES.partitions[0], there)))
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.0:7002\r\n"


def test_without_a_notice_a_machine_that_is_cut_off_is_passed_over(world: World) -> None:
    world.write(HALVES)
    world.posts.reaches = lambda machine: machine == 2
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.2:7002\r\n"
    world.posts.reaches = lambda machine: machine > 2
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"


def test_while_there_is_no_leader_clients_wait_at_the_member_of_this_machine(world: World) -> None:
    """The leader that was preferred may be the one that has died."""
    world.posts = Signposts(world.machine, 0, world.owned, machine_id=2, clock=lambda: world.now)
    world.write(HALVES)
    world.note(1, 1)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"
    world.note(1, None)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.2:7002\r\n"
    assert world.posts.noticed(1) is None


def test_without_a_notice_no_member_of_this_machine_runs(world: World) -> None:
    world.posts = Signposts(world.machine, 0, world.owned, machine_id=1, clock=lambda: world.now)
    world.write(HALVES)
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.0:7002\r\n"
    world.posts.reaches = lambda machine: machine == 1
    assert world.posts.moved(HIGH) == b"-MOVED 9000 10.0.0.1:7002\r\n"


def test_a_map_never_gets_older(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write(halves(5))
    assert world.posts.map == halves(5)
    world.write(HALVES)
    assert world.posts.map == halves(5)
    with caplog.at_level(logging.WARNING):
        (world.machine / MAP_FILE).write_bytes(b"{}")
        world.now += 1
        assert world.posts.map == halves(5)
    assert "missing required field" in caplog.text
    (world.machine / MAP_FILE).unlink()
    world.now += 1
    assert world.posts.map == halves(5)
    world.write(halves(6))
    assert world.posts.map == halves(6)


def test_files_are_looked_at_only_some_times_a_second(world: World) -> None:
    world.write(HALVES)
    assert world.posts.map == HALVES
    replace_file(world.machine / MAP_FILE, encode_map(halves(2)))
    assert world.posts.map == HALVES
    world.now += 2 * FRESH_SECONDS
    assert world.posts.map == halves(2)


def test_the_own_log_knows_more_than_an_old_map(world: World) -> None:
    world.write(HALVES)
    world.owned.states[HIGH] = 1  # it came
    assert world.posts.owner(HIGH) == 0
    world.owned.states[LOW] = 0  # it went
    assert world.posts.owner(LOW) == 0
    assert world.posts.moved(LOW).startswith(b"-TRYAGAIN ")
    world.owned.went[LOW] = 1
    world.owned.version += 1
    assert world.posts.moved(LOW) == b"-MOVED 100 10.0.0.1:7002\r\n"
    first = [(0, LOW - 1), (LOW + 1, 8191), (HIGH, HIGH)]
    second = [(LOW, LOW), (8192, HIGH - 1), (HIGH + 1, SLOTS - 1)]
    assert world.posts.ranges() == {0: first, 1: second}


def test_a_newer_map_knows_more_than_the_own_log(world: World) -> None:
    world.owned.states[LOW] = 0
    world.owned.went[LOW] = 1
    world.write(two_partitions(9, f"0-{LOW - 1},{LOW + 1}-8191", "8192-16383", f"{LOW}"))
    assert world.posts.moved(LOW) == b"-MOVED 100 10.0.0.2:7003\r\n"


async def test_a_notice_is_written_when_it_has_changed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    notice, file = Notice(None, 0), board_file(tmp_path, -1)
    notices = Notices(file, lambda: notice)
    blocked = file.with_name(f".{file.name}.new")
    blocked.mkdir(parents=True)  # the first write fails
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.run)
        await trio.sleep(0.5)
        blocked.rmdir()
        for leader in (None, 2):
            notice = Notice(leader, 3)
            notices.look_again()
            await trio.sleep(RETRY_SECONDS)
            assert msgspec.json.decode(file.read_bytes(), type=Notice) == notice
        nursery.cancel_scope.cancel()
    assert autojump_clock.rate == 0
