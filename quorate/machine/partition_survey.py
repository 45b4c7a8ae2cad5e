"""What each group of a cluster with partitions reports of itself, side by side."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.ranges import count_of, parse_slots_untrusted
from ..local.survey import ANSWER_SECONDS, Survey, survey
from .reach import addresses_of

if TYPE_CHECKING:
    from ..client.resp import Reply
    from ..keyvalue.slots.cluster_map import ClusterMap

__all__ = ["GroupSeen", "survey_groups"]


@attrs.frozen
class GroupSeen:
    """A group, as its members report it.

    Args:
        partition: its number, or `META`.
        survey: the answers of its members.
        slots: those that it owns; a text. By the map, if no leader answers.
        keys: how many it has; None if no leader answers, or was asked.
        moving: how many slots are on their way from it or to it.
        founded: whether its leader says that it has got its first slots.
    """

    partition: int
    survey: Survey
    slots: str
    keys: int | None = None
    moving: int = 0
    founded: bool = False

    @property
    def name(self) -> str:
        """The name of the group, for people."""
        return "metadata" if self.partition == META else f"partition {self.partition}"

    @property
    def is_ready(self) -> bool:
        """Whether it has a leader, and a partition says what it owns."""
        has_leader = self.survey.leader is not None
        return has_leader and (self.partition == META or self.founded)

    @property
    def lag_bytes(self) -> int:
        """By how much the member with the shortest log is behind the leader."""
        seen = self.survey
        return seen.head - min((each.append_position for each in seen.said), default=seen.head)


async def survey_groups(cluster_map: ClusterMap, *, count_keys: bool = True) -> list[GroupSeen]:
    """Ask all members of all groups, at the same time.

    Args:
        cluster_map: says where they are.
        count_keys: ask leaders for the number of their keys, too. From then on they count at each
            write, so a program that looks all the time should not.

    Returns:
        The metadata group first, then the partitions in order.
    """
    seen: dict[int, GroupSeen] = {}

    async def look(partition: int) -> None:
        found = await survey(addresses_of(cluster_map, partition))
        if partition == META:
            seen[partition] = GroupSeen(partition, found, "")
            return
        by_map = GroupSeen(partition, found, cluster_map.partitions[partition].slots)
        seen[partition] = await _with_state(by_map, count_keys=count_keys)

    async with trio.open_nursery() as nursery:
        for partition in (META, *range(len(cluster_map.partitions))):
            nursery.start_soon(look, partition)
    return [seen[partition] for partition in sorted(seen)]


class _Range(msgspec.Struct):
    slots: str


class _State(msgspec.Struct):
    """What is read of the reply to QUORATE.SLOTS STATE."""

    founded: bool
    owned: list[_Range]
    frozen: list[_Range]
    importing: list[_Range]


async def _with_state(seen: GroupSeen, *, count_keys: bool) -> GroupSeen:
    """Add what the leader of a partition says of its slots, if it answers."""
    said = seen.survey.leader
    leader = next((each.address for each in seen.survey.answers if each.status is said), None)
    if said is None or leader is None:
        return seen
    with trio.move_on_after(ANSWER_SECONDS), suppress(OSError, RespError, msgspec.MsgspecError):
        async with open_resp(leader.host, port_of(leader)) as client:
            state = _state_untrusted(await client.call("QUORATE.SLOTS", "STATE"))
            keys = await client.call("DBSIZE") if count_keys else None
            slots = ",".join(each.slots for each in state.owned)
            moving = [*state.frozen, *state.importing]
            count = sum(count_of(parse_slots_untrusted(each.slots)) for each in moving)
            return GroupSeen(
                seen.partition,
                seen.survey,
                slots,
                keys if isinstance(keys, int) else None,
                count,
                founded=state.founded,
            )
    return seen


def _state_untrusted(reply: Reply) -> _State:
    """Decode the reply to QUORATE.SLOTS STATE.

    Raises:
        MsgspecError: no member answers so.
    """
    return msgspec.json.decode(reply if isinstance(reply, bytes) else b"", type=_State)
