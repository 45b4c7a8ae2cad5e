"""Who leads: the owners of a leased key, as an async iterator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from .waiting import owned, patiently, until_changed

if TYPE_CHECKING:
    from ..keyvalue.programs.client import KeyValue
    from .lease import Holder

__all__ = ["Leaders"]

_POLL_S: Final = 10.0
"""The key is read at least this often. Smaller, and many observers load the leader. Larger, and an
observer whose watch was lost without an error hears late of a new leader."""


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
        while True:
            if self._looked:
                await until_changed(self._kv, {self._key: self._seen}, self._key, poll_s=_POLL_S)
            found = await patiently(self._look)
            news = not self._looked or found != self._seen
            self._seen, self._looked = found, True
            if news:
                return found

    async def _look(self) -> Holder | None:
        found = await owned(self._kv, [self._key])
        return found[0].holder if found else None
