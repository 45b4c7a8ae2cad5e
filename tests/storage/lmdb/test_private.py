"""What lies on disk is its owner's to read, and nobody else's."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from quorate.errors import StorageError
from quorate.storage import SnapshotFolder, SnapshotHead, SnapshotReader, TermRow
from quorate.storage.lmdb.private import make_private
from quorate.storage.snapshots.folder import write_whole
from quorate.storage.tables.damage import MARK, report_damage
from tests.support.logged import events
from tests.support.storage_world import begin_term, fill, open_store, running
from tests.support.tables_world import open_tables, record

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

HEAD = SnapshotHead("orders", 320, 0, 7, (TermRow(0, 0, None, 5),))
LATER = SnapshotHead("orders", 640, 0, 7, (TermRow(0, 0, None, 5),))
ALL_FILES = {
    *(f"log/{name}" for name in ("data.mdb", "lock", "lock.mdb", "journal")),
    *(f"tables/{name}" for name in ("data.mdb", "lock", "lock.mdb", MARK)),
    *(f"snapshots/{name}" for name in (HEAD.name, f"{LATER.name}.part")),
}


@pytest.fixture(autouse=True)
def no_mask() -> Generator[None]:
    """Nothing but the modes that we ask for keeps others out."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in found}


async def write(directory: Path) -> None:
    """Write all that a member, a backup and a restore write."""
    async with running(open_store(directory / "log")) as store:
        await begin_term(store, 0)
        await fill(store, 2)
    async with running(open_tables(directory / "tables")) as tables:
        tables.put(b"key", record(b"value"))
        tables.advance(64, 5)
        await tables.flush()
    folder = SnapshotFolder(directory / "snapshots")
    folder.open([])
    write_whole(folder.directory, HEAD, iter([b"piece"]))
    with SnapshotReader(folder.path_of(HEAD.row)) as reader:
        folder.transfer(LATER, reader.head_part, len(reader.head_part)).close()


async def test_what_is_made_is_nobody_elses_to_read(tmp_path: Path) -> None:
    directory = tmp_path / "member"
    await write(directory)
    report_damage(directory / "tables", StorageError("damaged"))
    found = modes(directory)
    assert found.keys() >= ALL_FILES
    for name, mode in found.items():
        assert mode == (0o600 if name in ALL_FILES else 0o700), name


async def test_what_is_opened_is_closed_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "member"
    await write(directory)
    for path in directory.rglob("*"):
        path.chmod(0o2777 if path.is_dir() else 0o644)
    (directory / "snapshots" / "photo.jpg").touch(0o644)
    await write(directory)
    found = modes(directory)
    assert found.pop("snapshots/photo.jpg") == 0o644
    assert {name for name, mode in found.items() if mode & 0o077} == set()
    assert found["log"] == 0o2700  # what else it says stays


def test_what_is_somebody_elses_stays_open_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", refused)
    make_private(tmp_path)
    make_private(tmp_path / "absent")
    (found,) = events(caplog, "open_to_others")
    assert (found["path"], found["mode"]) == (str(tmp_path), "0755")
