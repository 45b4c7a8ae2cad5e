"""A queue of jobs: first in, first out; each item is handed over exactly once.

The keys
========
``quorate:queue:{<name>}:tail`` counts the items that were put. The number of an item is its place.
``...:item:<number>`` has its value. ``...:taken:<number>`` is the lease (:mod:`.lease`) of the
program that works on it. ``...:head`` is a number below which no item is or will ever be, so that
nobody looks for items there.

Exactly once
============
An item has one owner at a time, since it has one lease. At the end of the owner's block one
transaction deletes the item, only while the lease is still held. If the block fails, or its program
dies, the lease ends, and the item is the first one again. So an item is *removed* once, by one
owner whose block ended well. Its *work* may have been begun before, by an owner that failed. For
work that consists of writes to the store, put them into one transaction with the removal
(`Item.remove_in`): then they are done once, too.

Many workers
============
All workers that wait hear of an item at once, and one of them gets it. A worker that looked and was
too late waits a random moment the next time, up to twice as long as before. If it sees meanwhile
that another one has taken the item, it asks nobody. One that gets an item waits half as long. So a
worker that is alone takes items at once, and of many few ask the leader for each.

The order
=========
A number is drawn before its item is written. So an item may appear before another one with a lower
number, if both are put at the same time. An item that is put after another one was put comes later.

Advancing the head
==================
A transaction moves it over numbers without an item, and fails if one appears meanwhile. A program
that has drawn a number and was slow may find the head beyond it. Then it draws another one: its
item was not in the queue yet, so no order is broken.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final

import anyio

from ..errors import ConflictError, RequestError, UnsupportedError
from ..keyvalue.retry import LONGEST_PAUSE_S
from ..keyvalue.state.changes import ChangeKind
from .lease import Lease
from .names import prefix_of
from .waiting import NotNowError, in_time, patiently

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.encoding import Text
    from ..keyvalue.programs.transaction import Transaction
    from ..keyvalue.programs.watch import Watch
    from ..keyvalue.state.changes import Change

__all__ = ["Item", "Queue"]

_WINDOW: Final = 32
"""Numbers that one request looks at. Fewer, and many workers on one queue look several times; more,
and each look costs the leader more."""

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
"""A worker that waits looks at most so long after it has heard of an item. Shorter, and hundreds of
idle workers ask the leader for each item. Longer, and items wait when most workers have left."""

_ATTEMPTS: Final = 1000
"""Of a transaction. A conflict means that somebody else has got on, so this many are a bug."""


class Item:
    """An item that we work on; made by :meth:`Queue.take`.

    Attributes:
        number: its place in the queue.
        value: what was put.
        lease: that it is ours; `lease.token` is the fencing token.
    """

    def __init__(self, number: int, key: bytes, value: bytes, lease: Lease) -> None:
        self.number = number
        self.value = value
        self.lease = lease
        self._key = key

    def __repr__(self) -> str:
        return f"<Item {self.number}: {self.value!r:.60}>"

    async def remove_in(self, transaction: Transaction) -> None:
        """Have a transaction remove this item, too, or fail if it is not ours any more.

        Writes of the same transaction are then done exactly once for this item.

        Raises:
            LeaseLostError: it is not ours any more.
        """
        await self.lease.fence(transaction)
        transaction.delete(self._key)


class _Free:
    """The items that have become free, as far as a watch has shown.

    Attributes:
        numbers: of these items.
    """

    def __init__(self, prefix: bytes) -> None:
        self.numbers = set[bytes]()
        self._prefix = prefix
        self._removed = set[bytes]()

    def see(self, changes: Sequence[Change]) -> None:
        """Take note of changes."""
        for change in changes:
            what, _, number = change.key.removeprefix(self._prefix).partition(b":")
            is_set = change.kind is ChangeKind.SET
            if what == b"item" and is_set:
                self.numbers.add(number)
            elif what == b"item":
                self.numbers.discard(number)
                self._removed.add(number)
            elif what == b"taken" and is_set:
                self.numbers.discard(number)
            elif what == b"taken" and number not in self._removed:
                self.numbers.add(number)
            else:  # an item ends: it is removed, and then its lease
                self._removed.discard(number)


def _next_pause(pause_s: float, *, won: bool) -> float:
    """Return how long to wait before the next look, after one that has found an item or not."""
    if won:
        return pause_s / 2 if pause_s > _FIRST_PAUSE_S else 0.0
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)


class Queue:
    """A queue of the whole cluster.

    Args:
        kv: the store. With a session (`quorate.connect`) each `put` happens exactly once.
        name: of the queue: 1 to 200 characters, see :mod:`.names`.
        ttl_s: seconds after which the item of a dead program is free again: 0.1 to 86,400.
        worker: our name, for those who look at the leases; None for the host and process.
        rng: makes random numbers; None for the system's.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        kv: KeyValue,
        name: str,
        *,
        ttl_s: float = 10.0,
        worker: str | None = None,
        rng: Random | None = None,
    ) -> None:
        self._kv = kv
        self._prefix = prefix_of("queue", name)
        self._title = f"queue {name!r}"
        self._ttl_s, self._worker, self._rng = ttl_s, worker, rng or SystemRandom()
        self._lease(0)  # checks the arguments
        self._head = 1
        self._pause_s = 0.0  # at most, before a look; longer if others were faster

    def __repr__(self) -> str:
        return f"<Queue {self._prefix!r}>"

    async def put(self, value: Text) -> int:
        """Put an item at the end; return its number.

        Raises:
            UnknownOutcomeError: the store has no session, and the item may have been put or not.
        """
        while True:
            number = await self._kv.increment(self._prefix + b"tail")

            async def body(t: Transaction, number: int = number) -> bool:
                if number < int(await t.get(self._prefix + b"head") or b"1"):
                    return False
                t.set(self._item(number), value)
                return True

            if await self._kv.transact(body, _ATTEMPTS, rng=self._rng):
                return number

    @asynccontextmanager
    async def take(self, *, wait_s: float | None = None) -> AsyncGenerator[Item]:
        """Take the first item that nobody has, for the length of the block; wait for one.

        When the block ends the item is removed. If the block raises an exception, it is the first
        one of the queue again. The block is cancelled when the item is lost.

        Args:
            wait_s: how long to wait for an item, in seconds; None for any time, 0 to look once.

        Raises:
            TimeoutError: there was none in time.
            LeaseLostError: the item was lost before it was removed; it is handed over again, unless
                `Item.remove_in` has removed it.
        """
        item = await in_time(wait_s, self._wait, self._title, lambda: "", "had no free item")
        async with item.lease.releasing(), item.lease.kept():
            yield item
            # The lease is renewed meanwhile, so that this may take as long as an election. What
            # was removed before is deleted again, which does nothing: its number is never reused.
            await patiently(lambda: self._kv.transact(item.remove_in, _ATTEMPTS, rng=self._rng))

    # --- looking for an item

    async def _wait(self, *, once: bool) -> Item:
        """Take the first free item; wait for it."""
        item = await patiently(self._try, once=once)
        if item is None and once:
            raise NotNowError
        while item is None:
            try:
                async with self._kv.watch(self._prefix) as changes:
                    # What was put before the watch began is found by looking.
                    item = await self._try() or await self._wait_with(changes)
            except (RequestError, UnsupportedError):
                # Without a watch, or while there is no leader, looking is all that is left.
                if item is None:
                    await anyio.sleep(LONGEST_PAUSE_S)
                    item = await patiently(self._try)
            except BaseException:
                # Cancelled while the watch ends: nobody will work on the item.
                if item is not None:
                    await item.lease.release()
                raise
        return item

    async def _wait_with(self, changes: Watch) -> Item:
        """Take the first free item; look when the watch says that there may be one."""
        free = _Free(self._prefix)
        while True:
            # If the watch is silent for any reason, it is not waited for for ever.
            with anyio.move_on_after(self._ttl_s) as patience:
                await self._news(changes, free)
            free.numbers.clear()  # one look sees all that has changed until now
            item = await self._try()
            if not patience.cancelled_caught:
                self._pause_s = _next_pause(self._pause_s, won=item is not None)
            if item is not None:
                return item

    async def _news(self, changes: Watch, free: _Free) -> None:
        """Wait until there may be an item to take, and nobody else takes it in a random pause."""
        while not free.numbers:
            while not free.numbers:
                free.see(await changes.entries())
            with anyio.move_on_after(self._pause_s * self._rng.random()):
                while free.numbers:
                    free.see(await changes.entries())

    async def _try(self) -> Item | None:
        """Take the first item that nobody has; None if there is none."""
        first, tail = await self._bounds()
        leaps = first == self._head
        while first <= tail:
            numbers = range(first, min(first + _WINDOW, tail + 1))
            states = await self._look(numbers)
            for number, (exists, taken) in zip(numbers, states, strict=True):
                if exists and not taken and (item := await self._take(number)) is not None:
                    return item
            leaps = leaps and len(numbers) == _WINDOW and not any(exists for exists, _ in states)
            if leaps:
                await self._advance(numbers)
            first += _WINDOW
        return None

    async def _bounds(self) -> tuple[int, int]:
        """Return the first number that may have an item, and the last one that was drawn."""
        head, tail = await self._kv.mget(self._prefix + b"head", self._prefix + b"tail")
        self._head = int(head or b"1")
        return self._head, int(tail or b"0")

    async def _look(self, numbers: range) -> list[tuple[bool, bool]]:
        """Return of each number whether there is an item, and whether somebody works on it."""
        async with self._kv.transaction() as t:
            for number in numbers:
                t.execute("EXISTS", self._item(number))
                t.execute("EXISTS", self._taken(number))
        found = [result == 1 for result in t.results]
        return list(zip(found[::2], found[1::2], strict=True))

    async def _take(self, number: int) -> Item | None:
        """Take an item; None if somebody else was faster."""
        lease = self._lease(number)
        try:
            if not await lease.acquire():
                return None
            # Its last owner may have removed it since we looked.
            value = await self._kv.get(self._item(number))
            if value is not None:
                return Item(number, self._item(number), value, lease)
        except BaseException:
            await lease.release()
            raise
        await lease.release()
        return None

    async def _advance(self, numbers: range) -> None:
        """Move the head over numbers without an item."""
        new = numbers.stop

        async def body(t: Transaction) -> None:
            here = int(await t.get(self._prefix + b"head") or b"1") == numbers.start
            if here and not await t.get_many([self._item(number) for number in numbers]):
                t.set(self._prefix + b"head", str(new))

        try:
            await self._kv.transact(body, 1)
        except ConflictError:
            return  # somebody else has moved it, or an item has appeared

    def _item(self, number: int) -> bytes:
        return b"%bitem:%d" % (self._prefix, number)

    def _taken(self, number: int) -> bytes:
        return b"%btaken:%d" % (self._prefix, number)

    def _lease(self, number: int) -> Lease:
        return Lease(
            self._kv,
            self._taken(number),
            ttl_s=self._ttl_s,
            name=self._worker,
            rng=self._rng,
            title=f"item {number} of {self._title}",
        )
