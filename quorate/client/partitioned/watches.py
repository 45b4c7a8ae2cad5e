"""Watches in a cluster with partitions: each asks the members of the one that has its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import NoLeaderError
from ..watch import RemoteWatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...transport import Address
    from ..dialling import Dialler
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
        self._placement = placement

    def _members_of(self, prefix: bytes) -> Sequence[Address]:
        members = self._placement.members_serving(prefix)
        if not members:
            raise NoLeaderError(f"no partition has the keys with the prefix {prefix!r:.60} now")
        return members
