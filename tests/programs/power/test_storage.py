"""The storage engine under load, with its real thread and real LMDB, loses its power.

One run gives a journal, and the journal the state of the disk after a loss of power at any moment
of the run: those right in front of and behind a sync, and others by chance. What the process had
reported until then must be there. That the test can fail is shown with disks that lie.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.programs.power.check_store import check_log, check_tables
from tests.programs.power.journal import Chance, PowerLoss, Record, Tree, read_journal, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[3]
LOG_REPORT: Final = struct.Struct("<cqq")
TABLES_REPORT: Final = struct.Struct("<q")
POINTS: Final = 24


@attrs.frozen
class Run:
    """A run of a process that writes and reports, until it was killed."""

    before: Tree
    records: list[Record]

    def until(self, count: int, chance: Chance, heeded: str = "SY") -> dict[str, bytes | None]:
        """What a loss of power after so many records leaves."""
        return PowerLoss(self.before, self.records[:count], chance, heeded).tree()

    def points(self, rng: Random) -> list[int]:
        """Moments to look at, as numbers of records."""
        syncs = [one.number + late for one in self.records if one.kind in "SY" for late in (0, 1)]
        others = rng.sample(range(len(self.records) + 1), POINTS // 2)
        return sorted({*rng.sample(syncs, POINTS // 2), *others, len(self.records)})

    def reported(self, count: int) -> bytes:
        """What it had reported by then."""
        return b"".join(one.data for one in self.records[:count] if one.kind == "M")


def run(
    library: Path, directory: Path, writer: str, *, reports: int, report_bytes: int, seed: int = 0
) -> Run:
    """Let a writer make so many reports, kill it, and return what it did."""
    store = directory / "store"
    store.mkdir(exist_ok=True)
    before = Tree.of(store)
    journal = directory / "journal"
    journal.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_PRELOAD": str(library),
        "FORGETFUL_ROOT": str(store),
        "FORGETFUL_JOURNAL": str(journal),
        "FORGETFUL_MARK_FD": "1",
    }
    command = [sys.executable, "-m", f"tests.storage.{writer}", str(store), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        child.stdout.read(reports * report_bytes)
        child.kill()
        child.stdout.read()
    return Run(before, read_journal(journal))


def log_reports(data: bytes) -> tuple[int, int]:
    """The last append position and the last vote that were reported; -1 = none yet."""
    last = {b"A": -1, b"V": -1}
    last |= {kind: number for kind, number, _ in LOG_REPORT.iter_unpack(data)}
    return last[b"A"], last[b"V"]


def put(directory: Path, tree: dict[str, bytes | None]) -> Path:
    directory.mkdir(exist_ok=True)
    replace(directory, tree, but=frozenset())
    return directory


def without(file: bytes, writes: Sequence[Record]) -> bytes:
    """The bytes of a file with zeros in all places that some writes were for."""
    left = bytearray(file)
    for write in writes:
        left.extend(bytes(max(0, write.one - len(left))))
        left[write.one : write.one + len(write.data)] = bytes(len(write.data))
    return bytes(left)


def test_the_journal_holds_everything_that_is_done(tmp_path: Path, library: Path) -> None:
    """All of it, kept, is the directory as it is; but for LMDB's lock file, which is mapped."""
    done = run(library, tmp_path, "log.appender", reports=60, report_bytes=LOG_REPORT.size)
    count = len(done.records)
    everything = done.until(count, Chance(Random(0), 1.0, 1.0))
    unsynced = PowerLoss(done.before, done.records, Chance(Random(0), 0.0, 0.0)).unsynced()
    there = Tree.of(tmp_path / "store")
    assert everything.keys() == there.files.keys() == {"data.mdb", "journal", "lock", "lock.mdb"}
    for name in ("data.mdb", "journal", "lock"):
        told = everything[name]
        assert told is not None
        blanks = [one for one in unsynced if one.inode == there.inodes[name]]
        assert without(told, blanks) == without(there.files[name], blanks)
    synced = done.until(count, Chance(Random(0), 0.0, 0.0))
    assert synced.keys() == everything.keys()


