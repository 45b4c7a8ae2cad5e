"""What LMDB would believe, crash on, or silently forget is found before it is asked."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest

from quorate.errors import StorageError
from quorate.storage import describe, open_readonly, verify
from quorate.storage.lmdb import file_check
from quorate.storage.lmdb.file_check import DATA_FILE, Unreadable, check_file, unreadable
from tests.support.storage_world import begin_term, fill, open_store, running

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4096
META_TRANSACTION = 144  # offset in a meta page


async def make(directory: Path) -> bytes:
    """Make a store with some batches; return its file."""
    async with running(open_store(directory)) as store:
        await begin_term(store, 0)
        await fill(store, 60)
    return (directory / DATA_FILE).read_bytes()


def put(directory: Path, data: bytes, at: int, content: bytes) -> None:
    """Write the file with another content at one place."""
    (directory / DATA_FILE).write_bytes(data[:at] + content + data[at + len(content) :])


@pytest.mark.parametrize("look", [describe, verify, open_readonly, open_store])
async def test_a_file_that_was_cut_short_is_told_so(
    tmp_path: Path, look: Callable[[Path], object]
) -> None:
    whole = await make(tmp_path)
    for kept in (2 * PAGE, len(whole) // 2 // PAGE * PAGE, len(whole) // 2 + 100):
        (tmp_path / DATA_FILE).write_bytes(whole[:kept])
        with pytest.raises(StorageError, match=r"expected .*; it was cut short"):
            look(tmp_path)


def test_a_file_without_its_unused_last_pages_is_sound(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=4) as raw:
        table = raw.open_db(b"log")
        with raw.begin(write=True) as txn:
            txn.put(b"a", b"1", db=table)
        with raw.begin(write=True) as txn:
            txn.put(b"b", bytes(10 * PAGE), db=table)
        with raw.begin(write=True) as txn:
            txn.delete(b"b", db=table)
    whole = (tmp_path / DATA_FILE).read_bytes()
    end = whole.rfind(b"\0" * 8 * PAGE) + 8 * PAGE  # of the large value, whose pages are free
    assert 0 < end <= len(whole)
    kept = len(whole) - PAGE if end > len(whole) - PAGE else len(whole)
    (tmp_path / DATA_FILE).write_bytes(whole[:kept])
    check_file(tmp_path)
    assert unreadable(tmp_path) is None


@pytest.mark.parametrize("bit", [0, 4, 20])
@pytest.mark.parametrize("page", [0, 1])
async def test_a_meta_page_with_another_number_is_noticed(
    tmp_path: Path, page: int, bit: int
) -> None:
    whole = await make(tmp_path)
    at = page * PAGE + META_TRANSACTION + bit // 8
    put(tmp_path, whole, at, bytes([whole[at] ^ 1 << bit % 8]))
    with pytest.raises(StorageError, match="expected two that follow each other"):
        open_store(tmp_path)


async def test_damaged_pages_are_found_and_never_end_the_process(tmp_path: Path) -> None:
    whole = await make(tmp_path)
    found: list[str] = []
    for page in range(3, len(whole) // PAGE, 3):
        put(tmp_path, whole, page * PAGE, bytes(PAGE))
        try:
            found += [str(finding) for finding in verify(tmp_path).findings]
        except StorageError as error:
            found.append(str(error))
    assert any("position" in words and "page of the table 'log'" in words for words in found)
    (tmp_path / DATA_FILE).write_bytes(whole)
    assert verify(tmp_path).ok


@pytest.mark.parametrize("name", ["SIGABRT", "SIGBUS", "SIGSEGV"])
def test_each_signal_of_a_damaged_page_is_named_here_and_in_the_runbook(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_command: list[str]) -> tuple[int, bytes]:
        return -signal.Signals[name], b"log \nlog 00ff\n"

    monkeypatch.setattr(file_check, "_run", die)
    words = f"reading it ends the process with {name}"
    assert unreadable(tmp_path) == Unreadable("log", b"\x00\xff", words)
    runbook = Path(__file__).parents[3] / "docs" / "operations.md"
    row = next(line for line in runbook.read_text().splitlines() if "the process dies with" in line)
    assert f"`{name}`" in row
