"""A copy in memory of all keys with a prefix, kept current by a watch.

Programs read their configuration far more often than anybody changes it. With a cached prefix a
read is a look into a dictionary, and a change arrives by itself.

How it begins
    The watch begins first. Then the keys are read, at different points of the log. Then the changes
    are taken that the watch returns up to a position that is read last. Whatever a key had when it
    was read, it now has what its last change up to there has given it, and a key without a change
    had that all the time. So the copy is the store at one position before anybody sees it.

    A member reports to a client every 5 s how far an idle watch is. If others write while the keys
    are read, and not to these keys, the beginning takes so long.

What is promised
    The copy is what the store had at one position of the log, and that position only rises. Every
    write that ended before the block began is in it. The copy may lag behind the cluster: by the
    way of a message usually, by an outage at worst. Decisions that must not rest on an old value
    need a read of the store, or a transaction.

What ends a watch
    If no member can be reached the copy stays as it was, and the watch resumes at its place once a
    member answers. If the changes since then are no longer kept, all keys are read again, and the
    copy is replaced in one step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Never, TypeVar, cast, overload

import anyio

from ..errors import NoLeaderError, RefusedError, UnknownOutcomeError, WatchLostError
from ..keyvalue.protocol.resp import word_of
from ..keyvalue.retry import Retry
from ..keyvalue.state.changes import ChangeKind
from .arguments import check_store
from .background import alongside
from .waiting import close_watch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.encoding import Text
    from ..keyvalue.programs.watch import Watch
    from ..keyvalue.state.changes import Change

__all__ = ["Cache", "cached"]

T = TypeVar("T")

_SPECIAL: Final = re.compile(rb"[*?\[\]\\^]")

_LOOK_S: Final = 0.02
"""While a copy begins it looks so often how far its watch is. Shorter, and it keeps the processor
busy; longer, and each copy begins later."""


class Cache(Mapping[bytes, bytes]):
    """The keys with a prefix and their values, as a mapping that only reads; made by `cached`.

    Keys are without the prefix. Text is accepted for a key and encoded as UTF-8; keys and values
    that are returned are bytes. After the block of `cached` all of it raises `RuntimeError`.
    """

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def __repr__(self) -> str:
        return repr(self._copy)

    def __getitem__(self, key: Text) -> bytes:
        return self._copy.now()[word_of(key, "key")]

    @overload
    def get(self, key: Text, default: None = None, /) -> bytes | None: ...
    @overload
    def get(self, key: Text, default: bytes | T, /) -> bytes | T: ...
    def get(self, key: Text, default: bytes | T | None = None, /) -> bytes | T | None:
        """Return the value of a key; `default` if the key does not exist."""
        return self._copy.now().get(word_of(key, "key"), default)

    def revision_of(self, key: Text) -> int:
        """Return the log position that has set the value of a key; -1 if it does not exist."""
        self._copy.now()
        return self._copy.revisions.get(word_of(key, "key"), -1)

    def __contains__(self, key: object) -> bool:
        return word_of(cast("Text", key), "key") in self._copy.now()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._copy.now())

    def __len__(self) -> int:
        return len(self._copy.now())

    @property
    def position(self) -> int:
        """The log position of the latest change that is in the copy."""
        self._copy.now()
        return self._copy.position

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

        Raises:
            RuntimeError: the block of `cached` ends, or has ended.
        """
        place = self.position if after is None else after
        while self.position <= place:
            await self._copy.moved.wait()
        return self.position


