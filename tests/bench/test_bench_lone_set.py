"""The steps of a lone client's SET are read out of what the members have noted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.runs import lone_set
from bench.runs.lone_set import (
    COMMAND,
    HEARD,
    NOTE,
    RECEIVED,
    REPLY,
    REPORT,
    SENT,
    STEPS,
    WRITTEN,
    Note,
    Notes,
    one_way,
)
from quorate.torture.disk import preloadable

BATCH = COMMAND + 148
LEADER = [
    (1, 2, RECEIVED, REPORT),  # of the SET before
    (11, 12, RECEIVED, COMMAND),
    (20, 22, SENT, BATCH),
    (23, 24, SENT, BATCH),
    (30, 33, WRITTEN, 1),
    (50, 51, HEARD, 1),
    (70, 71, RECEIVED, REPORT),
    (80, 85, SENT, REPLY),
]
FIRST = [
    (25, 26, RECEIVED, BATCH),
    (35, 37, WRITTEN, 1),
    (40, 41, HEARD, 0),
    (55, 56, HEARD, 1),
    (60, 62, SENT, REPORT),
]
SECOND = [(began + 3, ended + 3, call, size) for began, ended, call, size in FIRST]


def noted(directory: Path, name: str, notes: list[tuple[int, int, int, int]]) -> Notes:
    """Notes of a member, as it leaves them: room for more is behind them."""
    file = directory / name
    file.write_bytes(b"".join(NOTE.pack(*note) for note in notes) + bytes(3 * NOTE.size))
    return Notes(file)


def test_the_way_is_that_of_the_follower_which_reports_first(tmp_path: Path) -> None:
    leader = noted(tmp_path, "leader", LEADER)
    followers = [noted(tmp_path, "second", SECOND), noted(tmp_path, "first", FIRST)]
    way = one_way((10, 90), leader, followers)
    assert way is not None
    assert way == (10, 12, 20, 26, 35, 37, 56, 60, 71, 80, 90)
    assert len(way) == len(STEPS) + 1


def test_the_leaders_own_disk_may_be_the_last(tmp_path: Path) -> None:
    late = [(75, 76, HEARD, 1) if note[2] == HEARD else note for note in LEADER]
    way = one_way((10, 90), noted(tmp_path, "leader", late), [noted(tmp_path, "first", FIRST)])
    assert way is not None
    assert way[-3:] == (76, 80, 90)


@pytest.mark.parametrize("missing", [1, 5, 6, 7])
def test_without_a_note_there_is_no_way(tmp_path: Path, missing: int) -> None:
    leader = noted(tmp_path, "leader", LEADER[:missing] + LEADER[missing + 1 :])
    assert one_way((10, 90), leader, [noted(tmp_path, "first", FIRST)]) is None


def test_nor_without_a_follower(tmp_path: Path) -> None:
    leader = noted(tmp_path, "leader", LEADER)
    assert one_way((10, 90), leader, [noted(tmp_path, "first", FIRST[:-1])]) is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_process_notes_what_it_sends_and_receives(tmp_path: Path) -> None:
    library = preloadable(Path(lone_set.__file__).with_suffix(".c"), tmp_path)
    (folder := tmp_path / "notes").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TALK],
        env={"LD_PRELOAD": str(library), "QUORATE_NOTES": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "EAGAIN\n"
    (file,) = folder.iterdir()
    notes = [Note(*each) for each in NOTE.iter_unpack(file.read_bytes()) if each[0]]
    assert [(each.call, each.size) for each in notes] == [
        *[(SENT, 7), (RECEIVED, 7), (RECEIVED, -1)],
        *[(WRITTEN, 3), (HEARD, 1)],
    ]
    assert all(each.began <= each.ended for each in notes)


TALK = """
import errno, os, socket, tempfile
one, two = socket.socketpair()
one.send(b"1234567")
two.recv(100)
two.setblocking(False)
try:
    two.recv(100)
except OSError as error:
    print(errno.errorcode[error.errno])
with tempfile.TemporaryFile() as file:
    os.pwrite(file.fileno(), b"abc", 0)
os.eventfd_read(os.eventfd(1))
"""
