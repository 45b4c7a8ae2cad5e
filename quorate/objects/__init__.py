"""`@replicated` objects: plain Python classes as replicated state machines.

::

    class Bank(objects.Replicated):
        accounts: dict[str, int]  # the state: what is declared here, and nothing else

        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.accounts = {}

        @objects.replicated
        def pay(self, who: str, amount: int) -> int:
            self.accounts[who] = self.accounts.get(who, 0) + amount
            return self.accounts[who]

        @objects.query
        def balance(self, who: str) -> int:
            return self.accounts.get(who, 0)


    bank = Bank("bank")
    async with objects.open_objects(config, [bank]):
        await bank.pay("ann", 5)  # recorded, replicated, applied on all members, exactly once
        await bank.balance("ann")  # linearizable
        bank.accounts["ann"]  # what this member has applied

Read first: `base.py`, then `machine.py` (the state machine) and `caller.py` (how calls are sent).

- `tracked.py`: dicts and lists that check what is put in, and undo what a failed call has done
- `shapes.py`: which types a state may have, and its bytes
- `methods.py`: the decorators, and the types of arguments and results
- `wire.py`: the bytes of calls and replies
- `sessions.py`: the state machine's side of exactly-once calls
- `containers.py`, `locks.py`: `Counter`, `ReplicatedDict` and so on
"""

from ..errors import CallError
from .base import Replicated
from .containers import Counter, ReplicatedDict, ReplicatedQueue, ReplicatedSet, Scalar
from .locks import Held, LockManager
from .methods import query, replicated
from .opening import open_objects

__all__ = [
    "CallError",
    "Counter",
    "Held",
    "LockManager",
    "Replicated",
    "ReplicatedDict",
    "ReplicatedQueue",
    "ReplicatedSet",
    "Scalar",
    "open_objects",
    "query",
    "replicated",
]
