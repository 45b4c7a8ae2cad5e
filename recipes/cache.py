"""A copy in memory of all keys with a prefix, kept current by a watch.

Programs read their configuration far more often than anybody changes it. With a cached prefix a
read is a look into a dictionary, and a change arrives by itself.

How it begins
    The watch begins first, then the keys are read with the revision of each. So nothing is missed
    in between. A change that the watch returns and the reading has seen already is recognised by
    its position: it is not above the revision of the key.

What is promised
    Every write that ended before the block began is in the copy. Each key only moves forward, and
    the changes of one log entry arrive together. The copy may lag behind the cluster: by the way of
    a message usually, by an outage at worst. Decisions that must not rest on an old value need a
    read of the store, or a transaction.

What ends a watch
    If no member can be reached the copy stays as it was, and the watch resumes at its place once a
    member answers. If the changes since then are no longer kept, all keys are read again, and the
    copy is replaced in one step.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Never

import anyio

from ..errors import NoLeaderError, RefusedError, UnknownOutcomeError, WatchLostError
from ..keyvalue.protocol.resp import word_of
from ..keyvalue.retry import Retry
from ..keyvalue.state.changes import ChangeKind
from .background import alongside
from .reading import read_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, ItemsView, Iterator, Sequence

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.encoding import Text
    from ..keyvalue.programs.records import Record
    from ..keyvalue.programs.watch import Watch
    from ..keyvalue.state.changes import Change

__all__ = ["Cache", "cached"]


class Cache:
    """The keys with a prefix and their values; made by :func:`cached`.

    Keys are without the prefix. Text is accepted for a key and encoded as UTF-8; keys and values
    that are returned are bytes.

    Attributes:
        position: the log position of the latest change that is in the copy.
    """

    def __init__(self, kv: KeyValue, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix
        self._values: dict[bytes, bytes] = {}
        self._revisions: dict[bytes, int] = {}
        self._moved = anyio.Event()
        self.position = -1

    def __repr__(self) -> str:
        return f"<Cache of {self._prefix!r}: {len(self)} keys at position {self.position}>"

    def __getitem__(self, key: Text) -> bytes:
        return self._values[word_of(key, "key")]

    def get(self, key: Text, default: bytes | None = None) -> bytes | None:
        """Return the value of a key; `default` if the key does not exist."""
        return self._values.get(word_of(key, "key"), default)

    def revision_of(self, key: Text) -> int:
        """Return the log position that has set the value of a key; -1 if it does not exist."""
        return self._revisions.get(self._prefix + word_of(key, "key"), -1)

    def __contains__(self, key: Text) -> bool:
        return word_of(key, "key") in self._values

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[bytes, bytes]:
        """Return the keys and values; the view changes with the copy."""
        return self._values.items()

    async def changed(self, after: int | None = None) -> int:
        """Wait until the copy has a change after a position.

        A program that does something with the copy, and must not miss what changes meanwhile,
        notes the position first::

            while True:
                position = cache.position
                await configure(cache)
                await cache.changed(position)

        Args:
            after: a log position; None for that of the copy now.

        Returns:
            The position of the latest change.
        """
        place = self.position if after is None else after
        while self.position <= place:
            await self._moved.wait()
        return self.position

    async def begin(self, after: int | None) -> Watch:
        """Begin a watch after a position; None to read all keys, too."""
        watch = self._kv.watch(self._prefix, after=after)
        try:
            await watch.__aenter__()
            if after is None:
                self._replace(await read_all(self._kv, self._prefix), watch.position)
        except BaseException:
            await _close(watch)
            raise
        return watch

    async def follow(self, watch: Watch) -> None:
        """Keep the copy current until cancelled, with this watch and those that replace it."""
        while True:
            after = await self._take_all(watch)
            watch = await self._begin_again(after)

    async def _take_all(self, watch: Watch) -> int | None:
        """Take changes until the watch ends; return where the next one begins, None for now."""
        try:
            await self._take(watch)
        except WatchLostError as error:
            return error.after if error.oldest <= error.after else None
        except (NoLeaderError, UnknownOutcomeError):
            return watch.position
        finally:
            await _close(watch)

    async def _take(self, watch: Watch) -> Never:
        """Take the changes of a watch into the copy, one log entry after the other."""
        entry: list[Change] = []
        while True:
            entry.append(await anext(watch))
            if not entry[-1].more:
                self._apply(entry)
                entry.clear()

    async def _begin_again(self, after: int | None) -> Watch:
        retry = Retry(anyio.current_time, math.inf)
        while True:
            # The pause comes first: a watch that is lost again at once must not keep members busy.
            await anyio.sleep(retry.pause_s() or 0.0)
            try:
                return await self.begin(after)
            except (WatchLostError, RefusedError):  # or the log ends earlier: a restored cluster
                after = None
            except (NoLeaderError, UnknownOutcomeError):
                continue

    def _apply(self, entry: Sequence[Change]) -> None:
        """Take over the changes of one log entry, except those that were read already."""
        any_new = False
        for position, kind, key, value, _, _ in entry:
            if kind is ChangeKind.FLUSHED:
                gone = [one for one, revision in self._revisions.items() if revision < position]
            elif position <= self._revisions.get(key, -1):
                continue
            else:
                gone = [key] if value is None and key in self._revisions else []
            for one in gone:
                del self._values[one[len(self._prefix) :]], self._revisions[one]
            if value is not None:
                self._values[key[len(self._prefix) :]], self._revisions[key] = value, position
            any_new |= bool(gone) or value is not None
        if any_new:
            self._move_to(entry[-1].position)

    def _replace(self, records: dict[bytes, Record], position: int) -> None:
        """Replace the whole copy by what was read after a position."""
        before = self._values
        self._values = {key[len(self._prefix) :]: record.value for key, record in records.items()}
        self._revisions = {key: record.revision for key, record in records.items()}
        if self._values != before or self.position < 0:
            self._move_to(max(position, *self._revisions.values(), 0))

    def _move_to(self, position: int) -> None:
        self.position = max(position, self.position)
        self._moved.set()
        self._moved = anyio.Event()


@asynccontextmanager
async def cached(kv: KeyValue, prefix: Text = b"") -> AsyncGenerator[Cache]:
    """Keep a copy of all keys with a prefix for the length of the block.

    All of them are in memory: this is for configurations and for lists of services, up to some
    thousand keys.

    Args:
        kv: the store.
        prefix: of the keys.

    Raises:
        RequestError: the keys can't be read. Later, in the block, only errors that a repeat does
            not help against end it: :class:`~quorate.errors.KeyValueError` if this user may not
            watch the prefix any more.
    """
    cache = Cache(kv, word_of(prefix, "prefix"))
    watch = await cache.begin(None)
    failures: list[Exception] = []

    async def follow() -> None:
        try:
            await cache.follow(watch)
        except Exception as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
            block.cancel()

    with anyio.CancelScope() as block:
        async with alongside(follow):
            yield cache
    for error in failures:
        raise error


async def _close(watch: Watch) -> None:
    with anyio.CancelScope(shield=True):
        await watch.aclose()
