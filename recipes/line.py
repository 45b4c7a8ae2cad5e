"""A line of waiters, in the order in which they came.

A waiter has a *ticket*: a leased key below the line's prefix. Its token, the log position at which
it was taken, is its place. A program may send several requests as one entry of the log; of tickets
with the same position, the one with the lower key comes first.

All that a waiter needs to know is which older tickets there are. These can only become fewer: a
ticket that is taken later has a higher token, even if it has the same key. So the list need not be
read at one point of the log. Once a waiter has seen that nothing stands in its way, that stays true
for as long as it has its ticket.

A waiter that dies renews nothing; its ticket expires, and the line moves on. One that loses its
ticket while it waits takes another one, and waits behind all others.

Waiters watch only the tickets that stand in their way. A watch can be lost, so they also read the
line again from time to time.

The keys of tickets are few and used again: a deleted key costs a walk over its neighbours nearly as
much as one that exists, until the members flush their tables.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..errors import LeaseLostError
from .lease import Holder, Lease
from .waiting import NotNowError, Owned, OwnerWatch, in_time, owned, patiently

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from ..keyvalue.programs.client import KeyValue

__all__ = ["Line", "Obstacle", "Rule", "first", "head", "unopposed"]

_KEYS: Final = 64
"""Keys of tickets that a short line uses. Fewer, and waiters draw taken ones more often. More, and
each look at the line takes longer."""

_SCAN_COUNT: Final = 256
"""Keys that one request for the tickets looks at. Fewer, and long lines take more requests. More,
and short ones load the leader with the keys behind them."""


class Obstacle(NamedTuple):
    """What a waiter waits for.

    Args:
        tickets: that stand in its way.
        needed: how many of these must be gone.
    """

    tickets: Sequence[Owned]
    needed: int = 1


Rule: TypeAlias = "Callable[[Sequence[Owned]], Obstacle | None]"
"""Takes the older tickets, oldest first; returns what stands in the way, or None for nothing."""


def head(older: Sequence[Owned]) -> Obstacle | None:
    """Let the oldest ticket go. Each other one waits for the one before it."""
    return Obstacle(older[-1:]) if older else None


def unopposed(_older: Sequence[Owned]) -> Obstacle | None:
    """Let every ticket go."""
    return None


def first(count: int) -> Rule:
    """Let the oldest `count` tickets go."""

    def rule(older: Sequence[Owned]) -> Obstacle | None:
        return Obstacle(older, len(older) - count + 1) if len(older) >= count else None

    return rule


def _place(ticket: Owned) -> tuple[int, bytes]:
    """Return where a ticket is in the line."""
    return ticket.holder.token, ticket.key


class Line:
    """The tickets below a prefix, and a way to take one.

    Args:
        kv: the store.
        prefix: of the keys.
        ttl_s: of a ticket, in seconds.
        name: of those who take tickets here; see `Lease`.
        rng: makes random numbers; None for the system's.
        title: of what they wait for, for error messages.

    Raises:
        ConfigurationError: an argument is out of range.

    Attributes:
        blocker: whom a waiter was last found to wait for.
    """

    def __init__(
        self,
        kv: KeyValue,
        prefix: bytes,
        *,
        ttl_s: float,
        name: str | None,
        rng: Random | None,
        title: str,
    ) -> None:
        self.blocker: Holder | None = None
        self._kv = kv
        self._prefix = prefix
        self._ttl_s = ttl_s
        self._name = name
        self._rng = rng or SystemRandom()
        self._title = title
        self._ticket(prefix)  # checks the arguments

    def whom(self) -> str:
        """Return who stands in the way, for an error message; empty if nobody was seen."""
        holder = self.blocker
        return f": {holder.name!r} is before us, token {holder.token}" if holder else ""

    async def tickets(self) -> list[Owned]:
        """Return the tickets, oldest first."""
        walk = self._kv.scan(self._prefix + b"*", count=_SCAN_COUNT)
        keys = sorted({key async for key in walk})  # some may come twice
        return sorted(await owned(self._kv, keys) if keys else [], key=_place)

    @asynccontextmanager
    async def place(
        self, rule: Rule, kind: bytes = b"", *, wait_s: float | None
    ) -> AsyncGenerator[Lease]:
        """Hold a ticket with nothing in its way, for the length of the block.

        Args:
            rule: decides that.
            kind: part of the ticket's key, for the rule.
            wait_s: how long to wait, in seconds; None for any time, 0 to look once.

        Raises:
            TimeoutError: something was in its way for the whole time.
            LeaseLostError: the ticket was lost before the block ended.
        """

        async def enter(*, once: bool) -> Lease:
            return await self.enter(rule, kind, once=once)

        ticket = await in_time(wait_s, enter, self._title, self.whom)
        async with ticket.held():
            yield ticket

    async def enter(self, rule: Rule, kind: bytes = b"", *, once: bool = False) -> Lease:
        """Take a ticket, and wait until nothing stands in its way.

        Returns:
            The ticket. The caller keeps and releases it.

        Raises:
            NotNowError: `once`, and something stands in its way.
        """
        while True:
            ticket = await self._take(kind, once=once)
            try:
                async with ticket.kept():
                    await self._turn(ticket, rule, once=once)
            except LeaseLostError:
                await ticket.release()
            except BaseException:
                await ticket.release()
                raise
            else:
                return ticket

    async def _take(self, kind: bytes, *, once: bool) -> Lease:
        """Take a ticket with a key that nobody has."""
        count = _KEYS
        while True:
            key = b"%b%b%x" % (self._prefix, kind, self._rng.randrange(count))
            ticket = self._ticket(key)
            try:
                if await patiently(ticket.acquire, once=once):
                    return ticket
            except BaseException:
                await ticket.release()
                raise
            # It is taken: the line is long, or this was bad luck.
            await ticket.release()
            count *= 2

    def _ticket(self, key: bytes) -> Lease:
        return Lease(
            self._kv, key, ttl_s=self._ttl_s, name=self._name, rng=self._rng, title=self._title
        )

    async def _turn(self, ticket: Lease, rule: Rule, *, once: bool) -> None:
        """Wait until nothing stands in the way of a ticket."""
        async with OwnerWatch(self._kv) as watch:
            while rule is not unopposed:
                obstacle = await self._obstacle(ticket, rule, once=once)
                if obstacle is None:
                    return
                self.blocker = obstacle.tickets[-1].holder
                if once:
                    raise NotNowError
                seen = {each.key: each.holder for each in obstacle.tickets}
                prefix = obstacle.tickets[0].key if len(seen) == 1 else self._prefix
                await watch.until_changed(seen, prefix, obstacle.needed, poll_s=self._ttl_s)

    async def _obstacle(self, ticket: Lease, rule: Rule, *, once: bool) -> Obstacle | None:
        """Return what stands in the way of a ticket."""
        tickets = await patiently(self.tickets, once=once)
        # Older tickets may be gone because log time has jumped, which has ended ours, too.
        if not any(ticket.tried(each.holder) for each in tickets):
            raise LeaseLostError(f"the ticket {ticket.key!r} is gone")
        return rule([each for each in tickets if _place(each) < (ticket.token, ticket.key)])
