"""The disk of a simulated machine: slow, stalled, full, failing, and without power.

The stores on it are the real ones, in LMDB in a folder. Only three things are simulated: when a
write becomes durable, whether it fails, and what a power cut leaves of it. So no second model of a
store has to be trusted. The contract tests of the executor and of the store run on this disk too.

LMDB commits in two steps. It writes the pages of the transaction into free places of the file and
syncs; then it writes the new root into one of two small headers and syncs again. The journal of a
store writes a group in its place and syncs. A power cut during a write has three outcomes
(:class:`Fate`):

- nothing of the write is there;
- the write is there, although its sync was never reported;
- some of its pages are there, but not LMDB's header: a torn batch, which the next start must not
  see.

All three are made for real, the last one by joining pages from before and after the write.

A simulated disk never forgets a write that it reported durable (a drive that lies), and never
reorders commits.
"""

from __future__ import annotations

import enum
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...storage import Job
from ...storage.lmdb.environment import Environment
from ...storage.log.founding import nothing_to_make
from ...storage.log.journal import JOURNAL_FILE
from ...storage.log.recorder import carry_over
from ...storage.rows.databases import MAX_DBS, Databases
from ...storage.rows.meta_rows import load_identity
from ...storage.testing import InlineExecutor
from ...storage.writing.executor import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random
    from typing import Protocol

    from ...storage import Executor

    class LaneFactory(Protocol):
        """Makes the executor of one store; fits the stores' own factories."""

        def __call__(
            self,
            write: Callable[[Sequence[J]], None],
            *,
            delivered: Callable[[], None] = ...,
            idle: Callable[[], None] = ...,
        ) -> Executor[J]:
            """Return an executor that hands groups to `write`."""
            ...


PLENTY: Final = 1 << 50
DATA_FILE: Final = "data.mdb"
HEADER_PAGES: Final = 2
SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096

J = TypeVar("J", bound=Job)
T = TypeVar("T")


class Fate(enum.Enum):
    """What a power cut leaves of the write that is under way."""

    LOST = "lost"
    WRITTEN = "written"
    TORN = "torn"


class Disk:
    """One disk, with a lane for each store on it.

    Args:
        rng: how long each write takes, and what tears.
        latency: seconds that a write takes at least.
        jitter: seconds that it takes longer, at most.

    Attributes:
        writes: how many groups were written.
        errors: raised by the next writes, oldest first. The flag says whether the bytes are written
            before the error is raised.
        room: bytes that are free, as the system says.
        full: raised by every write until it is None again.
    """

    def __init__(self, rng: Random, latency: float = 0.001, jitter: float = 0.0) -> None:
        self.rng = rng
        self.latency = latency
        self.jitter = jitter
        self.writes = 0
        self.room = PLENTY
        self.errors: list[tuple[Exception, bool]] = []
        self.full: Exception | None = None
        self._stalled_until = 0.0
        self._mended = trio.Event()
        self._lanes: list[Lane[Job]] = []

    def lane(self, directory: Path) -> LaneFactory:
        """Give what makes the executor of the store in a folder, for one life of the machine."""

        def make(
            write: Callable[[Sequence[J]], None],
            *,
            delivered: Callable[[], None] = nothing,
            idle: Callable[[], None] = nothing,
        ) -> Lane[J]:
            made = Lane(self, directory, write, delivered, idle)
            self._lanes.append(made)  # type: ignore[arg-type]
            return made

        return make

    def stall(self, seconds: float) -> None:
        """Complete no write for that long."""
        self._stalled_until = max(self._stalled_until, trio.current_time() + seconds)

    def mend(self) -> None:
        """Take away what was done to it: stalls, errors, fullness, want of room."""
        self._stalled_until, self.full, self.room = 0.0, None, PLENTY
        self._mended.set()
        self._mended = trio.Event()
        self.errors.clear()

    async def turn(self) -> None:
        """Wait as long as one write takes."""
        await trio.sleep(self.latency + self.rng.uniform(0.0, self.jitter))
        while (until := self._stalled_until) > trio.current_time():
            with trio.move_on_at(until):
                await self._mended.wait()

    def cut_power(self, fate: Fate = Fate.LOST) -> None:
        """Write nothing more; what is under way has this fate. Then stop what runs on it."""
        for lane in self._lanes:
            lane.cut_power(fate)

    def settle(self) -> None:
        """Put the files into the state that the power cut has left, once the stores are closed."""
        for lane in self._lanes:
            lane.settle()
        self._lanes.clear()


