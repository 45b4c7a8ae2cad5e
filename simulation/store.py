"""The simulated key-value store: members flush at different times, and report their states.

Each member decides by itself when to flush applied changes from memory to disk. That time must not
affect any reply or the state. So every member draws its own flush times at each start, and reports
its state at the same positions as all other members, for comparison.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..etcd.messages.requests import Op, encode_request
from ..keyvalue.service import KeyValueService
from ..storage.tables.tables import FLUSH_BYTES, Tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ..keyvalue.keyspace import Keyspace
    from .machines.host import Place

INTERVALS_S: Final = (0.05, 0.5, 5.0)
"""Seconds that a change stays in memory only; one of them is chosen at each start."""

MEMORY_BYTES: Final = (1 << 11, FLUSH_BYTES)
"""Bytes of changes that may stay in memory; one of them is chosen at each start."""

PAGE_KEYS: Final = 64
DIGEST_BYTES: Final = 12
_HASH: Final = encode_request(Op.HASH_KV, b"")


class Store(KeyValueService):
    """The key-value store, with a summary of its state.

    Args:
        tables: the tables that hold the state.
        partition: it serves the slots that it owns, and no other keys.
        keyspace: makes the second keyspace; None for none.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        partition: bool = False,
        keyspace: Callable[[Tables], Keyspace] | None = None,
    ) -> None:
        super().__init__(tables, partition=partition, keyspace=keyspace)
        self.tables = tables

    @property
    def now_ms(self) -> int:
        """Log time, in milliseconds."""
        return self._store.now

    def slot_states(self) -> bytes:
        """Return what this partition says of each slot; see `Ownership`."""
        assert self.ownership is not None
        return bytes(self.ownership.states)

    def owner_epoch(self, slot: int) -> int:
        """Return the owner epoch of a slot, as this partition knows it."""
        assert self.ownership is not None
        return self.ownership.epoch_of(slot)

    def state(self) -> bytes:
        """Return a summary of all notes and rows, and of all keys, with revisions and types.

        Also of keys that are due and still there: watchers see when these go.
        """
        held = blake2b(
            repr(sorted(self.tables.notes.rows.items())).encode(), digest_size=DIGEST_BYTES
        )
        for key, row in self.tables.all_rows():
            held.update(b"%d %d " % (len(key), len(row)) + key + row)
        if self.keyspace is not None:
            held.update(self.keyspace.query(_HASH, self.now_ms))
        place: bytes | None = b""
        while place is not None:
            keys, place = self.tables.page(place, PAGE_KEYS)
            for key in keys:
                record = self.tables.get(key)
                if record is not None:
                    held.update(repr((key, *record)).encode())
        return held.digest()


def stores(
    rng: Random,
    *,
    partition: bool = False,
    keyspace: Callable[[Tables], Keyspace] | None = None,
) -> Callable[[Place], Store]:
    """Return a factory of the members' stores; `rng` determines their flush times."""

    def make(place: Place) -> Store:
        return Store(
            Tables.open(
                place.directory,
                cluster=place.cluster,
                member_id=place.member_id,
                executor=place.executor,
                flush_interval_s=rng.choice(INTERVALS_S),
                flush_bytes=rng.choice(MEMORY_BYTES),
            ),
            partition=partition,
            keyspace=keyspace,
        )

    return make
