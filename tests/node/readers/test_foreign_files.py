"""Files in a member's and a backup's folders that are not ours outlive every start."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage.snapshots.file import check_snapshot
from tests.node.readers.test_backup import agrees, backup_of
from tests.node.state_machine.test_snapshot_kills import alone, write
from tests.node.state_machine.test_snapshots import load, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

FOLDERS = ("", "log", "tables", "snapshots")


def plant(directory: Path) -> dict[Path, bytes | None]:
    """Put into each folder what people and file systems put there."""
    planted: dict[Path, bytes | None] = {}
    for name in FOLDERS:
        folder = directory / name
        (folder / "lost+found").mkdir(parents=True)
        (folder / "photo.jpg").write_bytes(b"photo")
        planted |= {folder / "lost+found": None, folder / "photo.jpg": b"photo"}
    return planted


def still_there(planted: dict[Path, bytes | None]) -> bool:
    return all(
        path.is_dir() if content is None else path.read_bytes() == content
        for path, content in planted.items()
    )


async def test_they_stay_when_members_start_take_snapshots_and_restart(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        planted: dict[Path, bytes | None] = {}
        for host in world.hosts.values():
            planted |= plant(host.config.directory)
        await world.start()
        leader = await world.settled()
        await load(world, leader, 5, b"a")
        await snapshot(world, leader)
        (copied,) = (world.hosts[leader].config.directory / "snapshots").glob("snapshot-*")
        copy = copied.with_name(f"{copied.name}.bak")
        shutil.copy(copied, copy)
        await world.kill(*world.hosts)
        await world.start()
        await world.settled()
        await equal(world)
        assert still_there(planted)
        assert check_snapshot(copy) == check_snapshot(copied)


async def test_they_stay_where_a_backup_goes(tmp_path: Path, autojump_clock: MockClock) -> None:
    there = tmp_path / "backup"
    planted = plant(there)
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 5, b"a")
        await snapshot(world, leader)
        for _ in range(2):
            async with backup_of(world, there) as backup:
                await backup.run()
            agrees(world, there)
            assert still_there(planted)


async def test_the_last_snapshot_of_a_log_that_is_lost_stays_at_every_start(tmp_path: Path) -> None:
    async with alone(tmp_path) as (member, _):
        await write(member, 1)
        await member.control("snapshot")
    (last,) = (tmp_path / "snapshots").iterdir()
    whole = check_snapshot(last)
    for name in ("log", "tables"):
        shutil.rmtree(tmp_path / name)
    for value in range(2):
        async with alone(tmp_path) as (member, _):
            await write(member, value)
    assert check_snapshot(last) == whole
