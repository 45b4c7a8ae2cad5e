"""The names of PySyncObj, for programs that come from it, over :mod:`quorate.objects`.

A program changes its import::

    from quorate.pysyncobj import SyncObj, SyncObjConf, replicated

and goes on. What differs is in docs/from-pysyncobj.md. The code is our own; the names, arguments
and meanings are those of PySyncObj 0.3 (https://github.com/bakwc/PySyncObj, MIT licence).

- `syncobj.py`: `SyncObj`, and the thread with the member; read first
- `methods.py`: the decorators
- `parts.py`: an object's attributes as a replicated state
- `plain.py`, `containers.py`: the values that a state may hold
- `config.py`: what PySyncObj's settings mean here
- `batteries.py`: `ReplDict`, `ReplLockManager` and so on
"""

from .config import FAIL_REASON, SyncObjConf, SyncObjException
from .methods import replicated, replicated_sync
from .parts import SyncObjConsumer
from .syncobj import Node, SyncObj

__all__ = [
    "FAIL_REASON",
    "Node",
    "SyncObj",
    "SyncObjConf",
    "SyncObjConsumer",
    "SyncObjException",
    "replicated",
    "replicated_sync",
]
