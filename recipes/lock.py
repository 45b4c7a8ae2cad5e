"""A fair lock: one owner in the whole cluster, in the order in which they came.

Safety rests on one key, ``quorate:lock:{<name>}:owner``, which is a lease (:mod:`.lease`). The line
of waiters next to it (:mod:`.line`) is for fairness alone: only its head tries to take the key. So
other clients may take the lock without a place in the line, with QUORATE.CAS on that key.

Who comes while nobody waits takes the key at once: one read and one write.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import anyio

from ..errors import LeaseLostError
from .background import alongside
from .lease import Holder, Lease
from .line import Line, head
from .names import prefix_of
from .waiting import NotNowError, OwnerWatch, in_time, owned, patiently

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from ..keyvalue.programs.client import KeyValue

__all__ = ["lock", "not_reentrant", "owner_key", "owning"]

_OWNER: Final = b"owner"

_HELD: ContextVar[frozenset[tuple[int, bytes, int]]] = ContextVar("held", default=frozenset())


def lock(
    kv: KeyValue,
    resource: str,
    /,
    *,
    ttl_s: float = 10.0,
    wait_s: float | None = None,
    name: str | None = None,
    rng: Random | None = None,
) -> AbstractAsyncContextManager[Lease]:
    """Hold a lock for the length of the block, which is cancelled when the lock is lost.

    ::

        async with lock(kv, "jobs") as held:
            await work(token=held.token)

    The lock is not reentrant.

    Args:
        kv: the store.
        resource: what is locked: 1 to 200 bytes, see :mod:`.names`.
        ttl_s: seconds after which the lock of a dead owner is free: 0.1 to 86,400.
        wait_s: how long to wait for the lock, in seconds; None for any time, 0 to try once.
        name: our name, for those who look at the lock; None for the host and process.
        rng: makes random numbers; None for the system's.

    Yields:
        The lease. Its `token` rises from owner to owner.

    Raises:
        TimeoutError: the lock was not free in time. Nothing is held.
        LeaseLostError: the lock was lost before the block ended. If the block has raised an error
            of its own, that one is raised, with a note.
        ConfigurationError: an argument is out of range.
        RuntimeError: this task holds the lock already.
        RequestError: the store refuses such keys; or `wait_s` is 0, and there was no answer.
    """
    key = owner_key(prefix_of("lock", resource))
    title = f"lock {resource!r}"
    lease = Lease(kv, key, ttl_s=ttl_s, name=name, rng=rng, title=title)
    return owning(lease, wait_s=wait_s)


def owner_key(prefix: bytes) -> bytes:
    """Return the key that belongs to the owner."""
    return prefix + _OWNER


@asynccontextmanager
async def owning(lease: Lease, *, wait_s: float | None) -> AsyncGenerator[Lease]:
    """Wait in line for a lease, and hold it for the length of the block; see `lock`.

    Args:
        lease: of the owner's key.
        wait_s: how long to wait for it.
    """
    entrance = _Entrance(lease)

    with not_reentrant(lease.kv, lease.key, lease.title):
        async with lease.releasing():
            ticket = await in_time(wait_s, entrance.enter, lease.title, entrance.line.whom)
            if ticket is None:
                async with lease.held():
                    yield lease
            else:
                # The block need not wait until we have left the line.
                async with alongside(ticket.release), lease.held():
                    yield lease


class _Entrance:
    """The way to the owner's key: through the line, if somebody is there."""

    def __init__(self, lease: Lease) -> None:
        self.line = Line(
            lease.kv,
            lease.key.removesuffix(_OWNER) + b"line:",
            ttl_s=lease.ttl_s,
            name=lease.name,
            rng=lease.rng,
            title=lease.title,
        )
        self._lease = lease

    async def enter(self, *, once: bool) -> Lease | None:
        """Acquire the lease; return our ticket in the line, if there is one, to be released."""
        lease, line = self._lease, self.line
        waiting = await patiently(line.tickets, once=once)
        if not waiting and await patiently(lease.acquire, once=once):
            return None
        if once:
            await self._look()
            raise NotNowError
        while lease.lost:
            ticket = await line.enter(head)
            try:
                with suppress(LeaseLostError):
                    async with ticket.kept():
                        await self._until_ours()
            except BaseException:
                await ticket.release()
                raise
            if not lease.lost:
                return ticket
            await ticket.release()
        return None

    async def _until_ours(self) -> None:
        """Wait until nobody else owns the key, and acquire the lease."""
        lease = self._lease
        async with OwnerWatch(lease.kv) as watch:
            while True:
                holder = await patiently(self._look)
                free = holder is None or await watch.until_changed(
                    {lease.key: holder}, lease.key, poll_s=lease.ttl_s
                )
                if free and await patiently(lease.acquire):
                    return

    async def _look(self) -> Holder | None:
        """Return the owner, unless it is ourselves, by an attempt that was late."""
        lease = self._lease
        found = [each.holder for each in await owned(lease.kv, [lease.key])]
        self.line.blocker = found[0] if found and not lease.tried(found[0]) else None
        return self.line.blocker


@contextmanager
def not_reentrant(kv: KeyValue, key: bytes, title: str) -> Generator[None]:
    """Refuse a task that would wait for itself.

    Raises:
        RuntimeError: this task is in such a block already.
    """
    # Tasks that this one has started get a copy of its context, but may well wait for it.
    mine = (id(kv), key, anyio.get_current_task().id)
    held = _HELD.get()
    if mine in held:
        raise RuntimeError(f"this task holds {title} already, and it is not reentrant")
    before = _HELD.set(held | {mine})
    try:
        yield
    finally:
        _HELD.reset(before)
