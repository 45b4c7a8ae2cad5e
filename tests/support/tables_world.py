"""Running tables, and their contents."""

from collections.abc import Callable, Sequence
from pathlib import Path

from quorate.storage.tables.memtable import Record
from quorate.storage.tables.tables import FLUSH_BYTES, FlushJob, Tables
from quorate.storage.testing import InlineExecutor
from quorate.storage.writing.executor import nothing

CLUSTER = "test"


class Disk:
    """An executor factory for virtual time: the last executor made can lose its power."""

    def __init__(self, latency: float = 0.0) -> None:
        self.latency = latency
        self.executor: InlineExecutor[FlushJob] | None = None

    def __call__(
        self,
        write: Callable[[Sequence[FlushJob]], None],
        *,
        delivered: Callable[[], None],
        idle: Callable[[], None] = nothing,
    ) -> InlineExecutor[FlushJob]:
        self.executor = InlineExecutor(write, delivered=delivered, idle=idle, latency=self.latency)
        return self.executor

    def cut_power(self) -> None:
        assert self.executor is not None
        self.executor.cut_power()


def record(value: bytes, expires_at_ms: int = 0) -> Record:
    return value, expires_at_ms, 7, 1


def open_tables(
    directory: Path,
    disk: Disk | None = None,
    *,
    flush_bytes: int = FLUSH_BYTES,
    map_bytes: int = 16 << 20,
) -> Tables:
    return Tables.open(
        directory,
        cluster=CLUSTER,
        member_id=1,
        executor=disk or Disk(),
        flush_bytes=flush_bytes,
        map_bytes=map_bytes,
    )


def contents(tables: Tables) -> dict[bytes, bytes]:
    """Return everything in the tables, read in small pages; each key must appear once."""
    found: list[bytes] = []
    place: bytes | None = b""
    while place is not None:
        keys, place = tables.page(place, 3)
        found += keys
    assert len(found) == len(set(found))
    values = {key: tables.get(key) for key in found}
    return {key: held[0] for key, held in values.items() if held is not None}
