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
from typing import Final, Protocol, TypeAlias, TypeVar

import trio

from ...node.one_error import one_error
from ...node.readers.history import AppliedBatch, Beginning
from ..service import KeyValueService
from ..state.changes import PAGE_CHANGES, Change

__all__ = ["History", "Page", "remove", "replay"]

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""How long a replay applies before it rests for as long. Longer: heartbeats and requests wait for
it. Shorter: it rests less than it means to, since a timer has about a millisecond."""

PAGE_BYTES: Final = 1 << 20
"""Bytes of values after which a page is full, however few its changes are. More: memory for a slow
watch. Less: nothing but more pages."""

Page: TypeAlias = tuple[list[Change], int]
"""Changes of whole log entries, and the position up to which there are no others."""


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
) -> None:
    """Replay once, until the maker of pages has enough.

    Args:
        history: of the member.
        make: opens a service with empty tables in a directory.
        directory: that of the replay; it is removed before and after.
        page_maker: takes the changes.

    Raises:
        PrunedError: the log or the snapshots do not reach back so far, or were dropped meanwhile.
        StorageError: something of it can't be read, or the disk is too full.
    """
    history.check_room()
    service = await _open(history, make, directory)
    try:
        async with _running(service):
            await _apply(history, service, page_maker)
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


async def _apply(history: History, service: KeyValueService, pages: "Pages") -> None:
    async with history.beginning(pages.position) as begin:
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
                await turn.rest_if_over()
            position = batch.header.end
            service.advance(position, batch.header.timestamp_ms)
            if position > pages.position:
                # All of them: these keep a batch whole, however many changes it has.
                await pages.add(service.changes.after(pages.position, pages.prefix), position)
            await turn.rest_if_over()
        await pages.flush()


class Pages:
    """Gathers changes into pages.

    Args:
        position: everything up to here is known already.
        prefix: of the keys.
        deliver: takes a page.
        covered: says of a position whether the changes behind it can be had elsewhere.

    Attributes:
        position: everything up to here was added.
    """

    def __init__(
        self,
        position: int,
        prefix: bytes,
        deliver: Callable[[Page], Awaitable[None]],
        covered: Callable[[int], bool],
    ) -> None:
        self.position = position
        self.prefix = prefix
        self._deliver = deliver
        self._covered = covered
        self._changes: list[Change] = []
        self._bytes = 0
        self._delivered = position

    @property
    def enough(self) -> bool:
        """Whether no more is needed."""
        return self._covered(self.position)

    async def add(self, changes: list[Change], position: int) -> None:
        """Add the changes of a batch, which ends at a position."""
        self._changes += changes
        self._bytes += sum(len(change.value or b"") for change in changes)
        self.position = position
        if len(self._changes) >= PAGE_CHANGES or self._bytes >= PAGE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Deliver what is there."""
        if self.position > self._delivered:
            page = self._changes, self.position
            self._changes, self._bytes, self._delivered = [], 0, self.position
            await self._deliver(page)


class _Turn:
    """Counts the time that a replay takes from the event loop."""

    def __init__(self) -> None:
        self._began = trio.current_time()

    async def rest_if_over(self) -> None:
        """Rest if the slice is over."""
        took = trio.current_time() - self._began
        if took >= SLICE_SECONDS:
            await trio.sleep(took)
            self._began = trio.current_time()


def remove(directory: Path) -> None:
    """Remove a directory, if it is there; blocks."""
    if directory.exists():
        shutil.rmtree(directory)
