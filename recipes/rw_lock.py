"""A fair lock for readers and writers: many readers or one writer in the whole cluster.

Both stand in one line (:mod:`.line`). A reader's ticket is its share of the lock as soon as no
writer's ticket is older; a writer's is the lock as soon as it is the oldest. So a writer waits for
the readers that came before it, and those that come later wait for the writer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from .line import Line, Obstacle, head
from .lock import not_reentrant
from .names import prefix_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from .lease import Lease
    from .line import Rule
    from .waiting import Owned

__all__ = ["RWLock", "rw_lock"]

_READ: Final = b"read:"
_WRITE: Final = b"write:"


class RWLock:
    """A lock that many readers or one writer hold; made by `rw_lock`. It may be used many times."""

    def __init__(
        self,
        kv: KeyValue,
        resource: str,
        *,
        ttl_s: float,
        wait_s: float | None,
        name: str | None,
        rng: Random | None,
    ) -> None:
        self._kv = kv
        self._prefix = prefix_of("rw_lock", resource)
        self._title = f"rw_lock {resource!r}"
        self._wait_s = wait_s
        self._line = Line(kv, self._prefix, ttl_s=ttl_s, name=name, rng=rng, title=self._title)

    def reading(self) -> AbstractAsyncContextManager[Lease]:
        """Hold the lock together with other readers, for the length of the block; see `lock`."""
        return self._holding(self._readers, _READ)

    def writing(self) -> AbstractAsyncContextManager[Lease]:
        """Hold the lock alone, for the length of the block; see `lock`."""
        return self._holding(head, _WRITE)

    @asynccontextmanager
    async def _holding(self, rule: Rule, kind: bytes) -> AsyncGenerator[Lease]:
        with not_reentrant(self._kv, self._prefix, self._title):
            async with self._line.place(rule, kind, wait_s=self._wait_s) as lease:
                yield lease

    def _readers(self, older: Sequence[Owned]) -> Obstacle | None:
        """Let readers go unless a writer came before them; the last such writer is waited for."""
        writer = self._prefix + _WRITE
        return head([each for each in older if each.key.startswith(writer)])


def rw_lock(
    kv: KeyValue,
    resource: str,
    /,
    *,
    ttl_s: float = 10.0,
    wait_s: float | None = None,
    name: str | None = None,
    rng: Random | None = None,
) -> RWLock:
    """Return a lock for readers and writers.

    ::

        shared = rw_lock(kv, "catalogue")
        async with shared.reading():
            ...
        async with shared.writing() as held:
            ...

    It is not reentrant: a task that reads can't begin to write, nor to read once more.

    Args:
        kv: the store.
        resource: what is locked: 1 to 200 bytes, see :mod:`.names`.
        ttl_s: seconds after which the share of a dead owner is free: 0.1 to 86,400.
        wait_s: how long to wait for the lock, in seconds; None for any time, 0 to try once.
        name: our name, for those who look at the lock; None for the host and process.
        rng: makes random numbers; None for the system's.

    Raises:
        ConfigurationError: an argument is out of range.
    """
    return RWLock(kv, resource, ttl_s=ttl_s, wait_s=wait_s, name=name, rng=rng)
