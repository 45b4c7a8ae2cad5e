"""What must hold when all is calm: moves have ended, groups agree, and no row is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...client.resp import RespError
from ...errors import QuorateError
from ...keyvalue.slots.cluster_map import META
from ...keyvalue.slots.hashing import key_slot
from ...keyvalue.slots.ranges import ALL_SLOTS, parse_slots_untrusted, text_of
from ...local.survey import StuckError, agreed_and_applied, until
from ...partitions.slots_state import state_of
from ..checks import check_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...keyvalue.slots.cluster_map import ClusterMap
    from ...keyvalue.slots.ranges import Slots
    from ...machine.reach import RemoteGroups
    from ...partitions.slots_state import SlotsState
    from .machines import Machines
    from .moves import Movers

__all__ = ["calm", "check_members", "owners", "unfinished"]

CALM_SECONDS: Final = 180.0
"""How long it may take until no move is under way: some attempts, and their pauses."""
AGREE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5


async def calm(movers: Movers, groups: RemoteGroups) -> list[str]:
    """Wait until no move is under way, nothing is stale, and the map is right.

    Returns:
        What is still wrong when the time is over; nothing if all is well.
    """
    wrong = ["the cluster was not looked at"]
    with trio.move_on_after(CALM_SECONDS):
        while True:
            try:
                now = await movers.newest()
                states = await states_of(now, groups)
                wrong = unfinished(now, states)
            except QuorateError as error:
                wrong = [f"a group does not answer: {error}"]
            if not wrong:
                return []
            await trio.sleep(_LOOK_SECONDS)
    return [f"after {CALM_SECONDS:g} s without faults: {each}" for each in wrong]


async def states_of(now: ClusterMap, groups: RemoteGroups) -> dict[int, SlotsState]:
    """Ask all partitions for their slots.

    Raises:
        RequestError: one does not answer.
    """
    return {each.partition: await state_of(groups.group(each.partition)) for each in now.partitions}


def unfinished(now: ClusterMap, states: Mapping[int, SlotsState]) -> list[str]:
    """Return what is not as it is to be when all is calm.

    Args:
        now: the newest map.
        states: of all partitions.
    """
    wrong = [
        f"move {each.move} of slots {each.slots} is {each.step}, attempt {each.attempts}"
        for each in now.moves
    ]
    owned = 0
    for number, state in states.items():
        name = f"partition {number}"
        if state.frozen or state.importing:
            wrong.append(f"{name} has frozen {[*state.frozen]} and imports {state.importing}")
        if state.stale:
            wrong.append(f"{name} has stale slots {state.stale}")
        if owned & state.owned:
            wrong.append(f"{name} owns slots of another one: {text_of(owned & state.owned)}")
        owned |= state.owned
        by_map = parse_slots_untrusted(now.partitions[number].slots)
        if by_map != state.owned:
            differs = text_of(by_map ^ state.owned)
            wrong.append(f"the map is wrong about slots {differs} of {name}")
    if owned != ALL_SLOTS:
        wrong.append(f"nobody owns slots {text_of(ALL_SLOTS & ~owned)}")
    return wrong


async def owners(now: ClusterMap, groups: RemoteGroups) -> dict[int, Slots]:
    """Return which slots each partition owns, by its own word.

    Raises:
        RequestError: one does not answer.
    """
    return {number: state.owned for number, state in (await states_of(now, groups)).items()}


async def check_members(
    machines: Machines, owned: Mapping[int, Slots], values: Mapping[bytes, bytes]
) -> list[str]:
    """Compare the own state of every member of every partition with the last values of all keys.

    Args:
        machines: of the cluster.
        owned: the slots of each partition.
        values: of all keys that exist.
    """
    found: list[str] = []
    for number in (META, *owned):
        try:
            await until(machines.addresses(number), agreed_and_applied, AGREE_SECONDS)
        except StuckError as error:
            found.append(f"group {number}: {error}")
    for number, slots in owned.items():
        keys = [key for key in values if slots >> key_slot(key) & 1]
        right = [values[key] for key in keys]
        for address in machines.addresses(number):
            try:
                wrong = await check_state(keys, right, address)
            except (OSError, RespError) as error:
                wrong = [f"member {address.member_id}: {error}"]
            found += [f"partition {number}: {each}" for each in wrong]
    return found
