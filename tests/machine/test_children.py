"""The members of a machine are started again when they end, and only a map starts new ones."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from quorate.keyvalue.slots.cluster_map import META, ClusterMap
from quorate.keyvalue.slots.folder import Notice, board_file, replace_file
from quorate.machine import children
from quorate.machine.children import Children
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.files import write_member
from quorate.machine.maps import map_of_file
from quorate.node.config.config import load_config
from quorate.storage import Identity, VotingRight, VotingStatus, make_store

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(4))


class Fake:
    """A child that ends after some seconds."""

    def __init__(self, name: str, ends: Callable[[str, int], tuple[float, int]]) -> None:
        self.name, self._ends = name, ends
        self.starts: list[float] = []
        self.stopped = 0

    async def start(self) -> None:
        self.starts.append(trio.current_time())

    async def wait(self) -> int:
        seconds, status = self._ends(self.name, len(self.starts))
        await trio.sleep(seconds)
        return status

    async def stop(self) -> None:
        self.stopped += 1


class Machine:
    """A machine whose members are fakes."""

    def __init__(
        self, folder: Path, machine_id: int, ends: Callable[[str, int], tuple[float, int]]
    ) -> None:
        self.config = MachineConfig("orders", machine_id, MACHINES, 2, folder)
        self.made: dict[str, Fake] = {}
        self._ends = ends

    def make(self, file: Path) -> Fake:
        fake = self.made[file.parent.name] = Fake(file.parent.name, self._ends)
        return fake


def for_ever(_name: str, _start: int) -> tuple[float, int]:
    return 1e6, 0


def with_replicas(replicas: tuple[int, ...], epoch: int, now: ClusterMap) -> ClusterMap:
    first, *others = now.partitions
    changed = msgspec.structs.replace(first, replicas=replicas, preferred=replicas[0])
    return msgspec.structs.replace(now, epoch=epoch, partitions=(changed, *others))


async def test_a_machine_runs_the_members_that_the_map_puts_there(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    machine = Machine(tmp_path, 3, for_ever)
    first = map_of_file(machine.config)
    here = [each.partition for each in first.partitions if 3 in each.replicas]
    async with trio.open_nursery() as nursery:
        running = Children(machine.config, nursery, machine.make)
        running.adopt(first)
        await trio.sleep(1)
        assert sorted(machine.made) == [f"partition-{each}" for each in here]
        running.adopt(with_replicas((1, 2, 3), 2, first))
        running.adopt(with_replicas((0, 1, 2), 3, first))  # a map stops nobody
        await trio.sleep(1)
        assert "partition-0" in machine.made
        assert [fake.stopped for fake in machine.made.values()] == [0] * len(machine.made)
        nursery.cancel_scope.cancel()
    assert [fake.stopped for fake in machine.made.values()] == [1] * len(machine.made)


async def test_a_member_that_ends_is_started_again_with_a_growing_pause(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    machine = Machine(tmp_path, 0, lambda _name, start: (60, 0) if start == 4 else (1, 1))
    async with trio.open_nursery() as nursery:
        Children(machine.config, nursery, machine.make).adopt(map_of_file(machine.config))
        await trio.sleep(80)
        nursery.cancel_scope.cancel()
    starts = machine.made["meta"].starts
    began = starts[0]
    assert [at - began for at in starts[:6]] == [0, 1.25, 2.75, 4.75, 65, 66.5]


async def test_a_member_that_needs_an_operator_stays_down(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    machine = Machine(tmp_path, 0, lambda name, _start: (1, 76 if name == "meta" else 75))
    first = map_of_file(machine.config)
    async with trio.open_nursery() as nursery:
        running = Children(machine.config, nursery, machine.make)
        running.adopt(first)
        await trio.sleep(10)
        running.adopt(msgspec.structs.replace(first, epoch=2))
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(machine.made["meta"].starts) == 1
    assert len(machine.made["partition-0"].starts) > 2


async def test_a_member_that_was_removed_starts_again_with_an_empty_store_only(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = set[str]()

    def was_removed(folder: Path) -> bool:
        return folder.name in removed

    monkeypatch.setattr(children, "was_removed", was_removed)

    def ends(name: str, _start: int) -> tuple[float, int]:
        if name != "partition-0":
            return 1e6, 0
        if len(made) == 1:
            removed.add(name)
            return 20, 77
        removed.clear()
        return (1, 77) if len(made) == 2 else (1e6, 0)  # the new store finds no seat at first

    machine = Machine(tmp_path, 0, ends)
    made = list[Fake]()
    first = map_of_file(machine.config)
    async with trio.open_nursery() as nursery:
        running = Children(machine.config, nursery, lambda file: keep(made, machine.make(file)))
        running.adopt(first)
        await trio.sleep(1)
        running.adopt(with_replicas((1, 2, 3), 2, first))
        await trio.sleep(100)
        assert len(made) == 1
        running.adopt(with_replicas((0, 1, 2), 3, first))
        await trio.sleep(100)
        assert len(made) == 3
        assert (tmp_path / "partition-0.removed-1").is_dir()
        assert load_config(tmp_path / "partition-0" / "node.toml").join
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "partition-0.removed-2").exists()


def keep(made: list[Fake], fake: Fake) -> Fake:
    if fake.name == "partition-0":
        made.append(fake)
    return fake


async def test_a_notice_is_taken_back_when_its_member_does_not_run(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    machine = Machine(tmp_path, 0, lambda name, _start: (10, 66 if name == "meta" else 1))
    notices = [board_file(tmp_path, META), board_file(tmp_path, 0)]

    def write() -> None:
        for file in notices:
            replace_file(file, msgspec.json.encode(Notice(0, 5)))

    write()  # of another life
    async with trio.open_nursery() as nursery:
        Children(machine.config, nursery, machine.make).adopt(map_of_file(machine.config))
        await trio.sleep(1)
        assert not any(file.exists() for file in notices)
        write()
        await trio.sleep(9.1)
        assert not any(file.exists() for file in notices)
        nursery.cancel_scope.cancel()


async def test_a_member_whose_file_cannot_be_written_is_tried_again_and_holds_up_nobody(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = list[float]()

    def failing(config: MachineConfig, cluster_map: ClusterMap, partition: int) -> Path:
        if partition == 0:
            attempts.append(trio.current_time())
            if len(attempts) < 3:
                raise OSError(28, "No space left on device")
        return write_member(config, cluster_map, partition)

    monkeypatch.setattr(children, "write_member", failing)
    machine = Machine(tmp_path, 1, for_ever)
    async with trio.open_nursery() as nursery:
        Children(machine.config, nursery, machine.make).adopt(map_of_file(machine.config))
        await trio.sleep(0.1)
        assert sorted(machine.made) == ["meta", "partition-1"]
        await trio.sleep(1)
        assert sorted(machine.made) == ["meta", "partition-0", "partition-1"]
        nursery.cancel_scope.cancel()
    assert [at - attempts[0] for at in attempts] == [0, 0.25, 0.75]


async def test_no_partition_begins_by_a_map_that_nobody_has_sent(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    machine = Machine(tmp_path, 1, for_ever)
    first = map_of_file(machine.config)
    store = tmp_path / "partition-1" / "log" / "data.mdb"
    store.parent.mkdir(parents=True)
    store.touch()
    async with trio.open_nursery() as nursery:
        running = Children(machine.config, nursery, machine.make)
        running.adopt(first, guessed=True)
        await trio.sleep(1)
        assert sorted(machine.made) == ["meta", "partition-1"]  # that one has begun before
        running.adopt(first)
        await trio.sleep(1)
        assert sorted(machine.made) == ["meta", "partition-0", "partition-1"]
        nursery.cancel_scope.cancel()


async def test_empty_stores_of_a_member_without_a_seat_are_not_kept(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "partition-0"
    removed = VotingStatus(VotingRight.REMOVED)
    made = list[float]()

    def make(file: Path) -> Fake:
        if file.parent == folder:
            made.append(trio.current_time())
            make_store(folder / "log", Identity("orders.p0", 3, len(made)), removed)
        return machine.make(file)

    machine = Machine(tmp_path, 3, lambda name, _: (2, 77) if name == folder.name else (1e6, 0))
    first = with_replicas((1, 2, 3), 2, map_of_file(machine.config))
    async with trio.open_nursery() as nursery:
        Children(machine.config, nursery, make).adopt(first)
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert not any(
        each.exists() for each in (tmp_path / f"partition-0.removed-{n}" for n in (1, 2))
    )
    assert len(made) < 20
