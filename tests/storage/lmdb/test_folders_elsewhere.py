"""Folders of a member that are links to other disks, or the roots of volumes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from quorate.errors import StorageError
from quorate.storage.lmdb.environment import free_bytes, make_directory, size_bytes
from quorate.storage.rows.identity import IDENTITY_KEY
from quorate.storage.tables.damage import open_or_rebuild
from tests.support.storage_world import flipped, open_store, running, stored, tamper
from tests.support.tables_world import open_tables, record


async def make_damaged(directory: Path) -> None:
    """Make tables that are found damaged at the next start, in a folder with other files in it."""
    async with running(open_tables(directory)) as tables:
        tables.put(b"key", record(b"value"))
        tables.advance(64, 5)
        await tables.flush()
    tamper(directory, b"meta", IDENTITY_KEY, flipped(stored(directory, b"meta", IDENTITY_KEY), 1))
    (directory / "lost+found").mkdir()
    (directory / "photo.jpg").touch()


def make_anew(directory: Path) -> None:
    """Open the tables, which are made anew; all else stays where it was."""
    place, slots = directory.stat(), (directory / "lock.mdb").stat().st_ino
    held = os.open(directory / "lock.mdb", os.O_RDONLY)  # so that its number is not used again
    tables = open_or_rebuild(directory, lambda: open_tables(directory))
    assert tables.position == 0
    tables.close()
    os.close(held)
    assert (directory.stat().st_dev, directory.stat().st_ino) == (place.st_dev, place.st_ino)
    assert (directory / "lock.mdb").stat().st_ino != slots  # readers of the old ones have slots
    names = {path.name for path in directory.iterdir()}
    assert names == {"data.mdb", "lock.mdb", "lock", "lost+found", "photo.jpg"}


async def test_damaged_tables_behind_a_link_are_made_anew_there(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "member" / "tables"
    disk.mkdir()
    link.parent.mkdir()
    link.symlink_to(disk)
    await make_damaged(link)
    make_anew(link)
    assert link.readlink() == disk
    assert list(link.parent.iterdir()) == [link]


def on_a_volume(directory: Path) -> None:
    """What a child process does, with the root of a volume for a folder of tables."""
    trio.run(make_damaged, directory)
    make_anew(directory)


def test_damaged_tables_in_the_root_of_a_volume_are_made_anew_there(tmp_path: Path) -> None:
    directory = tmp_path / "tables"
    directory.mkdir()
    mounted = 'mount -t tmpfs none "$0" && exec "$@"'
    mount = [shutil.which("unshare") or "false", "--mount", "sh", "-c", mounted, str(directory)]
    if subprocess.run([*mount, "true"], check=False).returncode:
        pytest.skip("a volume can't be mounted here")
    work = (
        "from tests.storage.lmdb.test_folders_elsewhere import *; "
        f"on_a_volume(Path({str(directory)!r}))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [*mount, sys.executable, "-c", work],
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert list(directory.iterdir()) == []  # it was all on the volume


async def test_a_store_behind_a_link_is_opened_and_made_there(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "log"
    (disk / "lost+found").mkdir(parents=True)
    link.symlink_to(disk)
    for _ in range(2):
        async with running(open_store(link)):
            assert (disk / "data.mdb").exists()


def test_a_link_to_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    link = tmp_path / "log"
    link.symlink_to(tmp_path / "volume" / "log")
    with pytest.raises(StorageError, match=r"log: a link to .*volume/log.*mount its volume"):
        make_directory(link)


@pytest.mark.parametrize("full", ["", "log", "tables"])
def test_the_fullest_file_system_of_a_member_counts(
    tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "tables").symlink_to(tmp_path / "log")

    def system(path: Path) -> SimpleNamespace:
        free, size = (7, 500) if path == tmp_path / full else (1000, 4000)
        # Root keeps 5 blocks, of the free ones.
        return SimpleNamespace(f_bavail=free, f_bfree=free + 5, f_blocks=size, f_frsize=10)

    monkeypatch.setattr(os, "statvfs", system)
    assert (free_bytes(tmp_path), size_bytes(tmp_path)) == (70, 4950)
    assert free_bytes(tmp_path / "snapshots") == 10_000
