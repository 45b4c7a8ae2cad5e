"""The members of each group are those that the map says, after some steps.

The map says which machines are to have a member of a partition. What members a group has is decided
in its own log, by its own rules: one change at a time, and enough voters. So this
compares the two, and asks for the next step:

1. Each machine that has no seat yet gets one. If another one is to go, the new member takes its
   place, so that there is never one voter more.
2. Their supervisors start the members, which fetch the log and become voters. Until then, nothing
   is removed.
3. Then those go that the map does not name any more, one after the other.

A leader whose machine drains hands its leadership over before a member takes its place: see
:mod:`.health`. Otherwise its group would elect, and clients wait.

All orders say what is to be, so they may be repeated, and two directors do no harm.

Who has a member is in the map, too, before anything is asked for. So all find a group however many
of its members are to be elsewhere, and nobody takes one that is founded for a new one.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Never

import msgspec
import trio

from ..errors import QuorateError, RequestError
from ..keyvalue.slots.cluster_map import META
from ..log_events import log_event
from .metadata import change, load
from .slots_state import state_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..keyvalue.slots.cluster_map import ClusterMap, Machine
    from .groups import Groups

__all__ = ["MemberList", "ask_members", "keep_replicas", "next_order", "with_members"]

_log = logging.getLogger("quorate.partitions")

PERIOD_S: Final = 5.0
"""Seconds between two looks. Shorter, and groups answer more questions; longer, and a new machine
waits for its first member."""

_YOUNG_S: Final = 1.0
"""The same, as long as a group is not founded."""

_replace = msgspec.structs.replace

_ANSWER_S: Final = 5.0
_ORDER_S: Final = 60.0


class _Member(msgspec.Struct):
    member_id: int
    role: str
    state: str
    live: bool


class MemberList(msgspec.Struct):
    """A leader's answer to ``member list``.

    Attributes:
        leader: id of the machine that leads.
        joint: the voters are changing.
        members: all of them.
    """

    leader: int
    joint: bool
    members: list[_Member]


def next_order(cluster_map: ClusterMap, partition: int, now: MemberList) -> str | None:
    """Return what to ask the leader of a group for; None if there is nothing to do now.

    Args:
        cluster_map: says who is to be a member.
        partition: the group's, or `META`.
        now: its members.
    """
    if now.joint:
        return None
    wanted = cluster_map.replicas_of(partition)
    seats = {each.member_id: each for each in now.members if each.state != "leaving"}
    missing = [each for each in wanted if each not in seats]
    surplus = [each for each in seats if each not in wanted]
    if now.leader in surplus and _hands_over(cluster_map, wanted, now):
        return None
    if missing:
        machine = cluster_map.machine(missing[0])
        # As many as are still to come may each take the place of one that goes.
        to_come = sum(seats[each].state == "joining" for each in wanted if each in seats)
        leaves = [each for each in surplus if seats[each].state == "voter"][to_come:]
        return _add(machine, partition, leaves[0] if leaves else None) if machine else None
    # One that was to join and is not wanted any more has done nothing yet.
    for each in surplus:
        if seats[each].state != "voter":
            return f"member remove {each}"
    if any(seats[each].state != "voter" for each in wanted):
        return None
    # The leader last: each removal of one costs a transfer.
    surplus.sort(key=lambda each: (each == now.leader, seats[each].live))
    return f"member remove {surplus[0]}" if surplus else None


def _hands_over(cluster_map: ClusterMap, wanted: tuple[int, ...], now: MemberList) -> bool:
    """Whether the leader's machine drains, and another member can lead."""

    def drains(machine_id: int) -> bool:
        machine = cluster_map.machine(machine_id)
        return machine is not None and machine.draining

    return drains(now.leader) and any(
        each.state == "voter" and each.live and each.member_id in wanted
        for each in now.members
        if not drains(each.member_id)
    )


