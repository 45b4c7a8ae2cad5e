"""Locks with leases in the log's time, and fencing tokens."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs
import msgspec
import trio

from ..errors import ConfigurationError, LeaseLostError, RequestError
from ..node.one_error import one_error
from ..recipes.lease import own_name
from .base import Replicated
from .methods import query, replicated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Held", "Lease", "LockManager"]

RENEWALS: Final = 3
"""Renewals within a lease. If smaller, one slow answer loses the lock. If larger, each lock costs
more entries of the log."""

RELEASE_S: Final = 5.0
"""How long a release may take. If smaller, a lock waits for its lease to end more often. If larger,
a program that leaves its block without a quorum ends later."""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a lock.

    Args:
        token: of this holder: rises from one holder of the lock to the next.
        owner: a name, for people.
        ends_ms: log time at which it ends unless it is renewed.
    """

    token: int
    owner: str
    ends_ms: int


@attrs.frozen
class Held:
    """A lock that is held, for the length of a block.

    Args:
        lock: its name.
        token: the fencing token: rises from one holder to the next. Send it with each write to a
            place outside of the cluster, which must refuse lower ones.
    """

    lock: str
    token: int


class LockManager(Replicated):
    """Locks by their names. A holder that dies loses its lock when the lease ends.

    The log's time decides when that is, so all members agree. A lock is not reentrant.

    Args:
        name: see :class:`Replicated`.
    """

    leases: dict[str, Lease]
    first_end_ms: int

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.leases = {}
        self.first_end_ms = 0

    @replicated
    def acquire(self, lock: str, owner: str, ttl_ms: int) -> int:
        """Take a lock for a while; return its token, or 0 if it is held."""
        if ttl_ms <= 0:
            raise ValueError(f"ttl_ms = {ttl_ms}: expected milliseconds, more than 0")
        if self._holder(lock):
            return 0
        self._lend(lock, Lease(self.position, owner, self.now_ms + ttl_ms))
        return self.position

    @replicated
    def renew(self, lock: str, token: int, ttl_ms: int) -> bool:
        """Prolong a lease; return False, and do nothing, if the lock is not held by this token."""
        held = self._holder(lock)
        if held is None or held.token != token:
            return False
        self._lend(lock, Lease(token, held.owner, self.now_ms + ttl_ms))
        return True

    @replicated
    def release(self, lock: str, token: int) -> bool:
        """Give a lock back; return False, and do nothing, if it is not held by this token."""
        held = self.leases.get(lock)
        if held is None or held.token != token:
            return False
        del self.leases[lock]
        return True

    @query
    def holder(self, lock: str) -> Lease | None:
        """Return who holds a lock; None if nobody does."""
        return self._holder(lock)

    @one_error
    @asynccontextmanager
    async def hold(
        self,
        lock: str,
        *,
        ttl_s: float = 10.0,
        wait_s: float | None = None,
        owner: str | None = None,
    ) -> AsyncGenerator[Held]:
        """Hold a lock for the length of a block; the lease is renewed all the time.

        The block is cancelled when the lock is lost. If the call is cancelled while it asks for the
        lock, it may leave a lock behind, whose lease ends by itself.

        Args:
            lock: its name.
            ttl_s: how long the lock outlives a holder that dies, in seconds.
            wait_s: how long to wait for it, in seconds; None for ever.
            owner: a name, for people; None for the host and process.

        Raises:
            ConfigurationError: `ttl_s` is not positive.
            TimeoutError: it was held by others all the time, or the cluster did not answer.
            LeaseLostError: it was lost in the block.
            RequestError: the cluster did not answer.
        """
        if not ttl_s > 0:
            raise ConfigurationError(f"ttl_s = {ttl_s!r}: expected seconds, more than 0")
        ttl_ms = max(round(ttl_s * 1000), 1)
        name = own_name() if owner is None else owner
        token, sent = await self._acquired(lock, name, ttl_ms, wait_s)
        lost = True
        try:
            with trio.CancelScope() as block:
                async with trio.open_nursery() as nursery:
                    block.deadline = sent + ttl_s
                    nursery.start_soon(self._renewing, lock, token, ttl_ms, block)
                    yield Held(lock, token)
                    lost = False
                    nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(RELEASE_S, shield=True):
                await self._give_back(lock, token)
        if lost and block.cancelled_caught:
            raise LeaseLostError(
                f"the lock {lock!r} (token {token}) was lost: its lease of {ttl_s:g} s could not "
                "be renewed in time"
            )

    async def _acquired(
        self, lock: str, owner: str, ttl_ms: int, wait_s: float | None
    ) -> tuple[int, float]:
        """Take a lock; return its token, and when the call was sent."""
        limit = float("inf") if wait_s is None else wait_s
        with trio.move_on_after(limit):
            while True:
                while self.leases.get(lock) is not None:
                    await self.changed()
                sent = trio.current_time()
                if token := await self.acquire(lock, owner, ttl_ms):
                    return token, sent
        if lock in self.leases:
            raise TimeoutError(f"the lock {lock!r} was held by others for {limit:g} s")
        raise TimeoutError(f"the lock {lock!r}: the cluster did not answer within {limit:g} s")

    async def _renewing(self, lock: str, token: int, ttl_ms: int, block: trio.CancelScope) -> None:
        """Renew the lease; cancel the block if it is lost."""
        while True:
            await trio.sleep(ttl_ms / 1000 / RENEWALS)
            sent = trio.current_time()
            try:
                if not await self.renew(lock, token, ttl_ms):
                    block.cancel()
                    return
            except RequestError:
                continue  # the block's deadline decides
            block.deadline = sent + ttl_ms / 1000

    async def _give_back(self, lock: str, token: int) -> None:
        with suppress(RequestError, ConfigurationError):  # the lease ends by itself
            await self.release(lock, token)

    # --- in the log's time

    def next_deadline_ms(self) -> int | None:
        """Return when the first lease ends."""
        return self.first_end_ms or None

    def expire(self) -> None:
        """Remove the leases that have ended."""
        for lock in [lock for lock, lease in self.leases.items() if lease.ends_ms <= self.now_ms]:
            del self.leases[lock]
        self.first_end_ms = min((lease.ends_ms for lease in self.leases.values()), default=0)

    def _holder(self, lock: str) -> Lease | None:
        held = self.leases.get(lock)
        return held if held and held.ends_ms > self.now_ms else None

    def _lend(self, lock: str, lease: Lease) -> None:
        self.leases[lock] = lease
        # A renewal leaves the old time: `expire` then finds nothing, and looks for the next one.
        if not self.first_end_ms or lease.ends_ms < self.first_end_ms:
            self.first_end_ms = lease.ends_ms
