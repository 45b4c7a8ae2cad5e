"""The folder of snapshots: leftovers of our own go, whatever else lies there stays."""

from pathlib import Path

import attrs
import pytest

from quorate.errors import StorageError
from quorate.storage import SnapshotFolder, SnapshotHead, SnapshotWriter, TermRow
from quorate.storage.snapshots.file import check_snapshot
from quorate.storage.snapshots.folder import write_whole
from tests.support.logged import events

TERMS = (TermRow(0, 0, 640, 5), TermRow(1, 640, None, 6))
OLD = SnapshotHead("orders", 320, 0, 7, (TermRow(0, 0, None, 5),))
NEW = SnapshotHead("orders", 960, 1, 8, TERMS)
LATER = attrs.evolve(NEW, position=1920)
GONE = attrs.evolve(NEW, position=5000).row


def write(folder: Path, *heads: SnapshotHead) -> None:
    for head in heads:
        write_whole(folder, head, iter([b"piece"]))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def clear_up(folder: Path, *heads: SnapshotHead) -> None:
    rows = [head.row for head in heads]
    assert SnapshotFolder(folder).open(rows, cluster="orders", terms=TERMS) == []


def test_leftovers_go_with_a_log_line_and_what_a_row_names_and_a_transfer_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    write(tmp_path, OLD, NEW)
    for name in (f"{LATER.name}.new", f"{LATER.name}.part"):
        (tmp_path / name).write_bytes(b"x")
    folder = SnapshotFolder(tmp_path)
    assert folder.open([NEW.row, GONE], cluster="orders", terms=TERMS) == [GONE]
    assert names(tmp_path) == {NEW.name, f"{LATER.name}.part"}
    gone = [tmp_path / name for name in (OLD.name, f"{LATER.name}.new")]
    removed = events(caplog, "snapshot_removed")
    assert [(each["path"], each["why"]) for each in removed] == [
        (str(path), "no row names it") for path in gone
    ]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    write(tmp_path, OLD, NEW)
    copies = [f"{OLD.name}.bak", f"copy of {OLD.name}", f"{OLD.name}.new.gz", "x.part", "x.new"]
    others = [*copies, "snapshot-1-0", "photo.jpg"]
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    folders = ["lost+found", f"{LATER.name}.new", f"{LATER.name}.part"]
    for name in folders:
        (tmp_path / name).mkdir()
    (tmp_path / OLD.name).rename(tmp_path.with_name("elsewhere"))
    (tmp_path / OLD.name).symlink_to(tmp_path.with_name("elsewhere"))
    clear_up(tmp_path, NEW)
    assert names(tmp_path) == {NEW.name, OLD.name, *others, *folders}
    assert SnapshotFolder(tmp_path).arriving() == (-1, -1, 0)


@pytest.mark.parametrize(
    "left",
    [
        attrs.evolve(OLD, cluster="another"),
        attrs.evolve(OLD, terms=(TermRow(0, 0, None, 4),)),
        attrs.evolve(OLD, position=641, terms=(TermRow(0, 0, None, 5),)),
        attrs.evolve(OLD, position=9000, term=7, terms=(TermRow(7, 8000, None, 5),)),
    ],
    ids=["another cluster", "another beginning", "behind its term's end", "unknown term"],
)
def test_a_snapshot_of_another_log_stays_and_is_named(
    tmp_path: Path, left: SnapshotHead, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, left, NEW)
    clear_up(tmp_path, NEW)
    assert names(tmp_path) == {left.name, NEW.name}
    assert events(caplog, "snapshot_kept") == [{"path": str(tmp_path / left.name)}]


def test_a_whole_snapshot_stays_if_no_other_one_is_there(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    folder = SnapshotFolder(tmp_path)
    for rows in ([], [GONE]):
        folder.open(rows, cluster="orders", terms=TERMS)
        assert names(tmp_path) == {OLD.name}


def test_a_damaged_snapshot_without_a_row_stays(tmp_path: Path) -> None:
    write(tmp_path, NEW)
    (tmp_path / OLD.name).write_bytes(b"no snapshot")
    clear_up(tmp_path, NEW)
    assert names(tmp_path) == {OLD.name, NEW.name}


def test_nothing_goes_where_a_new_store_begins(tmp_path: Path) -> None:
    write(tmp_path, OLD, NEW)
    (tmp_path / f"{LATER.name}.new").write_bytes(b"x")
    there = names(tmp_path)
    SnapshotFolder(tmp_path).open([], cluster="orders")
    assert names(tmp_path) == there


def test_a_transfer_removes_only_parts_of_other_snapshots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for name in (f"{OLD.name}.part", "film.part"):
        (tmp_path / name).write_bytes(b"x")
    SnapshotFolder(tmp_path).transfer(NEW, b"head", 4).close()
    assert names(tmp_path) == {f"{NEW.name}.part", "film.part"}
    (removed,) = events(caplog, "snapshot_removed")
    assert removed["path"] == f"{tmp_path / OLD.name}.part"


def test_a_new_snapshot_never_replaces_one_of_another_log(tmp_path: Path) -> None:
    other = attrs.evolve(NEW, timestamp_ms=77)
    write(tmp_path, other)
    with pytest.raises(StorageError, match="move that file away"):
        write(tmp_path, NEW)
    assert check_snapshot(tmp_path / NEW.name).head == other
    assert names(tmp_path) == {NEW.name}


def test_a_damaged_one_of_its_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / NEW.name).write_bytes(b"damaged")
    writer = SnapshotWriter(tmp_path, NEW, iter([b"piece"]))
    while writer.step():
        pass
    assert writer.finish() == check_snapshot(tmp_path / NEW.name)