def test_the_log_loses_nothing_that_it_reported(tmp_path: Path, library: Path) -> None:
    rng = Random(1)
    for _ in range(2):  # the second run goes on with what the first one left
        done = run(
            library, tmp_path, "log.appender", reports=60, report_bytes=LOG_REPORT.size, seed=1
        )
        for count in done.points(rng):
            left = put(tmp_path / "left", done.until(count, Chance.of(rng)))
            position, vote = log_reports(done.reported(count))
            assert check_log(left, position, vote) == [], f"after {count} records"
        end = done.until(len(done.records), Chance.of(rng))
        put(tmp_path / "store", end)


def test_the_tables_lose_nothing_that_was_flushed(tmp_path: Path, library: Path) -> None:
    rng = Random(1)
    done = run(
        library, tmp_path, "tables.tables_writer", reports=8, report_bytes=TABLES_REPORT.size
    )
    for count in done.points(rng):
        left = put(tmp_path / "left", done.until(count, Chance.of(rng)))
        reported = done.reported(count)[-TABLES_REPORT.size :]
        position = TABLES_REPORT.unpack(reported)[0] if reported else -1
        assert check_tables(left, position) == [], f"after {count} records"


# Disks that lie ---------------------------------------------------------------------------------


def caught(directory: Path, done: Run, counts: Sequence[int], chance: Chance, heeded: str) -> bool:
    """Whether a check finds a loss at one of these moments."""
    for count in counts:
        left = put(directory / "left", done.until(count, chance, heeded))
        position, vote = log_reports(done.reported(count))
        numbers = [str(position), str(vote)]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.programs.power.check_store", "log", str(left), *numbers],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=60.0,  # as long as all of this test: a hang has a cause
        )
        if ended.returncode:
            return True
    return False


@pytest.mark.parametrize(
    ("heeded", "sector", "name"),
    [("", 0.0, 1.0), ("Y", 0.5, 1.0), ("S", 0.0, 1.0), ("SY", 0.0, 0.0)],
    ids=["no sync at all", "no fdatasync", "no synchronous write", "honest"],
)
def test_a_disk_that_lies_is_found_out(
    tmp_path: Path, library: Path, heeded: str, sector: float, name: float
) -> None:
    done = run(library, tmp_path, "log.appender", reports=60, report_bytes=LOG_REPORT.size)
    told = [one.number + 1 for one in done.records if one.kind == "M"]
    chance = Chance(Random(1), sector, name)
    assert caught(tmp_path, done, told[-4:], chance, heeded) is (heeded != "SY")


@pytest.mark.parametrize("file", ["data.mdb.new", "journal.new"])
def test_synchronous_writes_of_one_file_that_lie_are_found_out(
    tmp_path: Path, library: Path, file: str
) -> None:
    """LMDB's last page is written so, and the journal, by the names by which they are made."""
    done = run(library, tmp_path, "log.appender", reports=60, report_bytes=LOG_REPORT.size)
    made = [one for one in done.records if one.kind == "C" and one.paths == [file]]
    lazy = [
        attrs.evolve(one, kind="-") if one.kind == "Y" and one.inode == made[-1].inode else one
        for one in done.records
    ]
    assert lazy != done.records
    told = [one.number + 1 for one in lazy if one.kind == "M"]
    assert caught(tmp_path, Run(done.before, lazy), told[-4:], Chance(Random(1), 0, 1), "SY")


def test_a_name_that_was_not_synced_is_a_store_that_is_gone(tmp_path: Path, library: Path) -> None:
    done = run(library, tmp_path, "log.appender", reports=60, report_bytes=LOG_REPORT.size)
    inode = done.before.inodes["."]
    lazy = [
        attrs.evolve(one, kind="-") if one.kind == "S" and one.inode == inode else one
        for one in done.records
    ]
    assert caught(tmp_path, Run(done.before, lazy), [len(lazy)], Chance(Random(1), 0, 0), "SY")
