"""What is done when a partition has answered that it does not own a slot.

The answer is definite: this attempt did nothing. So the next one may go to another partition.

- ``MOVED slot address``: to the partition whose member it names
- ``NOTHERE``: the reply to a request in a session, which names nobody, since all members must give
  the same one. A read of the same key is answered with ``MOVED``. A request in a session is done
  whole or not at all, so a command may get it that was only sent together with another one
- ``CLUSTERDOWN``: nobody owns the slot, as far as the partition knows; it may have no map yet
- ``TRYAGAIN``: the slot moves just now, and that takes long
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from ...errors import NoLeaderError
from ...keyvalue.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..group import StoreOptions
    from .placement import Placement

__all__ = ["ELSEWHERE", "NOT_HERE", "Astray", "Search", "is_elsewhere"]

ELSEWHERE: Final = (b"-MOVED ", b"-NOTHERE ", b"-CLUSTERDOWN ", b"-TRYAGAIN ")
"""How the replies begin that say so."""

NOT_HERE: Final = b"-NOTHERE "

_CODES: Final = frozenset({"MOVED", "NOTHERE", "CLUSTERDOWN", "TRYAGAIN"})

_MOST_HOPS: Final = 3
"""Partitions that are asked without a pause. Fewer, and a slot that has moved twice costs one.
More, and partitions that name each other keep the client busy."""


def is_elsewhere(code: str) -> bool:
    """Whether an error reply with this code says that the slot is not there."""
    return code in _CODES


class Astray(NamedTuple):
    """What a partition has answered that does not own a slot.

    Args:
        asked: the partition; None if we know of no owner, and have asked nobody.
        text: of its error; empty if it owns the slot, but not that of a command next to it.
    """

    asked: int | None
    text: str


class Search:
    """The search for the owner of the slots of one call.

    Args:
        placement: knows the map.
        options: how long to search.
    """

    def __init__(self, placement: Placement, options: StoreOptions) -> None:
        self._placement, self._patience_s = placement, options.patience_s
        deadline = anyio.current_time() + options.patience_s
        self._retry = Retry(anyio.current_time, deadline, rng=options.rng)
        self._hops = 0

    async def go_on(self, astray: Mapping[int, Astray]) -> None:
        """Find other owners of slots, or wait a moment if there is one without another owner.

        Args:
            astray: for each slot, who was asked, and with which result.

        Raises:
            NoLeaderError: it is time to give up.
        """
        placement, may_hop = self._placement, self._hops < _MOST_HOPS
        self._hops += 1
        lost = [slot for slot, found in astray.items() if not placement.learn(slot, *found)]
        if lost or placement.is_old:
            await placement.refresh()
        waiting = [slot for slot in lost if placement.owner_of(slot) in {astray[slot].asked, None}]
        if waiting or not may_hop:
            slot = waiting[0] if waiting else next(iter(astray))
            await self.pause(astray[slot].text, f"slot {slot}")

    async def pause(self, text: str, what: str) -> None:
        """Wait a moment.

        Raises:
            NoLeaderError: it is time to give up.
        """
        pause = self._retry.pause_s()
        if pause is None:
            why = text or "the map of the cluster has no partition for it"
            raise NoLeaderError(
                f"{what} was not served within {self._patience_s:g} s: {why}; nothing was done"
            )
        await anyio.sleep(pause)
