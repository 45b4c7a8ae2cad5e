"""A user who may read a member's files but not write them: it works, or the error says what to do.

Each test has a child process that is somebody else; only root can have one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import StorageError, StoreBusyError
from quorate.storage import open_readonly
from quorate.storage.lmdb import readers
from quorate.storage.lmdb.environment import Environment
from quorate.storage.rows.databases import MAX_DBS
from quorate.storage.tables.disk import tables_position
from quorate.storage.tools.describe import describe, dump
from quorate.storage.tools.restore import plan_restore
from tests.support.logged import events
from tests.support.storage_world import begin_term, fill, open_store, running
from tests.support.tables_world import open_tables, record

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


async def write(directory: Path) -> None:
    async with running(open_store(directory / "log")) as store:
        await begin_term(store, 0)
        await fill(store, 20)
    async with running(open_tables(directory / "tables")) as tables:
        tables.put(b"key", record(b"value"))
        tables.advance(64, 5)
        await tables.flush()


def open_to_read(directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def directory() -> Generator[Path]:
    """A member's directory of root's that all may read; that of pytest is its own."""
    made = Path(tempfile.mkdtemp(prefix="quorate-read-"))
    trio.run(write, made)
    open_to_read(made)
    yield made
    shutil.rmtree(made)


class Nobody:
    """A child process that is nobody, and does some work there; used by one test."""

    def __init__(self, work: Callable[[Nobody], None]) -> None:
        self._mine, self._theirs = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._mine, self._theirs = self._theirs, self._mine
            status = 1
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                work(self)
                status = 0
            except BaseException:  # noqa: BLE001 - the child's own end
                traceback.print_exc()
            finally:
                os._exit(status)

    def say(self) -> None:
        """Let the other process go on."""
        os.write(self._theirs[1], b".")

    def hear(self) -> None:
        """Wait until the other process lets us go on."""
        os.read(self._mine[0], 1)

    def end(self) -> int:
        """Wait for the end of the child; give its status."""
        for end in (*self._mine, *self._theirs):
            os.close(end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_store_that_nobody_writes_is_read_without_the_right_to_write(directory: Path) -> None:
    def read(_: Nobody) -> None:
        assert len(list(dump(directory / "log"))) == describe(directory / "log").batches == 22
        assert tables_position(directory / "tables") == 64
        assert plan_restore(directory).last.position > 0

    before = sorted(directory.rglob("*"))
    for _ in range(2):
        assert Nobody(read).end() == 0
        for name in ("lock", "lock.mdb"):  # then it is a copy of what is needed alone
            (directory / "log" / name).unlink(missing_ok=True)
            (directory / "tables" / name).unlink(missing_ok=True)
    assert [path for path in before if path.exists()] == sorted(directory.rglob("*"))


def open_for_writing(directory: Path) -> Environment:
    return Environment.open(directory / "log", max_dbs=MAX_DBS, initialise=lambda _raw: None)


def test_while_its_member_runs_one_is_told_what_it_takes(directory: Path) -> None:
    def read(_: Nobody) -> None:
        process = f"open in process {os.getppid()}"
        words = f"{process}.*write lock.mdb.*user nobody may not: it belongs to root"
        with pytest.raises(StoreBusyError, match=words):
            describe(directory / "log")

    environment = open_for_writing(directory)
    open_to_read(directory)
    assert Nobody(read).end() == 0
    environment.close()


def test_a_member_that_starts_meanwhile_ends_the_reading(directory: Path) -> None:
    def read(parent: Nobody) -> None:
        with open_readonly(directory / "log") as store:
            parent.say()
            parent.hear()
            with pytest.raises(StoreBusyError, match="open in process"):
                list(store.scan(0))

    child = Nobody(read)
    child.hear()
    environment = open_for_writing(directory)
    open_to_read(directory)
    child.say()
    assert child.end() == 0
    environment.close()


def hold(directory: Path) -> Nobody:
    """Have a child be amidst a transaction until its parent ends that."""

    def read(parent: Nobody) -> None:
        def stand_still(_txn: object) -> None:
            parent.say()
            parent.hear()

        with open_readonly(directory / "log") as store:
            store.environment.read(stand_still)
        parent.say()

    child = Nobody(read)
    child.hear()
    return child


def test_a_member_that_starts_waits_for_the_transaction_of_a_reader(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_it_ends(_seconds: float) -> None:
        child.say()
        child.hear()

    caplog.set_level("INFO")
    child = hold(directory)
    monkeypatch.setattr(readers, "time", SimpleNamespace(sleep=until_it_ends))
    open_for_writing(directory).close()
    assert child.end() == 0
    assert events(caplog, "waiting_for_readers") == [{"directory": str(directory / "log")}]


def test_a_member_does_not_wait_for_ever_for_a_reader(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sleep(_seconds: float) -> None:
        """Try again at once."""

    child = hold(directory)
    monkeypatch.setattr(readers, "time", SimpleNamespace(sleep=no_sleep))
    with pytest.raises(StoreBusyError, match="another process reads it"):
        open_for_writing(directory)
    child.say()
    assert child.end() == 0


@pytest.mark.parametrize("name", ["log/data.mdb", "log/lock", "log"])
def test_what_may_not_be_read_is_named_with_both_users(directory: Path, name: str) -> None:
    def read(_: Nobody) -> None:
        with pytest.raises(StorageError, match=rf"{name}.*belongs to root") as caught:
            describe(directory / "log")
        assert "user nobody" in str(caught.value)

    (directory / name).chmod(0o700)
    assert Nobody(read).end() == 0
