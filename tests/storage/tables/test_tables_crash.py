"""Tables whose process is killed, or whose disk is full, are those of some batch boundary."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import trio

from quorate.errors import StorageError, StoreFullError
from quorate.storage.tables.memtable import Record
from quorate.storage.tables.tables import Tables
from tests.storage.tables.tables_writer import BATCH_BYTES, REPORT, changes_of
from tests.support.storage_world import files_limited_to, running
from tests.support.tables_world import contents, open_tables, record

HERE = Path(__file__).parent


def run_and_kill(directory: Path, seed: int) -> int:
    """Let the writer flush some times, kill it, return the position that it last reported."""
    command = [sys.executable, str(HERE / "tables_writer.py"), str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        last = child.stdout.read(REPORT.size)
        for _ in range(Random(seed).randrange(1, 30)):
            last = child.stdout.read(REPORT.size)
        child.kill()
        rest = child.stdout.read()
    whole = rest[: len(rest) // REPORT.size * REPORT.size]
    (position,) = REPORT.unpack((last + whole)[-REPORT.size :])
    return int(position)


def expected_at(position: int) -> dict[bytes, Record]:
    model: dict[bytes, Record] = {}
    for batch in range(1, position // BATCH_BYTES + 1):
        clears, changes = changes_of(batch)
        if clears:
            model.clear()
        for key, held in changes.items():
            if held is None:
                model.pop(key, None)
            else:
                model[key] = held
    return model


async def test_a_killed_process_leaves_the_tables_of_a_batch_boundary(tmp_path: Path) -> None:
    for seed in range(3):
        reported = run_and_kill(tmp_path, seed)
        async with running(open_tables(tmp_path)) as tables:
            assert tables.position >= reported
            assert tables.position % BATCH_BYTES == 0
            assert tables.timestamp_ms == tables.position // BATCH_BYTES
            model = expected_at(tables.position)
            assert contents(tables) == {key: value for key, (value, *_) in model.items()}
            assert all(tables.get(key) == held for key, held in model.items())
            assert tables.deadlines.by_key == {
                key: held[1] for key, held in model.items() if held[1]
            }
            assert len(tables) == len(model)


async def test_a_full_disk_ends_the_run_and_keeps_the_last_flush(tmp_path: Path) -> None:
    async def fill(tables: Tables) -> None:
        tables.put(b"kept", record(b"1"))
        tables.advance(320, 1)
        await tables.flush()
        with files_limited_to(1 << 20):
            for i in range(1000):
                tables.put(b"lost%d" % i, record(bytes(4000)))
            tables.advance(640, 2)
            await tables.flush()

    tables = Tables.open(tmp_path, cluster="test", member_id=1)
    with pytest.RaisesGroup(StoreFullError, StorageError, flatten_subgroups=True):
        async with running(tables), trio.open_nursery() as nursery:
            nursery.start_soon(fill, tables)
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, contents(again)) == (320, {b"kept": b"1"})
