"""A replay: the changes of before, made once more from a snapshot and the log.

A second service starts from the newest snapshot at or below the wanted position, in a directory of
its own, and applies the log. It makes the same changes at the same positions as the first one did,
with the values that keys had then. The directory is removed at the end.

It shares processor and disk with the member. So it applies for one slice of time, and then rests
for as long; and it ends if the disk gets too full.
"""

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from ...node.one_error import one_error
from ...node.readers.history import AppliedBatch, Beginning
from ..service import KeyValueService
from ..state.changes import PAGE_BYTES, PAGE_CHANGES, Row, position_of

__all__ = ["History", "Pages", "remove", "replay"]

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""How long a replay applies before it rests for as long. Longer: heartbeats and requests wait for
it. Shorter: it rests less than it means to, since a timer has about a millisecond."""

LONGEST_REST_SECONDS: Final = 0.2
"""How long it rests at most. Longer: it also rests for the time in which a watch was slow."""


class History(Protocol):
    """What a replay needs of its member; see `node.readers.history.History`."""

    @property
    def oldest(self) -> int:
        """The oldest position that `beginning` may be asked for."""
        ...

    def beginning(self, position: int, /) -> AbstractAsyncContextManager[Beginning]:
        """Open the newest state at or below a position."""
        ...

    async def batches(self, position: int, /) -> list[AppliedBatch]:
        """Read some applied batches from a position on; none if there are no more."""
        ...

    def check_room(self) -> None:
        """Raise `StoreFullError` if too little of the disk is free."""
        ...

    async def read(self, fn: Callable[[], T], /) -> T:
        """Call a function that blocks on files, without blocking the event loop."""
        ...


async def replay(
    history: History,
    make: Callable[[Path], KeyValueService],
    directory: Path,
    page_maker: "Pages",
    *,
    shift: int = 0,
) -> None:
    """Replay once, until the maker of pages has enough.

    Args:
        history: of the member.
        make: opens a service with empty tables in a directory.
        directory: that of the replay; it is removed before and after.
        page_maker: takes the changes.
        shift: how far its positions may be above those of the log.

    Raises:
        PrunedError: the log or the snapshots do not reach back so far, or were dropped meanwhile.
        StorageError: something of it can't be read, or the disk is too full.
    """
    history.check_room()
    service = await _open(history, make, directory)
    try:
        async with _running(service):
            await _apply(history, service, page_maker, shift)
    finally:
        service.close()
        with trio.CancelScope(shield=True):
            await history.read(partial(remove, directory))


async def _open(
    history: History, make: Callable[[Path], KeyValueService], directory: Path
) -> KeyValueService:
    # Shielded: what a thread has opened must be closed.
    with trio.CancelScope(shield=True):
        await history.read(partial(remove, directory))
        return await history.read(partial(make, directory))
    raise AssertionError  # pragma: no cover - nothing cancels the scope


@one_error
@asynccontextmanager
async def _running(service: KeyValueService) -> AsyncGenerator[None, None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield
        nursery.cancel_scope.cancel()


async def _apply(history: History, service: KeyValueService, pages: "Pages", shift: int) -> None:
    # Perhaps further back than it must: entries before the last move have got a smaller shift.
    async with history.beginning(max(pages.position - shift, 0)) as begin:
        if begin.pieces is not None:
            service.put_off(wanted=True)  # so that it rests while it loads
            await service.load(begin.pieces, begin.position, begin.timestamp_ms)
            service.put_off(wanted=False)
    position, turn = begin.position, _Turn()
    while not pages.enough and (batches := await history.batches(position)):
        history.check_room()
        for batch in batches:
            for command in batch.commands():
                service.apply(command)
                # Entry by entry: a batch may make more than fits into memory.
                await pages.add(service.changes.take())
                await turn.rest_if_over()
            position = batch.header.end
            service.advance(position, batch.header.timestamp_ms)
            await pages.add(service.changes.take())
            pages.position = max(pages.position, service.changes.position)
            await turn.rest_if_over()
        await pages.flush()


class Pages:
    """Gathers changes into pages.

    Args:
        position: everything up to here is known already.
        deliver: takes a page: rows of whole entries, and the position up to which there are no
            others.
        covered: says of a position whether the changes behind it can be had elsewhere.

    Attributes:
        position: everything up to here was added.
    """

    def __init__(
        self,
        position: int,
        deliver: Callable[[list[Row], int], Awaitable[None]],
        covered: Callable[[int], bool],
    ) -> None:
        self.position = position
        self._deliver = deliver
        self._covered = covered
        self._rows: list[Row] = []
        self._bytes = 0
        self._delivered = position

    @property
    def enough(self) -> bool:
        """Whether no more is needed."""
        return self._covered(self.position)

    async def add(self, rows: list[Row]) -> None:
        """Add the changes of an entry, which has one position, or none."""
        if not rows or position_of(rows[0]) <= self.position:
            return
        self._rows += rows
        self._bytes += sum(len(key) + len(record[0]) for key, record in rows)
        self.position = position_of(rows[0])
        if len(self._rows) >= PAGE_CHANGES or self._bytes >= PAGE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Deliver what is there."""
        if self.position > self._delivered:
            rows, self._rows, self._bytes, self._delivered = self._rows, [], 0, self.position
            await self._deliver(rows, self.position)


class _Turn:
    """Counts the time that a replay takes from the event loop."""

    def __init__(self) -> None:
        self._began = trio.current_time()

    async def rest_if_over(self) -> None:
        """Rest if the slice is over."""
        took = trio.current_time() - self._began
        if took >= SLICE_SECONDS:
            await trio.sleep(min(took, LONGEST_REST_SECONDS))
            self._began = trio.current_time()


def remove(directory: Path) -> None:
    """Remove a directory, if it is there; blocks."""
    if directory.exists():
        shutil.rmtree(directory)
