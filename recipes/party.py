"""A party: programs that are here, as everybody can see.

Each member has a leased key below ``quorate:party:{<name>}:member:``. One that dies renews nothing
and is gone when its lease has expired.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from .cache import Cache, cached
from .lease import Holder, Lease, holder_of_untrusted
from .line import Line, unopposed
from .names import prefix_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from ..keyvalue.programs.client import KeyValue

__all__ = ["Members", "Party"]


class Members:
    """The members of a party, as an async iterator; made by :meth:`Party.observe`.

    It returns those of now, and then those after each change. If several members have come and gone
    since it was asked last, these are one change.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._seen: tuple[Holder, ...] | None = None

    @property
    def now(self) -> tuple[Holder, ...]:
        """The members, in the order in which they came."""
        found = [
            holder_of_untrusted(value, self._cache.revision_of(key))
            for key, value in self._cache.items()
        ]
        return tuple(sorted(found, key=lambda member: member.token))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Holder, ...]:
        """Return the members; wait until they are others than before."""
        while self.now == self._seen:  # a renewal changes keys, too
            await self._cache.changed()
        self._seen = self.now
        return self._seen


class Party:
    """A party of the whole cluster.

    Args:
        kv: the store.
        name: of the party: 1 to 200 characters, see :mod:`.names`.
        ttl_s: seconds after which a dead member is gone: 0.1 to 86,400.
        rng: makes random numbers; None for the system's.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self, kv: KeyValue, name: str, *, ttl_s: float = 10.0, rng: Random | None = None
    ) -> None:
        self._kv = kv
        self._title = f"a place in party {name!r}"
        self._prefix = prefix_of("party", name) + b"member:"
        self._ttl_s, self._rng = ttl_s, rng
        self._line(None)  # checks the arguments

    def __repr__(self) -> str:
        return f"<Party {self._prefix!r}>"

    def join(self, name: str | None = None) -> AbstractAsyncContextManager[Lease]:
        """Be a member for the length of the block, which is cancelled when that is lost.

        Args:
            name: ours, an address for instance; None for the host and process. Several members may
                have the same.

        Raises:
            LeaseLostError: the membership was lost before the block ended.
            ConfigurationError: the name can't be one.
        """
        return self._line(name).place(unopposed, wait_s=None)

    async def members(self) -> tuple[Holder, ...]:
        """Return the members, in the order in which they came."""
        return tuple(each.holder for each in await self._line(None).tickets())

    @asynccontextmanager
    async def observe(self) -> AsyncGenerator[Members]:
        """Watch the members for the length of the block; yield an async iterator over them.

        ::

            async with party.observe() as changes:
                async for members in changes:
                    print([member.name for member in members])
        """
        async with cached(self._kv, self._prefix) as cache:
            yield Members(cache)

    def _line(self, name: str | None) -> Line:
        return Line(
            self._kv,
            self._prefix,
            ttl_s=self._ttl_s,
            name=name,
            rng=self._rng,
            title=self._title,
        )
