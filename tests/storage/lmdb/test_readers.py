"""Readers in other processes: dead ones cost nothing, living ones are named, all end in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from quorate.storage.lmdb import file_check, readers
from quorate.storage.lmdb.environment import Environment
from quorate.storage.lmdb.readers import HELD_BYTES, ReaderWatch
from tests.support.logged import events

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import lmdb

    from quorate.storage.lmdb.environment import Transaction

VALUE = bytes(1 << 16)
READ = """
import sys, time
from pathlib import Path
from quorate.storage.lmdb.environment import Environment
environment = Environment.open_readonly(Path(sys.argv[1]), max_dbs=1)
held = [environment.begin_reading() for _ in range(int(sys.argv[2]))]
print("reads", flush=True)
time.sleep(60)
"""


def put(txn: Transaction) -> None:
    txn.put(b"key", VALUE)


def get(txn: Transaction) -> bytes | None:
    return txn.get(b"key")


@pytest.fixture
def environment(tmp_path: Path) -> Generator[Environment]:
    opened = Environment.open(tmp_path, max_dbs=1, initialise=lambda _raw: None)
    opened.write(put)
    yield opened
    opened.close()


@contextmanager
def reader(environment: Environment, transactions: int = 1) -> Generator[subprocess.Popen[bytes]]:
    """A process that reads for the length of the block, and is killed at its end."""
    command = [sys.executable, "-c", READ, str(environment.directory), str(transactions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"reads\n"
            yield child
        finally:
            child.kill()


def test_a_dead_reader_holds_back_no_space(
    environment: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with reader(environment) as child:
        for _ in range(8):
            environment.write(put)
        assert str(child.pid) in environment.raw.readers()
    environment.write(put)
    assert str(child.pid) not in environment.raw.readers()
    freed = {"directory": str(environment.directory), "slots": 1}
    assert events(caplog, "dead_readers_freed") == [freed]
    used = environment.used_bytes()
    for _ in range(16):
        environment.write(put)
    assert environment.used_bytes() == used


def test_dead_readers_in_all_slots_keep_nobody_from_reading(environment: Environment) -> None:
    slots = environment.raw.info()["max_readers"]
    with reader(environment, slots):
        pass
    assert environment.read(get) == VALUE


def test_a_living_reader_is_named_once_it_costs_much(
    environment: Environment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "HELD_BYTES", 4 * len(VALUE))
    with reader(environment) as child:
        for _ in range(4):
            environment.write(put)
        assert events(caplog, "reader_holds_space") == []
        for _ in range(4):
            environment.write(put)
        assert [each["pid"] for each in events(caplog, "reader_holds_space")] == [child.pid]


class Slots:
    """What LMDB says of readers: process and transaction of each."""

    rows: tuple[tuple[int, str], ...] = ()

    def reader_check(self) -> int:
        return 0

    def readers(self) -> str:
        lines = [f"{pid:>10} 7f0000000000 {txn}" for pid, txn in self.rows]
        return "\n".join(["    pid     thread     txnid", *lines, ""])


def test_a_reader_that_goes_on_and_one_of_our_own_are_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = Slots()
    watch = ReaderWatch(tmp_path, cast("lmdb.Environment", raw))
    for step in range(5):
        raw.rows = ((7, str(step)), (os.getpid(), "1"), (8, "-"))
        watch.look(step * 2 * HELD_BYTES)
    assert caplog.text == ""
    for step in range(5, 9):  # it stands still
        watch.look(step * 2 * HELD_BYTES)
    assert [each["pid"] for each in events(caplog, "reader_holds_space")] == [7] * 4


def test_a_walk_through_a_store_is_ended_in_order(tmp_path: Path) -> None:
    """A Ctrl-C, or SIGTERM, of `quorate log verify` ends the process that reads for it."""
    ended = tmp_path / "ended"
    work = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "try: time.sleep(60)\n"
        f"finally: pathlib.Path({str(ended)!r}).touch()\n"
    )
    # A shell ignores SIGINT in its background jobs, and Python then leaves that as it is.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            getattr(file_check, "_run")([sys.executable, "-c", work])  # noqa: B009 - of `unreadable`
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.exists()


def test_a_walk_reads_a_table_in_short_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Environment.open(tmp_path, max_dbs=1, initialise=lambda _raw: None)
    table = made.raw.open_db(b"table")

    def fill(txn: Transaction) -> None:
        for number in range(1000):
            txn.put(b"%04d" % number, bytes(10), db=table)

    made.write(fill)
    made.close()
    said: list[str] = []
    monkeypatch.setattr(file_check, "_say", said.append)
    monkeypatch.setattr(file_check, "_STEP_BYTES", 100)
    assert file_check.walk(tmp_path) == 0
    assert said[0] == "table \n"
    assert [bytes.fromhex(words.split()[1]) for words in said[1:]] == [
        b"%04d" % number for number in range(9, 1000, 10)
    ]
