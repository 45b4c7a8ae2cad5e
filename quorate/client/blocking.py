"""The client for programs without an event loop: the same methods, which block.

::

    with quorate.connect_blocking(["10.0.0.1:7000", "10.0.0.2:7000"]) as kv:
        kv.set("greeting", "hello")

The client of :mod:`.connect` runs in a thread of its own, on trio. Any number of threads may use
one store; their commands travel in batches together. A forked child must connect anew: the thread
is the parent's.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

import anyio

from ..errors import RefusedError
from ..keyvalue.programs.client import SCAN_COUNT
from .connect import connect
from .thread import ClientThread
from .watch import WATCH_CUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
    from random import Random
    from types import TracebackType

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.encoding import Argument, Text
    from ..keyvalue.programs.records import Record
    from ..keyvalue.programs.transaction import Transaction
    from ..keyvalue.programs.watch import Watch
    from ..keyvalue.protocol.resp import Reply
    from ..keyvalue.state.changes import Change
    from .secure import ClientTls
    from .settings import Member

__all__ = ["BlockingKeyValue", "BlockingTransaction", "BlockingWatch", "connect_blocking"]

T = TypeVar("T")

_PAGE: Final = 1000
"""Items of an iteration that are fetched together: as many as one SCAN returns."""

_WATCH_CUT: Final = RefusedError(WATCH_CUT)


class BlockingKeyValue:
    """The key-value store; see :class:`~quorate.KeyValue`, whose methods have the same meaning."""

    def __init__(self, kv: KeyValue, thread: ClientThread) -> None:
        self._kv = kv
        self._thread = thread

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._kv.endpoint!r}>"

    def execute(self, *arguments: Argument) -> Reply:
        """Run any command of the state machine."""
        return self._thread.call(self._kv.execute, *arguments)

    def get(self, key: Text) -> bytes | None:
        """Return the value of a key; None if the key does not exist."""
        return self._thread.call(self._kv.get, key)

    def set(
        self,
        key: Text,
        value: Text,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
    ) -> bool:
        """Set a key; return whether it was set."""
        return self._thread.call(partial(self._kv.set, key, value, ex=ex, px=px, nx=nx, xx=xx))

    def compare_and_set(
        self, key: Text, expected: Text | None, new: Text | None, *, px: int | None = None
    ) -> int:
        """Set or delete a key if it has an expected value; return the log position, or 0."""
        return self._thread.call(partial(self._kv.compare_and_set, key, expected, new, px=px))

    def delete(self, *keys: Text) -> int:
        """Delete keys; return how many of them existed."""
        return self._thread.call(self._kv.delete, *keys)

    def increment(self, key: Text, by: int = 1) -> int:
        """Add to a number and return the sum; a key that does not exist counts as 0."""
        return self._thread.call(self._kv.increment, key, by)

    def mget(self, *keys: Text) -> list[bytes | None]:
        """Return the values of several keys at one point of the log."""
        return self._thread.call(self._kv.mget, *keys)

    def get_many(self, keys: Iterable[Text]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist."""
        return self._thread.call(self._kv.get_many, keys)

    def records(self, keys: Iterable[Text]) -> list[Record | None]:
        """Return value, revision and expiry of each key; None for one that does not exist."""
        return self._thread.call(self._kv.records, keys)

    def mset(self, values: Mapping[bytes, Text] | Mapping[str, Text]) -> None:
        """Set several keys at once."""
        self._thread.call(self._kv.mset, values)

    def set_many(self, values: Mapping[bytes, Text] | Mapping[str, Text]) -> None:
        """Set several keys at once: all of them, or none."""
        self._thread.call(self._kv.set_many, values)

    def expire(self, key: Text, seconds: float) -> bool:
        """Set the expiry of a key, in seconds of log time; False if the key does not exist."""
        return self._thread.call(self._kv.expire, key, seconds)

    def ttl_ms(self, key: Text) -> int:
        """Return the remaining lifetime in milliseconds; -1 without expiry, -2 without the key."""
        return self._thread.call(self._kv.ttl_ms, key)

    def position(self, prefix: Text = b"") -> int:
        """Return the log position up to which everything is applied."""
        return self._thread.call(self._kv.position, prefix)

    def scan(self, match: Text = b"*", *, count: int = SCAN_COUNT) -> Iterator[bytes]:
        """Iterate over the keys that match a glob pattern."""
        return self._iterate(self._kv.scan(match, count=count))

    def scan_items(self, match: Text = b"*") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys that match a glob pattern, with their values."""
        return self._iterate(self._kv.scan_items(match))

    def watch(self, prefix: Text = b"", *, after: int | None = None) -> BlockingWatch:
        """Return the committed changes of the keys that begin with a prefix, in order."""
        return BlockingWatch(self._kv.watch(prefix, after=after), self._thread)

    def transaction(self) -> BlockingTransaction:
        """Return a transaction, to be used as a context manager."""
        return BlockingTransaction(self._kv.transaction(), self._thread)

    def transact(
        self,
        body: Callable[[BlockingTransaction], T],
        attempts: int = 10,
        *,
        rng: Random | None = None,
    ) -> T:
        """Run the body of a transaction, again after each conflict; return its result.

        The body runs in another thread than the caller.
        """

        async def run(transaction: Transaction) -> T:
            blocking = BlockingTransaction(transaction, self._thread)
            return await anyio.to_thread.run_sync(body, blocking)

        return self._thread.call(partial(self._kv.transact, run, attempts, rng=rng))

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def page() -> list[T]:
            found: list[T] = []
            async for item in items:
                found.append(item)
                if len(found) == _PAGE:
                    break
            return found

        while found := self._thread.call(page):
            yield from found


class BlockingTransaction:
    """A transaction, as a context manager; see :class:`~quorate.Transaction`."""

    def __init__(self, transaction: Transaction, thread: ClientThread) -> None:
        self._transaction = transaction
        self._thread = thread

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._transaction!r}>"

    def __enter__(self) -> Self:
        self._thread.call(self._transaction.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self._transaction.__aexit__, kind, error, trace)

    @property
    def results(self) -> list[Reply]:
        """After the commit, the replies to the queued commands, in order."""
        return self._transaction.results

    @property
    def position(self) -> int:
        """After the commit, its log position; 0 if nothing was to be written."""
        return self._transaction.position

    def get(self, key: Text) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        return self._thread.call(self._transaction.get, key)

    def exists(self, key: Text) -> bool:
        """Return whether a key exists."""
        return self._thread.call(self._transaction.exists, key)

    def get_many(self, keys: Iterable[Text]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist."""
        return self._thread.call(self._transaction.get_many, keys)

    def records(self, keys: Iterable[Text]) -> list[Record | None]:
        """Return value, revision and expiry of each key; None for one that does not exist."""
        return self._thread.call(self._transaction.records, keys)

    def set(self, key: Text, value: Text, *, ex: int | None = None, px: int | None = None) -> None:
        """Queue the new value of a key."""
        self._transaction.set(key, value, ex=ex, px=px)

    def delete(self, *keys: Text) -> None:
        """Queue the deletion of keys; the result is how many of them existed."""
        self._transaction.delete(*keys)

    def increment(self, key: Text, by: int = 1) -> None:
        """Queue an addition to a number; the result is the sum."""
        self._transaction.increment(key, by)

    def expire(self, key: Text, seconds: float) -> None:
        """Queue the expiry of a key, in seconds of log time; the result is 0 if it is missing."""
        self._transaction.expire(key, seconds)

    def execute(self, *arguments: Argument) -> None:
        """Queue any command of the state machine."""
        self._transaction.execute(*arguments)


