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
from ..keyvalue.slots.ranges import ALL_SLOTS, count_of, parse_slots_untrusted, text_of
from ..local.survey import ANSWER_SECONDS, Survey, survey
from .reach import NO_STEPS, addresses_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.resp import Reply, RespClient
    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..keyvalue.slots.ranges import Slots

__all__ = ["GroupSeen", "owners_seen", "survey_groups"]


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
        frozen: its slots that are about to be handed over.
        commands_per_s: what clients have asked its leader for, over the last second; None if that
            is not known, or was not asked.
    """

    partition: int
    survey: Survey
    slots: str
    keys: int | None = None
    moving: int = 0
    founded: bool = False
    frozen: Slots = 0
    commands_per_s: float | None = None

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


async def survey_groups(cluster_map: ClusterMap, *, figures: bool = True) -> list[GroupSeen]:
    """Ask all members of all groups, at the same time.

    Args:
        cluster_map: says where they are.
        figures: ask leaders for the number of their keys, too, and for their load. From then on
            they count keys at each write, so a program that looks all the time should not.

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
        seen[partition] = await _with_state(by_map, figures=figures)

    async with trio.open_nursery() as nursery:
        for partition in (META, *range(len(cluster_map.partitions))):
            nursery.start_soon(look, partition)
    return [seen[partition] for partition in sorted(seen)]


def owners_seen(cluster_map: ClusterMap, seen: Sequence[GroupSeen]) -> tuple[list[str], list[str]]:
    """Compare what the partitions say that they own, and what the map says.

    Slots that are about to move are left out. A move of just now may look like a difference, as
    the partitions do not answer in the same moment.

    Returns:
        Lines for people: problems, and warnings.
    """
    settled = ALL_SLOTS
    for move in cluster_map.moves:
        settled &= ~parse_slots_untrusted(move.slots)
    for each in seen:
        settled &= ~each.frozen
    owned = twice = 0
    problems: list[str] = []
    warnings: list[str] = []
    said = [each for each in seen if each.founded]
    for each in said:
        slots = parse_slots_untrusted(each.slots) & settled
        twice |= owned & slots
        owned |= slots
        by_map = parse_slots_untrusted(cluster_map.partitions[each.partition].slots)
        if others := slots & ~by_map:
            words = f"{each.name} owns slots {text_of(others)}"
            warnings.append(f"{words}, which is not so in map {cluster_map.epoch}: look again")
    if twice:
        problems.append(f"slots {text_of(twice)} are owned by several partitions")
    # Those of a partition that does not answer are unknown.
    nobody = settled & ~owned
    if nobody and len(said) == len(cluster_map.partitions):
        problems.append(f"slots {text_of(nobody)} are owned by nobody")
    return problems, warnings


class _Range(msgspec.Struct):
    slots: str


class _State(msgspec.Struct):
    """What is read of the reply to QUORATE.SLOTS STATE."""

    founded: bool
    owned: list[_Range]
    frozen: list[_Range]
    importing: list[_Range]


async def _with_state(seen: GroupSeen, *, figures: bool) -> GroupSeen:
    """Add what the leader of a partition says of its slots, if it answers."""
    said = seen.survey.leader
    leader = next((each.address for each in seen.survey.answers if each.status is said), None)
    if said is None or leader is None:
        return seen
    with trio.move_on_after(ANSWER_SECONDS), suppress(OSError, RespError, msgspec.MsgspecError):
        async with open_resp(leader.host, port_of(leader)) as client:
            state = _state_untrusted(await client.call("QUORATE.SLOTS", "STATE"))
            keys = await client.call("DBSIZE") if figures else None
            rate = await _rate_of(client) if figures else None
            slots = text_of(_all_of(state.owned))
            frozen, importing = _all_of(state.frozen), _all_of(state.importing)
            return GroupSeen(
                seen.partition,
                seen.survey,
                slots,
                keys if isinstance(keys, int) else None,
                count_of(frozen) + count_of(importing),
                founded=state.founded,
                frozen=frozen,
                commands_per_s=rate,
            )
    return seen


class _Rates(msgspec.Struct):
    commands: float | None = None


class _Recent(msgspec.Struct):
    rates: _Rates


class _Load(msgspec.Struct):
    """What is read of the reply to QUORATE.STATUS."""

    recent: _Recent


async def _rate_of(client: RespClient) -> float | None:
    """Return how many commands a second a member gets from clients; None if nobody counts.

    Raises:
        MsgspecError: no member answers so.
    """
    said = await client.call("QUORATE.STATUS", str(NO_STEPS))
    return msgspec.json.decode(
        said if isinstance(said, bytes) else b"", type=_Load
    ).recent.rates.commands


def _all_of(ranges: list[_Range]) -> Slots:
    found = 0
    for each in ranges:
        found |= parse_slots_untrusted(each.slots)
    return found


def _state_untrusted(reply: Reply) -> _State:
    """Decode the reply to QUORATE.SLOTS STATE.

    Raises:
        MsgspecError: no member answers so.
    """
    return msgspec.json.decode(reply if isinstance(reply, bytes) else b"", type=_State)
