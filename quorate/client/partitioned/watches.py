"""Watches in a cluster with partitions: each asks the members of the one that has its keys.

When a slot moves, the old partition ends the watch behind the last change that is its own, and the
watch goes on at the new one with the same place: revisions of a key rise over moves. A watch whose
connection is lost asks its own partition again, whatever the map says by then. That one still has
the changes up to the move; the new one has none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import KeyValueError, NoLeaderError
from ...keyvalue.slots.hashing import prefix_slot
from ..watch import RemoteWatch, RemoteWatches
from .search import is_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...transport import Address
    from ..dialling import Dialler, Wire
    from ..group import StoreOptions
    from .placement import Placement

__all__ = ["PartitionedWatches"]


class PartitionedWatches(RemoteWatches):
    """Makes watches of keys of one slot; see `RemoteWatches`.

    Args:
        dialler: opens connections.
        placement: says who has which keys.
        options: how long a watch tries to reach a member.
    """

    def __init__(self, dialler: Dialler, placement: Placement, options: StoreOptions) -> None:
        super().__init__(dialler, (), patience_s=options.patience_s, rng=options.rng)
        self._placement, self._options = placement, options

    def _new(self, prefix: bytes, after: int) -> RemoteWatch:
        members = self._placement.members_serving(prefix)
        slot = prefix_slot(prefix)
        partition = None if slot is None else self._placement.owner_of(slot)
        if slot is None or partition is None or not members:
            raise NoLeaderError(f"no partition has the keys with the prefix {prefix!r:.60} now")
        return _PartitionedWatch(
            self._dialler, self._placement, self._options, prefix, after, where=(slot, partition)
        )


class _PartitionedWatch(RemoteWatch):
    """A watch of keys of one slot; see `RemoteWatch`.

    Args:
        dialler: opens connections.
        placement: says who has which keys.
        options: how long it tries to reach a member.
        prefix: of the keys.
        after: see `WatchSource`.
        where: their slot, and the partition that has it now.
    """

    def __init__(
        self,
        dialler: Dialler,
        placement: Placement,
        options: StoreOptions,
        prefix: bytes,
        after: int,
        *,
        where: tuple[int, int],
    ) -> None:
        self._placement, self._rng = placement, options.rng
        self._slot, self._partition = where
        super().__init__(dialler, self._members(), prefix, after, options.patience_s)

    def _members(self) -> Sequence[Address]:
        members = self._placement.members_of(self._partition)
        return self._rng.sample(members, len(members))

    async def _find_position(self, wire: Wire) -> None:
        # The partition says where the watch begins, if it has the keys: another one's place would
        # be of another log.
        pass

    async def _members_after(self, error: Exception) -> Sequence[Address] | None:
        text, placement = str(error), self._placement
        if not (isinstance(error, KeyValueError) and is_elsewhere(error.code)):
            if self._retry is None:
                return None  # a member has died: the others are likely to be well
            await placement.refresh()  # replicas may have moved
        elif placement.learn(self._slot, self._partition, text) or await placement.refresh():
            owner = placement.owner_of(self._slot)
            self._partition = self._partition if owner is None else owner
        return self._members() or None
