"""The key-value store as it is simulated: each member flushes when it likes, and can be compared.

Each member decides by itself when to flush what it has applied from memory to disk. The moment must
not show in any reply, nor in the state. So every member draws its own flush times at each start,
and reports its state at the same positions as all other members.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..keyvalue.state.service import KeyValueService
from ..storage.tables.tables import FLUSH_BYTES, Tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .machines.host import Place

INTERVALS_S: Final = (0.05, 0.5, 5.0)
"""How long a change stays in memory only; one of them is chosen at each start, in seconds."""

MEMORY_BYTES: Final = (1 << 11, FLUSH_BYTES)
"""How much of it there may be."""

PAGE_KEYS: Final = 64
DIGEST_BYTES: Final = 12


class Store(KeyValueService):
    """The store, and what it holds.

    Args:
        tables: where it holds it.
    """

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.tables = tables
        self.now = 0

    def advance(self, position: int, timestamp_ms: int) -> None:
        """See `Service`."""
        self.now = max(self.now, timestamp_ms)
        super().advance(position, timestamp_ms)

    def state(self) -> bytes:
        """Stand for all keys that have not expired, with revisions and types, and for all notes."""
        held = blake2b(
            repr(sorted(self.tables.notes.rows.items())).encode(), digest_size=DIGEST_BYTES
        )
        place: bytes | None = b""
        while place is not None:
            keys, place = self.tables.page(place, PAGE_KEYS)
            for key in keys:
                record = self.tables.get(key)
                if record is not None and not 0 < record[1] <= self.now:
                    held.update(repr((key, *record)).encode())
        return held.digest()


def stores(rng: Random) -> Callable[[Place], Store]:
    """Give what makes the members' stores, whose flushes are drawn from `rng`."""

    def make(place: Place) -> Store:
        return Store(
            Tables.open(
                place.directory,
                cluster=place.cluster,
                member_id=place.member_id,
                executor=place.executor,
                flush_interval_s=rng.choice(INTERVALS_S),
                flush_bytes=rng.choice(MEMORY_BYTES),
            )
        )

    return make
