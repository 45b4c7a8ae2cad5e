"""A barrier: programs wait for each other until there are enough of them.

A program that waits has a ticket (:mod:`.line`), so one that dies while it waits does not count.
Whoever sees enough tickets lets the oldest ones through, by one transaction: it deletes their
tickets, and writes for each of them that it is through, and as which one. The transaction fails if
one of these tickets is gone by then. So exactly that many are let through at a time; others wait
for the next time, and a barrier may be used again at once.

The keys are ``quorate:barrier:{<name>}:waiting:...`` and ``...:through:...``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError, ConflictError, LeaseLostError
from .lease import Holder, Lease, holder_of_untrusted
from .line import Line, unopposed
from .names import prefix_of
from .waiting import NotNowError, OwnerWatch, in_time, owned, patiently

if TYPE_CHECKING:
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.transaction import Transaction

__all__ = ["Barrier"]

MAX_PARTIES: Final = 500
"""Far below the keys that one transaction may read and the commands that it may have."""

_KEPT_MS: Final = 600_000
"""How long it is kept that somebody is through. Shorter, and one that is cut off for so long waits
again, alone; longer, and barriers that are used often leave more keys."""


class Barrier:
    """A barrier of the whole cluster.

    Args:
        kv: the store.
        name: of the barrier: 1 to 200 characters, see :mod:`.names`.
        parties: how many are let through together: 1 to 500.
        ttl_s: seconds after which a dead program does not count any more: 0.1 to 86,400.
        waiter: our name, for those who look at the keys; None for the host and process.
        rng: makes random numbers; None for the system's.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        kv: KeyValue,
        name: str,
        parties: int,
        *,
        ttl_s: float = 10.0,
        waiter: str | None = None,
        rng: Random | None = None,
    ) -> None:
        if not isinstance(parties, int) or not 1 <= parties <= MAX_PARTIES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"parties = {parties!r:.60}: expected 1 to {MAX_PARTIES}")
        prefix = prefix_of("barrier", name)
        self._kv, self._parties, self._ttl_s, self._rng = kv, parties, ttl_s, rng
        self._title = f"barrier {name!r}"
        self._through = prefix + b"through:"
        self._line = Line(
            kv, prefix + b"waiting:", ttl_s=ttl_s, name=waiter, rng=rng, title=self._title
        )

    def __repr__(self) -> str:
        return f"<Barrier {self._through!r} for {self._parties}>"

    async def wait(self, *, wait_s: float | None = None) -> int:
        """Wait until enough programs wait here.

        Args:
            wait_s: how long to wait, in seconds; None for any time.

        Returns:
            Which one we are among those that are let through: 0 for the one that came first.

        Raises:
            TimeoutError: there were not enough in time. One that gives up in the moment in which it
                is let through counts for the other ones.
        """
        return await in_time(wait_s, self._wait, self._title, lambda: "", "did not open")

    async def _wait(self, *, once: bool) -> int:
        while True:
            ticket = await self._line.enter(unopposed)
            # Our ticket is deleted when we are let through. That may look like a lost lease.
            with suppress(LeaseLostError):
                async with ticket.releasing(), ticket.kept():
                    await self._until_deleted(ticket, once=once)
            index = await patiently(lambda: self._kv.get(self._place(ticket.token)))  # noqa: B023
            if index is not None:
                return int(index)
            if once:
                raise NotNowError

    async def _until_deleted(self, ticket: Lease, *, once: bool) -> None:
        """Wait until our ticket is gone; let enough parties through if they are here."""
        async with OwnerWatch(self._kv) as watch:
            while (holder := await patiently(lambda: self._holder(ticket))) is not None:
                await patiently(self._open)
                if once:
                    return
                await watch.until_changed({ticket.key: holder}, ticket.key, poll_s=self._ttl_s)

    async def _holder(self, ticket: Lease) -> Holder | None:
        """Return our ticket as others see it; None if it is gone."""
        found = await owned(self._kv, [ticket.key])
        return found[0].holder if found and found[0].holder.token == ticket.token else None

    async def _open(self) -> None:
        """Let the oldest tickets through, if there are enough."""
        tickets = (await self._line.tickets())[: self._parties]
        if len(tickets) < self._parties:
            return

        async def body(t: Transaction) -> None:
            records = await t.records([each.key for each in tickets])
            for each, record in zip(tickets, records, strict=True):
                here = record and holder_of_untrusted(record.value, record.revision)
                if here is None or here.token != each.holder.token:
                    return
            t.delete(*(each.key for each in tickets))
            for index, each in enumerate(tickets):
                t.set(self._place(each.holder.token), str(index), px=_KEPT_MS)

        # After so many renewals in its way, the next look tries again.
        with suppress(ConflictError):
            await self._kv.transact(body, rng=self._rng)

    def _place(self, token: int) -> bytes:
        return b"%b%d" % (self._through, token)
