"""PySyncObj's ready-made objects: the same names and methods, over our own states."""

from __future__ import annotations

import os
import socket
import threading
import time
from bisect import insort
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from .config import SyncObjException
from .methods import replicated
from .parts import SyncObjConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ReplCounter",
    "ReplDict",
    "ReplList",
    "ReplLockManager",
    "ReplPriorityQueue",
    "ReplQueue",
    "ReplSet",
]

RENEWALS: Final = 4
"""How often a lock is prolonged before it would end. If smaller, a slow answer loses locks."""


class ReplCounter(SyncObjConsumer):
    """A number."""

    def __init__(self) -> None:
        super().__init__()
        self._value: Any = 0

    @replicated
    def set(self, newValue: Any) -> Any:
        """Set the number; return it."""
        self._value = newValue
        return self._value

    @replicated
    def add(self, value: Any) -> Any:
        """Add to the number; return the sum."""
        self._value += value
        return self._value

    @replicated
    def sub(self, value: Any) -> Any:
        """Subtract from the number; return the difference."""
        self._value -= value
        return self._value

    @replicated
    def inc(self) -> Any:
        """Add one; return the sum."""
        self._value += 1
        return self._value

    def get(self) -> Any:
        """Return the number, as this node has it."""
        return self._value


class ReplList(SyncObjConsumer):
    """A list."""

    def __init__(self) -> None:
        super().__init__()
        self._items: list[Any] = []

    @replicated
    def reset(self, newData: list[Any]) -> None:
        """Replace all items."""
        _expect(newData, list)
        self._items = newData

    @replicated
    def set(self, position: int, newValue: Any) -> None:
        """Replace an item."""
        self._items[position] = newValue

    @replicated
    def append(self, item: Any) -> None:
        """Add an item at the end."""
        self._items.append(item)

    @replicated
    def extend(self, other: list[Any]) -> None:
        """Add items at the end."""
        self._items.extend(other)

    @replicated
    def insert(self, position: int, element: Any) -> None:
        """Add an item before a position."""
        self._items.insert(position, element)

    @replicated
    def remove(self, element: Any) -> None:
        """Remove the first item that equals one."""
        self._items.remove(element)

    @replicated
    def pop(self, position: int | None = None) -> Any:
        """Remove and return an item, the last one by default."""
        return self._items.pop(-1 if position is None else position)

    @replicated
    def sort(self, reverse: bool = False) -> None:
        """Sort the items."""
        self._items.sort(reverse=reverse)

    @replicated(ver=1)
    def __setitem__(self, position: int, element: Any) -> None:
        """Replace an item."""
        self._items[position] = element

    def index(self, element: Any) -> int:
        """Return the first position of an item."""
        return self._items.index(element)

    def count(self, element: Any) -> int:
        """Return how often an item is there."""
        return self._items.count(element)

    def get(self, position: int) -> Any:
        """Return an item."""
        return self._items[position]

    def __getitem__(self, position: int) -> Any:
        """Return an item."""
        return self._items[position]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def rawData(self) -> list[Any]:
        """Return the list itself; it can only be read."""
        return self._items


class ReplDict(SyncObjConsumer):
    """A dict."""

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[Any, Any] = {}

    @replicated
    def reset(self, newData: dict[Any, Any]) -> None:
        """Replace all items."""
        _expect(newData, dict)
        self._items = newData

    @replicated
    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._items[key] = value

    @replicated
    def set(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._items[key] = value

    @replicated
    def setdefault(self, key: Any, default: Any) -> Any:
        """Return the value of a key, which is set to the default if it is missing."""
        return self._items.setdefault(key, default)

    @replicated
    def update(self, other: dict[Any, Any]) -> None:
        """Set the values of several keys."""
        self._items.update(other)

    @replicated
    def pop(self, key: Any, default: Any = None) -> Any:
        """Remove a key; return its value, or the default."""
        return self._items.pop(key, default)

    @replicated
    def clear(self) -> None:
        """Remove all keys."""
        self._items.clear()

    def __getitem__(self, key: Any) -> Any:
        """Return the value of a key."""
        return self._items[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self._items.get(key, default)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._items)

    def __contains__(self, key: Any) -> bool:
        """Return whether there is such a key."""
        return key in self._items

    def keys(self) -> Any:
        """Return the keys."""
        return self._items.keys()

    def values(self) -> Any:
        """Return the values."""
        return self._items.values()

    def items(self) -> Any:
        """Return the items."""
        return self._items.items()

    def rawData(self) -> dict[Any, Any]:
        """Return the dict itself; it can only be read."""
        return self._items


class ReplSet(SyncObjConsumer):
    """A set."""

    def __init__(self) -> None:
        super().__init__()
        self._items: set[Any] = set()

    @replicated
    def reset(self, newData: set[Any]) -> None:
        """Replace all items."""
        _expect(newData, set)
        self._items = newData

    @replicated
    def add(self, item: Any) -> None:
        """Add an item."""
        self._items.add(item)

    @replicated
    def remove(self, item: Any) -> None:
        """Remove an item, which must be there."""
        self._items.remove(item)

    @replicated
    def discard(self, item: Any) -> None:
        """Remove an item, if it is there."""
        self._items.discard(item)

    @replicated
    def pop(self) -> Any:
        """Remove an item and return it: the same one on all nodes."""
        return self._items.pop()

    @replicated
    def clear(self) -> None:
        """Remove all items."""
        self._items.clear()

    @replicated
    def update(self, other: Any) -> None:
        """Add items."""
        self._items.update(other)

    def rawData(self) -> set[Any]:
        """Return the set itself; it can only be read."""
        return self._items

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def __contains__(self, item: Any) -> bool:
        """Return whether there is such an item."""
        return item in self._items


class _AnyQueue(SyncObjConsumer):
    """What both queues have; `maxsize` 0 stands for any number of items."""

    def __init__(self, maxsize: int, items: Any) -> None:
        super().__init__()
        self._maxsize = maxsize
        self._items: Any = items

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items

    def full(self) -> bool:
        """Return whether `put` would return False."""
        return bool(self._maxsize) and len(self._items) >= self._maxsize

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)


