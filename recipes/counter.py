"""A number that many programs add to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arguments import check_store
from .names import prefix_of

if TYPE_CHECKING:
    from ..keyvalue.programs.client import KeyValue

__all__ = ["Counter"]


class Counter:
    """A counter of the whole cluster: ``quorate:counter:{<name>}:value``.

    Each `add` counts once if the store has a session: `quorate.connect` has one unless it is told
    otherwise, and `open_session` gives one to a program that runs a member. Without a session, an
    `add` that raises :class:`~quorate.errors.UnknownOutcomeError` may have counted.

    Args:
        kv: the store.
        name: of the counter: 1 to 200 characters, see :mod:`.names`.

    Raises:
        ConfigurationError: the name can't be one, or `kv` is no store.
    """

    def __init__(self, kv: KeyValue, name: str) -> None:
        check_store(kv)
        self._kv = kv
        self._key = prefix_of("counter", name) + b"value"

    def __repr__(self) -> str:
        return f"<Counter {self._key!r}>"

    async def add(self, by: int = 1) -> int:
        """Add to the counter; return the sum.

        Raises:
            KeyValueError: the sum would not fit into 64 bits. Nothing was added.
        """
        return await self._kv.increment(self._key, by)

    async def value(self) -> int:
        """Return the sum of everything that was added; 0 for a new counter."""
        return int(await self._kv.get(self._key) or b"0")