class Copy:
    """The copy behind a `Cache`, and the task that keeps it current.

    Attributes:
        revisions: the log position that has set each key.
        position: the log position of the latest change.
        moved: set by the next change, or at the end.
    """

    def __init__(self, kv: KeyValue, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix
        self._values: dict[bytes, bytes] = {}
        self._ended = False
        self.revisions: dict[bytes, int] = {}
        self.moved = anyio.Event()
        self.position = -1

    def __repr__(self) -> str:
        how = "ended" if self._ended else f"{len(self._values)} keys at position {self.position}"
        return f"<Cache of {self._prefix!r}: {how}>"

    def now(self) -> dict[bytes, bytes]:
        """Return the keys without the prefix, and their values.

        Raises:
            RuntimeError: nothing keeps them current any more.
        """
        if self._ended:
            raise RuntimeError(
                f"the cache of {self._prefix!r} has ended: use it inside of its async with"
            )
        return self._values

    def end(self) -> None:
        """Refuse to be read from now on."""
        self._ended = True
        self.moved.set()

    async def begin(self, after: int | None) -> Watch:
        """Begin a watch after a position; None to read all keys, too."""
        watch = self._kv.watch(self._prefix, after=after)
        try:
            await watch.__aenter__()
            if after is None:
                fresh = Copy(self._kv, self._prefix)
                await fresh._read()
                await fresh._catch_up(watch)
                self._replace(fresh, watch.position)
        except BaseException:
            await close_watch(watch)
            raise
        return watch

    async def _read(self) -> None:
        """Read all keys; what changes during that may be in it or not."""
        pattern = _SPECIAL.sub(rb"\\\g<0>", self._prefix) + b"*"
        keys = {key: None async for key in self._kv.scan(pattern)}  # some may come twice
        for key, record in zip(keys, await self._kv.records(keys), strict=True):
            if record is not None:
                self._set(key, record.value, record.revision)

    async def _catch_up(self, watch: Watch) -> None:
        """Take the changes of a watch that has begun before all keys were read."""
        end = await self._kv.position(self._prefix)

        async def look() -> None:
            # Without changes the position rises while the watch waits.
            while watch.position < end:  # noqa: ASYNC110 - nobody says so
                await anyio.sleep(_LOOK_S)
            taking.cancel()

        # Only once: a watch that is looking for a member would begin again each time.
        with anyio.CancelScope() as taking:
            async with alongside(look):
                await self._take(watch)

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
            await close_watch(watch)

    async def _take(self, watch: Watch) -> Never:
        """Take the changes of a watch into the copy, whole log entries at a time."""
        while True:
            self._apply(await watch.entries())

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

    def _apply(self, changes: Sequence[Change]) -> None:
        """Take over the changes of some log entries."""
        any_new = False
        for position, kind, key, value, _, _ in changes:
            if value is not None:
                self._set(key, value, position)
                any_new = True
                continue
            names = [*self._values] if kind is ChangeKind.FLUSHED else [key[len(self._prefix) :]]
            for name in names:
                any_new |= self._values.pop(name, None) is not None
                self.revisions.pop(name, None)
        if any_new:
            self._move_to(changes[-1].position)

    def _set(self, key: bytes, value: bytes, revision: int) -> None:
        name = key[len(self._prefix) :]
        self._values[name], self.revisions[name] = value, revision

    def _replace(self, fresh: Copy, position: int) -> None:
        """Replace the whole copy by another one, which is that of a position."""
        before, self._values, self.revisions = self._values, fresh._values, fresh.revisions
        if self._values != before or self.position < 0:
            self._move_to(position)

    def _move_to(self, position: int) -> None:
        self.position = max(position, self.position)
        self.moved.set()
        self.moved = anyio.Event()


def cached(kv: KeyValue, prefix: Text = b"") -> AbstractAsyncContextManager[Cache]:
    """Keep a copy of all keys with a prefix for the length of the block.

    All of them are in memory: this is for configurations and for lists of services, up to some
    thousand keys.

    Args:
        kv: the store.
        prefix: of the keys.

    Raises:
        ConfigurationError: `kv` is no store.
        RequestError: the keys can't be read, or they change faster than that. Later, in the block,
            only errors that a repeat does not help against end it:
            :class:`~quorate.errors.KeyValueError` if this user may not watch the prefix any more.
    """
    check_store(kv)
    return _kept_current(Copy(kv, word_of(prefix, "prefix")))


@asynccontextmanager
async def _kept_current(copy: Copy) -> AsyncGenerator[Cache]:
    watch = await copy.begin(None)
    failures: list[Exception] = []

    async def follow() -> None:
        try:
            await copy.follow(watch)
        except Exception as error:  # noqa: BLE001 - it is raised below
            failures.append(error)
            block.cancel()

    try:
        with anyio.CancelScope() as block:
            async with alongside(follow):
                yield Cache(copy)
    finally:
        copy.end()
    for error in failures:
        raise error