class ReplQueue(_AnyQueue):
    """A queue: what is put in first is got first."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize, deque())

    @replicated
    def put(self, item: Any) -> bool:
        """Put an item at the end; return False if the queue is full."""
        if self.full():
            return False
        self._items.append(item)
        return True

    @replicated
    def get(self, default: Any = None) -> Any:
        """Remove and return the first item, or return the default."""
        return self._items.popleft() if self._items else default


class ReplPriorityQueue(_AnyQueue):
    """A queue: the smallest item is got first."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize, [])

    @replicated
    def put(self, item: Any) -> bool:
        """Put an item; return False if the queue is full."""
        if self.full():
            return False
        insort(self._items, item)
        return True

    @replicated
    def get(self, default: Any = None) -> Any:
        """Remove and return the smallest item, or return the default."""
        return self._items.pop(0) if self._items else default


class _Locks(SyncObjConsumer):
    """Who has which lock, and when it was prolonged last, by the holder's clock."""

    def __init__(self, autoUnlockTime: float) -> None:
        super().__init__()
        self._held: dict[Any, tuple[str, float]] = {}
        self._lasts_s = autoUnlockTime

    @replicated
    def acquire(self, lockID: Any, clientID: str, now: float) -> bool:
        """Take a lock; return whether the client has it."""
        owner, since = self._held.get(lockID, (clientID, now))
        if owner != clientID and now - since <= self._lasts_s:
            return False
        self._held[lockID] = (clientID, now)
        return True

    @replicated
    def prolongate(self, clientID: str, now: float) -> None:
        """Prolong all locks of a client, and drop those that have ended."""
        for lockID, (owner, since) in list(self._held.items()):
            if now - since > self._lasts_s:
                del self._held[lockID]
            elif owner == clientID:
                self._held[lockID] = (clientID, now)

    @replicated
    def release(self, lockID: Any, clientID: str) -> None:
        """Give a lock back, if the client has it."""
        if self._held.get(lockID, ("", 0.0))[0] == clientID:
            del self._held[lockID]

    def isAcquired(self, lockID: Any, clientID: str, now: float) -> bool:
        """Return whether a client has a lock, as this node has it."""
        owner, since = self._held.get(lockID, ("", 0.0))
        return owner == clientID and now - since < self._lasts_s


class ReplLockManager:
    """Locks that end by themselves when their holder is gone.

    As in PySyncObj they end by the holders' clocks, and have no fencing token.
    `quorate.objects.LockManager` has both.

    Args:
        autoUnlockTime: how long a lock outlives its holder, in seconds.
        selfID: name of this holder; if left out, of this object.
    """

    def __init__(self, autoUnlockTime: float, selfID: str | None = None) -> None:
        self._locks = _Locks(autoUnlockTime)
        self._self_id = selfID or f"{socket.gethostname()}:{os.getpid()}:{id(self)}"
        self._pause_s = autoUnlockTime / RENEWALS
        self._destroyed = threading.Event()
        self._thread = threading.Thread(target=self._prolong, name="quorate-locks", daemon=True)
        self._thread.start()

    def _consumer(self) -> SyncObjConsumer:
        return self._locks

    def destroy(self) -> None:
        """Stop prolonging."""
        self._destroyed.set()

    def _prolong(self) -> None:
        while not self._destroyed.wait(self._pause_s):
            with suppress(SyncObjException):  # not replicated yet, or not any more
                self._locks.prolongate(self._self_id, time.time())

    def tryAcquire(
        self,
        lockID: Any,
        callback: Callable[[Any, int], object] | None = None,
        sync: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Try to take a lock; with `sync`, return whether this holder has it."""
        options = {"callback": callback, "sync": sync, "timeout": timeout}
        return self._locks.acquire(lockID, self._self_id, time.time(), **options)

    tryAcquireLock = tryAcquire

    def isAcquired(self, lockID: Any) -> bool:
        """Return whether this holder has a lock, as this node has it."""
        return self._locks.isAcquired(lockID, self._self_id, time.time())

    def release(
        self,
        lockID: Any,
        callback: Callable[[Any, int], object] | None = None,
        sync: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Give a lock back."""
        options = {"callback": callback, "sync": sync, "timeout": timeout}
        self._locks.release(lockID, self._self_id, **options)


def _expect(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, found a {type(value).__name__}")
