"""Locks, elections, queues and the like, over the key-value store and its leases.

::

    from quorate import recipes

    async with recipes.lock(kv, "jobs", ttl_s=10) as held:
        ...  # cancelled when the lock is lost; held.token is the fencing token

`kv` is a node's store, or that of a client's connection. All of it runs on trio and on asyncio.

- `lock.py`: one owner; `rw_lock.py`: many readers or one writer; `semaphore.py`: so many owners
- `election.py`: a lock whose owner everybody can see
- `lease.py`: a key that has an owner; read it first
- `queue.py`: each item is handed over once; `party.py`: who is here; `barrier.py`: until enough are
- `counter.py`: a number to add to; `cache.py`: a prefix in memory
- `line.py`: the waiters, in order; `waiting.py`: for the store, and for changes of owners
- `names.py`: which keys belong to what; `arguments.py`: is it a store
- `background.py`: a task next to a block
"""

from .barrier import Barrier
from .cache import Cache, cached
from .counter import Counter
from .election import Election, Leaders, election
from .lease import Holder, Lease
from .lock import lock
from .party import Members, Party
from .queue import Item, Queue
from .rw_lock import RWLock, rw_lock
from .semaphore import semaphore

__all__ = [
    "Barrier",
    "Cache",
    "Counter",
    "Election",
    "Holder",
    "Item",
    "Leaders",
    "Lease",
    "Members",
    "Party",
    "Queue",
    "RWLock",
    "cached",
    "election",
    "lock",
    "rw_lock",
    "semaphore",
]