class Lane(InlineExecutor[J]):
    """The executor of one store; see `storage.Executor`. Made by `Disk.lane`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        write: Callable[[Sequence[J]], None],
        delivered: Callable[[], None],
        idle: Callable[[], None],
    ) -> None:
        super().__init__(self._try, delivered=delivered, idle=idle)
        self._disk = disk
        self._directory = directory
        self._commit = write
        self._under_way = 0
        self._torn: dict[str, bytes] = {}

    async def _turn(self, size: int) -> None:
        self._under_way = size
        await self._disk.turn()

    def cut_power(self, fate: Fate = Fate.LOST) -> None:
        """See `Disk.cut_power`."""
        if self._ended:
            return
        group = self._waiting[: self._under_way]
        super().cut_power()
        if group and fate is not Fate.LOST:
            before = self._files()
            self._commit(group)
            if fate is Fate.TORN:
                after, rng = self._files(), self._disk.rng
                if before[DATA_FILE] != after[DATA_FILE]:
                    self._torn[DATA_FILE] = torn(before[DATA_FILE], after[DATA_FILE], rng)
                old = before.get(JOURNAL_FILE, b"")
                if old != after.get(JOURNAL_FILE, b""):
                    self._torn[JOURNAL_FILE] = torn_journal(old, after[JOURNAL_FILE], rng)

    def settle(self) -> None:
        """See `Disk.settle`."""
        for name, content in self._torn.items():
            (self._directory / name).write_bytes(content)
        self._torn.clear()

    def _files(self) -> dict[str, bytes]:
        paths = {name: self._directory / name for name in (DATA_FILE, JOURNAL_FILE)}
        return {name: path.read_bytes() for name, path in paths.items() if path.exists()}

    def _try(self, group: Sequence[J]) -> None:
        disk, self._under_way = self._disk, 0
        disk.writes += 1
        if disk.full is not None:
            raise disk.full
        if disk.errors:
            error, after = disk.errors.pop(0)
            if after:
                self._commit(group)
            raise error
        self._commit(group)


def torn(before: bytes, after: bytes, rng: Random) -> bytes:
    """Put a file together from before and after a write: some new pages, and the old headers."""
    size = max(len(before), len(after))
    old, new = before.ljust(size, b"\0"), after.ljust(size, b"\0")
    pages: list[bytes] = []
    for at in range(0, size, PAGE_BYTES):
        newer = at >= HEADER_PAGES * PAGE_BYTES and rng.random() < 0.5
        pages.append((new if newer else old)[at : at + PAGE_BYTES])
    whole = b"".join(pages)
    return whole if rng.random() < 0.5 else whole[: len(before)]


def torn_journal(before: bytes, after: bytes, rng: Random) -> bytes:
    """Put a journal together from before and after a write: some of the new sectors, not all."""
    before = before.ljust(len(after), b"\0")
    places = [slice(at, at + SECTOR_BYTES) for at in range(0, len(after), SECTOR_BYTES)]
    changed = [place for place in places if before[place] != after[place]]
    found = bytearray(before)
    for place in rng.sample(changed, rng.randrange(max(len(changed), 1))):
        found[place] = after[place]
    return bytes(found)


def rot(directory: Path, record: bytes, rng: Random) -> int:
    """Flip one bit in every copy of a recorded batch that LMDB has; return in how many.

    The journal is left alone. It holds only the end of the log, and damage in its last group looks
    the same as a group torn by a power cut. Free pages of LMDB may hold stale copies, which are
    flipped too. An open store sees the change at once, since it maps the file.

    Args:
        directory: of a store.
        record: the batch as it was recorded.
        rng: which bit.
    """
    path = directory / DATA_FILE
    data = path.read_bytes()
    bit = rng.randrange(8 * len(record))
    found, at = 0, data.find(record)
    with path.open("r+b", buffering=0) as file:
        while at >= 0:
            place = at + bit // 8
            file.seek(place)
            file.write(bytes([data[place] ^ (1 << bit % 8)]))
            found += 1
            at = data.find(record, at + 1)
    return found


def carry_over_journal(directory: Path) -> None:
    """Have LMDB get what the journal of a closed store holds, as at its next start.

    Call it before damaging batches in LMDB.
    """
    environment = Environment.open(directory, max_dbs=MAX_DBS, initialise=nothing_to_make)
    with closing(environment):
        dbs = environment.databases(Databases)
        identity = environment.read(lambda txn: load_identity(txn, dbs))
        carry_over(environment, dbs, identity, peers=False)
