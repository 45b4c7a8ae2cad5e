"""What each group of a cluster with partitions reports of itself, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ..keyvalue.slots.cluster_map import META
from ..local.survey import Survey, survey
from .reach import addresses_of

if TYPE_CHECKING:
    from ..keyvalue.slots.cluster_map import ClusterMap

__all__ = ["GroupSeen", "survey_groups"]


@attrs.frozen
class GroupSeen:
    """A group, as its members report it.

    Args:
        partition: its number, or `META`.
        survey: the answers of its members.
        slots: those that it owns by the map; a text.
    """

    partition: int
    survey: Survey
    slots: str

    @property
    def name(self) -> str:
        """The name of the group, for people."""
        return "metadata" if self.partition == META else f"partition {self.partition}"

    @property
    def lag_bytes(self) -> int:
        """By how much the member with the shortest log is behind the leader."""
        seen = self.survey
        return seen.head - min((each.append_position for each in seen.said), default=seen.head)


async def survey_groups(cluster_map: ClusterMap) -> list[GroupSeen]:
    """Ask all members of all groups, at the same time.

    Returns:
        The metadata group first, then the partitions in order.
    """
    seen: dict[int, GroupSeen] = {}

    async def look(partition: int) -> None:
        found = await survey(addresses_of(cluster_map, partition))
        slots = "" if partition == META else cluster_map.partitions[partition].slots
        seen[partition] = GroupSeen(partition, found, slots)

    async with trio.open_nursery() as nursery:
        for partition in (META, *range(len(cluster_map.partitions))):
            nursery.start_soon(look, partition)
    return [seen[partition] for partition in sorted(seen)]
