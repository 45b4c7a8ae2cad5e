"""The election of a leader among programs: a lock whose owner everybody can see.

::

    async with election(kv, "mailer").lead() as held:
        ...                       # we lead; cancelled when that is lost

    async for leader in election(kv, "mailer").observe():
        print(leader)             # Holder(name, token, ...), or None while there is none

These are programs that use the store. The members of the cluster elect their own leader otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from .lease import Lease
from .lock import owner_key, owning
from .names import prefix_of
from .waiting import OwnerWatch, owned, patiently

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from .lease import Holder

__all__ = ["Election", "Leaders", "election"]

_POLL_S: Final = 10.0
"""The key is read at least this often. Smaller, and many observers load the leader. Larger, and an
observer whose watch was lost without an error hears late of a new leader."""


class Election:
    """An election; made by `election`. Its candidates lead in the order in which they came."""

    def __init__(
        self,
        kv: KeyValue,
        subject: str,
        *,
        ttl_s: float,
        name: str | None,
        rng: Random | None,
    ) -> None:
        self._kv = kv
        self._title = f"leadership {subject!r}"
        self._key = owner_key(prefix_of("election", subject))
        self._ttl_s = ttl_s
        self._name = name
        self._rng = rng
        self._lease()  # checks the arguments

    def lead(self, *, wait_s: float | None = None) -> AbstractAsyncContextManager[Lease]:
        """Wait to be the leader, and lead for the length of the block; see `lock`.

        Args:
            wait_s: how long to wait, in seconds; None for any time, 0 to try once.

        Yields:
            The lease. Its `token` rises from leader to leader.

        Raises:
            TimeoutError: others led for the whole time.
            LeaseLostError: the leadership was lost before the block ended.
        """
        return owning(self._lease(), wait_s=wait_s)

    def observe(self) -> Leaders:
        """Return the present leader and each later one, as an async iterator."""
        return Leaders(self._kv, self._key)

    def _lease(self) -> Lease:
        return Lease(
            self._kv,
            self._key,
            ttl_s=self._ttl_s,
            name=self._name,
            rng=self._rng,
            title=self._title,
        )


class Leaders:
    """The present leader, and then each later one; None while there is none.

    A leader that led only for a moment may be left out. It holds nothing, so it need not be closed.
    """

    def __init__(self, kv: KeyValue, key: bytes) -> None:
        self._kv = kv
        self._key = key
        self._seen: Holder | None = None
        self._looked = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Holder | None:
        """Return the next leader; wait for it."""
        async with OwnerWatch(self._kv) as watch:
            while True:
                if self._looked:
                    await watch.until_changed({self._key: self._seen}, self._key, poll_s=_POLL_S)
                found = await patiently(self._look)
                news = not self._looked or found != self._seen
                self._seen, self._looked = found, True
                if news:
                    return found

    async def _look(self) -> Holder | None:
        found = await owned(self._kv, [self._key])
        return found[0].holder if found else None


def election(
    kv: KeyValue,
    subject: str,
    /,
    *,
    ttl_s: float = 10.0,
    name: str | None = None,
    rng: Random | None = None,
) -> Election:
    """Return an election, in which we may take part or not.

    Args:
        kv: the store.
        subject: what is led: 1 to 200 bytes, see :mod:`.names`.
        ttl_s: seconds after which a dead leader is replaced: 0.1 to 86,400.
        name: our name, for those who observe; None for the host and process.
        rng: makes random numbers; None for the system's.

    Raises:
        ConfigurationError: an argument is out of range.
    """
    return Election(kv, subject, ttl_s=ttl_s, name=name, rng=rng)