def _add(machine: Machine, partition: int, replaces: int | None) -> str:
    words = [
        "member add",
        f"host={machine.host}",
        f"member_port={machine.port_of_member(partition)}",
        f"client_port={machine.client_port(partition)}",
    ]
    if machine.tls_port:
        words.append(f"tls_port={machine.client_tls_port(partition)}")
    if replaces is not None:
        words.append(f"replaces={replaces}")
    return " ".join([*words, f"id={machine.machine_id}"])


def with_members(cluster_map: ClusterMap, lists: Mapping[int, MemberList]) -> ClusterMap | None:
    """Return a map with the members that groups have said to have; None if it has them already.

    Args:
        cluster_map: the newest one.
        lists: by partition, `META` among them; of those that have answered.
    """
    known = {each.machine_id for each in cluster_map.machines}
    partitions, metadata = [*cluster_map.partitions], cluster_map.metadata_members
    for number, now in lists.items():
        # One that joins has nothing yet, and is where the map wants it.
        present = {each.member_id for each in now.members if each.state != "joining"}
        if not (there := tuple(sorted(present & known))):
            continue
        if number == META:
            metadata = there
        else:
            partitions[number] = _replace(partitions[number], members=there)
    after = _replace(cluster_map, partitions=tuple(partitions), metadata_members=metadata)
    return None if after == cluster_map else after


async def keep_replicas(groups: Groups) -> Never:
    """Ask the groups for changes of their members, until cancelled."""
    said: dict[int, str] = {}
    while True:
        all_founded = False
        # The director says why the metadata group does not answer.
        with suppress(QuorateError):
            all_founded = await _look(groups, said)
        await trio.sleep(PERIOD_S if all_founded else _YOUNG_S)


async def _look(groups: Groups, said: dict[int, str]) -> bool:
    """Note who has members, and do one step of each group; return whether all are founded.

    Raises:
        QuorateError: the metadata group does not answer.
    """
    cluster_map = await load(groups.group(META))
    if cluster_map is None:
        return False
    lists: dict[int, MemberList] = {}
    async with trio.open_nursery() as nursery:
        for partition in range(META, len(cluster_map.partitions)):
            nursery.start_soon(ask_members, groups, partition, lists)
    if with_members(cluster_map, lists) is not None:
        cluster_map = await change(groups.group(META), lambda now: with_members(now, lists))
    for partition, now in sorted(lists.items()):
        order = next_order(cluster_map, partition, now)
        if order is None:
            continue
        outcome = await _give(groups, partition, order)
        if said.get(partition) != outcome:
            said[partition] = outcome
            log_event(
                _log,
                logging.INFO,
                "replicas",
                "partition %(partition)d: %(outcome)s",
                partition=partition,
                outcome=outcome,
            )
    return all(cluster_map.is_founded(each) for each in range(META, len(cluster_map.partitions)))


async def ask_members(groups: Groups, partition: int, lists: dict[int, MemberList]) -> None:
    """Ask a group for its members. One without a leader has nobody to ask."""
    group = groups.group(partition)
    with (
        suppress(QuorateError, msgspec.MsgspecError, trio.TooSlowError),
        trio.fail_after(_ANSWER_S),
    ):
        # Its members in the map mean that it has had its first slots, and gets none again.
        if partition != META and not (await state_of(group, within_s=_ANSWER_S)).founded:
            return
        answer = await group.control("member list")
        lists[partition] = _decode_untrusted(answer)


async def _give(groups: Groups, partition: int, order: str) -> str:
    """Give an order to a group; return what has come of it."""
    try:
        with trio.fail_after(_ORDER_S):
            return f"{order}: {await groups.group(partition).control(order)}"
    except (RequestError, trio.TooSlowError) as error:
        return f"{order}: {str(error) or 'no answer'}"


def _decode_untrusted(answer: str) -> MemberList:
    return msgspec.json.decode(answer, type=MemberList)