class BlockingWatch:
    """The committed changes of keys, as an iterator and a context manager; it never ends.

    See :class:`~quorate.Watch`.
    """

    def __init__(self, watch: Watch, thread: ClientThread) -> None:
        self._watch = watch
        self._thread = thread

    def __enter__(self) -> Self:
        self._thread.call(self._watch.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(RefusedError):  # the client is closed, and so is this
            self._thread.call(self._watch.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        """Return the next change; wait for it.

        Raises:
            WatchLostError: it can't go on without a gap.
        """
        try:
            return self._thread.call(self._watch.__anext__, cut=_WATCH_CUT)
        except StopAsyncIteration:  # it was closed
            raise StopIteration from None

    def entries(self) -> list[Change]:
        """Return all changes of the next log entries, as many as there are; wait for the first."""
        return self._thread.call(self._watch.entries, cut=_WATCH_CUT)

    @property
    def prefix(self) -> bytes:
        """The prefix of the keys."""
        return self._watch.prefix

    @property
    def position(self) -> int:
        """Every change up to here was returned."""
        return self._watch.position


@contextmanager
def connect_blocking(
    members: Iterable[Member],
    *,
    tls: ClientTls | None = None,
    user: str | None = None,
    password: str | None = None,
    exactly_once: bool = True,
    session_timeout_s: float = 300.0,
    patience_s: float = 60.0,
) -> Generator[BlockingKeyValue]:
    """Connect to a cluster for the length of the block, without an event loop.

    Arguments and errors are those of :func:`quorate.connect`. :class:`~quorate.errors.UsageError`
    is raised within ``trio.run``, and by the calls of a forked child.
    """
    opened = connect(
        members,
        tls=tls,
        user=user,
        password=password,
        exactly_once=exactly_once,
        session_timeout_s=session_timeout_s,
        patience_s=patience_s,
    )
    thread = ClientThread(opened)
    kv = thread.open()
    try:
        yield BlockingKeyValue(kv, thread)
    finally:
        thread.close()
