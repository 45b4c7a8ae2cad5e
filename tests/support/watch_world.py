"""A service over a log of real batches, and the history that a member would keep of it."""

import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from quorate.errors import PrunedError
from quorate.keyvalue.programs.watch import LocalWatches, Watch
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.state.changes import Change
from quorate.keyvalue.watches.replays import Replays
from quorate.node.readers.history import AppliedBatch, Beginning
from quorate.storage import Entry, EntryKind, decode_header_untrusted, encode_batch
from tests.support.service_world import START_MS, encode, open_service

T = TypeVar("T")


class KeptHistory:
    """A log in a list, and snapshots of the service that it feeds.

    Attributes:
        begun: the positions of the states that replays have started from.
        trouble: raised by the next look at the disk's room.
    """

    def __init__(self, service: KeyValueService) -> None:
        self.service = service
        self.position = 0
        self.now = START_MS
        self.start = 0
        self.log: list[AppliedBatch] = []
        self.snapshots: list[Beginning] = []
        self.begun: list[int] = []
        self.trouble: Exception | None = None

    # --- what the member does

    def batch(self, *entries: str | list[str], ms: int = 1) -> None:
        """Apply a batch, each entry with one command or a list of them, after some time."""
        self.now += ms
        lines = [entry if isinstance(entry, list) else [entry] for entry in entries]
        data = encode_batch(
            [Entry(EntryKind.COMMAND, encode(*each)) for each in lines],
            term=1,
            position=self.position,
            timestamp_ms=self.now,
            commit_position=0,
        )
        batch = AppliedBatch(decode_header_untrusted(data), data)
        self.log.append(batch)
        self.position = batch.header.end
        feed(self.service, batch)

    async def snapshot(self) -> None:
        pieces = list(await self.service.save())
        self.snapshots.append(Beginning(self.position, self.now, iter(pieces)))

    def prune(self, start: int) -> None:
        """Drop the log and the snapshots before a position."""
        self.start = start
        self.log = [batch for batch in self.log if batch.header.position >= start]
        self.snapshots = [each for each in self.snapshots if each.position >= start]

    # --- what `History` does

    @property
    def oldest(self) -> int:
        if self.start == 0:
            return 0
        return min((each.position for each in self.snapshots), default=self.position)

    @asynccontextmanager
    async def beginning(self, position: int) -> AsyncGenerator[Beginning]:
        await trio.lowlevel.checkpoint()
        fitting = [each for each in self.snapshots if each.position <= position]
        if not fitting and self.start:
            raise PrunedError("pruned")
        chosen = fitting[-1] if fitting else Beginning(0, 0, None)
        self.begun.append(chosen.position)
        yield attrs.evolve(chosen, pieces=self._again(chosen)) if fitting else chosen

    def _again(self, chosen: Beginning) -> Iterator[bytes]:
        pieces = list(chosen.pieces or ())
        self.snapshots = [
            attrs.evolve(each, pieces=iter(pieces)) if each is chosen else each
            for each in self.snapshots
        ]
        return iter(pieces)

    async def batches(self, position: int) -> list[AppliedBatch]:
        await trio.lowlevel.checkpoint()
        if position < self.start:
            raise PrunedError("pruned")
        return [batch for batch in self.log if batch.header.position >= position][:7]

    def check_room(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    async def read(self, fn: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return fn()


def feed(service: KeyValueService, batch: AppliedBatch) -> None:
    """Apply a batch as a member does."""
    for command in batch.commands():
        service.apply(command)
    service.advance(batch.header.end, batch.header.timestamp_ms)


@attrs.frozen(eq=False)
class WatchWorld:
    """A running service, its history, and watches of it.

    Args:
        kept: its history.
        watches: makes watches.
        replays: for older changes.
        directory: of the replays.
    """

    kept: KeptHistory
    watches: LocalWatches
    replays: Replays
    directory: Path

    def forget(self) -> None:
        """Drop the changes in memory, as a restart of the member does."""
        self.kept.service.changes.restart(self.kept.position)

    async def all_after(self, after: int, prefix: bytes = b"") -> list[Change]:
        """Return all changes after a position, by a new watch."""
        async with self.watches.watch(prefix, after) as watch:
            return await gathered(watch, self.kept.position)


async def gathered(watch: Watch, position: int) -> list[Change]:
    """Return what a watch returns up to a position."""
    found: list[Change] = []

    async def read() -> None:
        async for change in watch:
            found.append(change)  # noqa: PERF401 - this never ends

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with trio.fail_after(1000):
            while watch.position < position:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return found


@asynccontextmanager
async def watch_world(directory: Path) -> AsyncGenerator[WatchWorld]:
    """Run a service with watches for the length of the block."""
    service = open_service(directory / "tables")
    kept, place = KeptHistory(service), directory / "replay"
    replays = Replays(kept, service.changes, place, open_service)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            await nursery.start(replays.run)
            yield WatchWorld(kept, LocalWatches(service.changes, replays), replays, place)
            nursery.cancel_scope.cancel()
    finally:
        service.close()


def some_batches(kept: KeptHistory, rng: random.Random, count: int) -> None:
    """Apply batches of all kinds of changes."""
    keys = [f"k{i}" for i in range(12)]
    for _ in range(count):
        entries: list[str | list[str]] = []
        for _ in range(rng.randrange(4)):
            lines: list[str] = []
            for _ in range(rng.randrange(1, 4)):
                key, other = rng.sample(keys, 2)
                line = rng.choice(
                    (
                        f"SET {key} {rng.getrandbits(16)}",
                        f"SET {key} 1 PX {rng.choice((2, 20, 200))}",
                        f"INCR {key}",
                        f"APPEND {key} 0",
                        f"PEXPIRE {key} {rng.choice((2, 20, 200))}",
                        f"DEL {key} {other}",
                        f"RENAME {key} {other}",
                        f"MSET {key} 1 {other} 2",
                        f"QUORATE.CAS {key} ABSENT SET 7 PX 9",
                    )
                )
                lines.append("FLUSHALL" if rng.random() < 0.01 else line)
            entries.append(lines)
        kept.batch(*entries, ms=rng.choice((0, 1, 5, 50)))
