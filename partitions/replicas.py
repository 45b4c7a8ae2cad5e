"""The members of each group are those that the map says, after some steps.

The map says which machines are to have a member of a partition. What members a group has is decided
in its own log, by its own rules: one change at a time, and enough voters. So this
compares the two, and asks for the next step:

1. Each machine that has no seat yet gets one. If another one is to go, the new member takes its
   place, so that there is never one voter more.
2. Their supervisors start the members, which fetch the log and become voters. Until then, nothing
   is removed.
3. Then those go that the map does not name any more, one after the other.

All orders say what is to be, so they may be repeated, and two directors do no harm.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import msgspec
import trio

from ..errors import QuorateError, RequestError
from ..keyvalue.slots.cluster_map import META
from ..log_events import log_event
from .metadata import load

if TYPE_CHECKING:
    from ..keyvalue.slots.cluster_map import ClusterMap, Machine
    from .groups import Groups

__all__ = ["MemberList", "keep_replicas", "next_order"]

_log = logging.getLogger("quorate.partitions")

PERIOD_S: Final = 5.0
"""Seconds between two looks. Shorter, and groups answer more questions; longer, and a new machine
waits for its first member."""

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


async def keep_replicas(groups: Groups) -> Never:
    """Ask the groups for changes of their members, until cancelled."""
    said: dict[int, str] = {}
    while True:
        try:
            cluster_map = await load(groups.group(META))
        except QuorateError:
            cluster_map = None  # the director says why
        for partition in range(META, len(cluster_map.partitions)) if cluster_map else ():
            outcome = await _step(groups, cluster_map, partition) if cluster_map else None
            if outcome is not None and said.get(partition) != outcome:
                said[partition] = outcome
                log_event(
                    _log,
                    logging.INFO,
                    "replicas",
                    "partition %(partition)d: %(outcome)s",
                    partition=partition,
                    outcome=outcome,
                )
        await trio.sleep(PERIOD_S)


async def _step(groups: Groups, cluster_map: ClusterMap, partition: int) -> str | None:
    """Do one step of one group; return what has come of it, None if there was nothing to do."""
    group = groups.group(partition)
    order = None
    try:
        with trio.fail_after(_ANSWER_S):
            now = _decode_untrusted(await group.control("member list"))
        order = next_order(cluster_map, partition, now)
        if order is None:
            return None
        with trio.fail_after(_ORDER_S):
            return f"{order}: {await group.control(order)}"
    except (RequestError, msgspec.MsgspecError, trio.TooSlowError) as error:
        # A group without a leader has nobody to ask.
        return order and f"{order}: {str(error) or 'no answer'}"


def _decode_untrusted(answer: str) -> MemberList:
    return msgspec.json.decode(answer, type=MemberList)
