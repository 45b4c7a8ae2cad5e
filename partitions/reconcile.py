"""What the groups have is compared with the map, again and again, and set right.

- A partition without slots gets its first ones, and with them the users, if a split made it.
- Moves that groups have begun and the map does not know are ended.
- A map that is older than the groups is corrected.
- What groups have of slots that are not theirs is deleted.

Nothing of this moves slots: that is the :mod:`.director`'s.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import trio

from ..errors import ConfigurationError, QuorateError
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.ranges import parse_slots_untrusted, text_of
from ..log_events import log_event
from .groups import slots_command
from .metadata import load
from .move import purge
from .slots_state import state_of
from .users import lines_of
from .wishes import correct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..keyvalue.slots.cluster_map import ClusterMap, Partition
    from .groups import Groups
    from .slots_state import SlotsState
    from .waits import Waits

__all__ = ["Reconciler"]

_log = logging.getLogger("quorate.partitions")

PERIOD_S: Final = 1.0
"""Seconds between two looks at the slots of all groups, as long as some do not answer."""

RECONCILE_S: Final = 10.0
"""The same, once all have answered."""

_ANSWER_S: Final = 2.0
"""Seconds for a group to say what it owns; then the others are looked at without it."""


class Reconciler:
    """Sets right what groups have, and what the map says of that.

    Args:
        groups: of the cluster.
        driven: returns the numbers of the moves that are being done.
        waits: logs why nothing can be done.
    """

    def __init__(self, groups: Groups, driven: Callable[[], Collection[int]], waits: Waits) -> None:
        self._groups, self._driven, self._waits = groups, driven, waits
        self._meta = groups.group(META)
        self._purging: set[int] = set()
        self._founding = trio.Lock()

    async def run(self) -> Never:
        """Look at the groups until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                complete = False
                try:
                    complete = await self._look(nursery)
                except QuorateError as error:
                    self._waits.say(error)
                await trio.sleep(RECONCILE_S if complete else PERIOD_S)
        raise AssertionError("it only ends by being cancelled")

    async def _look(self, nursery: trio.Nursery) -> bool:
        """Look at the slots of all groups; return whether all of them have answered."""
        cluster_map = await load(self._meta)
        if cluster_map is None:
            return False
        states: dict[int, SlotsState] = {}
        async with trio.open_nursery() as asking:
            for each in cluster_map.partitions:
                asking.start_soon(self._ask, each, states)
        # After the states: a move that a group knew then is in this map, or has ended.
        before, cluster_map = cluster_map, await load(self._meta) or cluster_map
        known = {each.move for each in cluster_map.moves}.union(self._driven())
        for partition, state in states.items():
            for number in {*state.frozen, *state.importing} - known:
                try:
                    await self._end_unknown(cluster_map, partition, number, state)
                except QuorateError as error:
                    self._waits.say(error)
            if state.stale and partition not in self._purging:
                self._purging.add(partition)
                nursery.start_soon(self._purge, partition)
        complete = len(states) == len(cluster_map.partitions)
        if complete and before == cluster_map and not self._driven():
            await self._correct(cluster_map, states)
        return complete

    async def _correct(self, cluster_map: ClusterMap, states: dict[int, SlotsState]) -> None:
        """Have the map say what the groups own, if nothing moves: an older one was restored."""
        if cluster_map.moves or any(each.frozen or each.importing for each in states.values()):
            return
        owned = {partition: state.owned for partition, state in states.items()}
        highest = max(state.highest for state in states.values())
        if await correct(self._meta, cluster_map, owned, highest):
            log_event(
                _log,
                logging.WARNING,
                "map_corrected",
                "the map (epoch %(epoch)d) was older than the partitions; it is right again",
                epoch=cluster_map.epoch,
            )

    async def _ask(self, partition: Partition, states: dict[int, SlotsState]) -> None:
        try:
            states[partition.partition] = await self.founded(partition, _ANSWER_S)
        except QuorateError as error:
            self._waits.say(error)

    async def founded(self, partition: Partition, within_s: float) -> SlotsState:
        """Ask a partition for its slots; give it the first ones if it has had none.

        Raises:
            ConfigurationError: it has none, although it was founded before.
            RequestError: it does not answer.
        """
        group = self._groups.group(partition.partition)
        state = await state_of(group, within_s=within_s)
        if state.founded:
            return state
        if partition.members:
            raise ConfigurationError(
                f"partition {partition.partition} has lost everything, and begun anew: expected "
                "the members that have its keys; start those, or restore it from a backup"
            )
        async with self._founding:
            if (state := await state_of(group, within_s=within_s)).founded:
                return state
            # A split has made it, to get slots that have their guards.
            users = [] if partition.founded else await lines_of(self._groups.group(0))
            # What has moved away belongs to others.
            owned = parse_slots_untrusted(partition.slots)
            first = parse_slots_untrusted(partition.founded) & owned
            await slots_command(group, "FOUND", text_of(first), *users, within_s=within_s)
        return await state_of(group, within_s=within_s)

    async def _end_unknown(
        self, cluster_map: ClusterMap, partition: int, number: int, state: SlotsState
    ) -> None:
        """End a move that a group has begun, although the map does not know it.

        Nothing of ours leaves such a move behind. But a map may be restored from a backup.

        Raises:
            ConfigurationError: the map does not know the partition that may own the slots.
            RequestError: a group does not answer.
        """
        group, target = self._groups.group(partition), state.frozen.get(number)
        if target is None:
            await slots_command(group, "DROP", number)
            return
        if target >= len(cluster_map.partitions):
            raise ConfigurationError(
                f"partition {partition} has frozen slots for partition {target} (move {number}), "
                f"and the map ends with {len(cluster_map.partitions) - 1}: expected a newer map"
            )
        # Nobody else can say whether the slots have got to their target.
        if await slots_command(self._groups.group(target), "DROP", number) == b"OWNED":
            await slots_command(group, "RELEASE", number, target, 0)
        else:
            await slots_command(group, "THAW", number)

    async def _purge(self, partition: int) -> None:
        try:
            await purge(self._groups.group(partition))
        except QuorateError as error:
            self._waits.say(error)
        self._purging.discard(partition)
