"""The moves in the map: what is to move, asked for by an operator or by a plan.

A record in the map is a wish, and stays until it is fulfilled or taken back. Its number changes
with each attempt: see :mod:`.move`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigurationError, UsageError
from ..keyvalue.slots.cluster_map import Move
from ..keyvalue.slots.ranges import parse_slots_untrusted, text_of
from .metadata import LOST_EPOCHS, change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..keyvalue.slots.ranges import Slots
    from .groups import Group

__all__ = [
    "abort_move",
    "claim",
    "correct",
    "plan_move",
    "remove",
    "request_moves",
    "set_owner",
    "with_wishes",
]

replace = msgspec.structs.replace

# --- for operators


def plan_move(cluster_map: ClusterMap, slots: Slots, target: int) -> list[Move]:
    """Return the moves that bring slots to a partition: one from each partition that owns some.

    Args:
        cluster_map: the newest map.
        slots: what is to move. Those that the target owns already stay.
        target: the partition that is to own them.

    Raises:
        UsageError: there is no such partition.
        ConfigurationError: a slot is moving already.
    """
    if not 0 <= target < len(cluster_map.partitions):
        last = len(cluster_map.partitions) - 1
        raise UsageError(f"partition {target}: expected one of 0 to {last}")
    moves: list[Move] = []
    for each in cluster_map.partitions:
        part = _slots(each.slots) & slots
        if part and each.partition != target:
            moves.append(Move(0, text_of(part), each.partition, target))
    for move in moves:
        check_move(cluster_map, move)
    return moves


async def request_moves(group: Group, moves: Sequence[Move]) -> ClusterMap:
    """Ask for moves: all of them, or none. Return the newest map.

    Args:
        group: the metadata group.
        moves: of `plan_move`. Those that are in the map already are left out.

    Raises:
        ConfigurationError: the map has changed, so that one of them is not possible.
        RequestError: the group does not answer. They may be in the map.
    """
    return await change(group, lambda now: with_wishes(now, moves))


def with_wishes(now: ClusterMap, moves: Sequence[Move]) -> ClusterMap | None:
    """Return a map with moves, each with a number of its own; None if it has all of them.

    Raises:
        ConfigurationError: one of them is not possible.
    """
    after = now
    known = {(each.slots, each.source, each.target) for each in now.moves}
    for move in moves:
        if (move.slots, move.source, move.target) in known:
            continue
        check_move(after, move)
        # The epoch rises with each, since numbers are epochs.
        number = after.epoch + 1
        wish = replace(move, move=number, step="copying", attempts=0)
        after = replace(after, epoch=number, moves=(*after.moves, wish))
    return None if after is now else after


async def abort_move(group: Group, number: int) -> ClusterMap:
    """Ask for the end of a move; return the newest map. It may be too late.

    Args:
        group: the metadata group.
        number: of the move, in the newest map.

    Raises:
        ConfigurationError: there is no such move.
        RequestError: the group does not answer. The move may be aborted.
    """

    def edit(now: ClusterMap) -> ClusterMap | None:
        move = _find(now, number)
        if move is None:
            known = ", ".join(str(each.move) for each in now.moves)
            if not known:
                raise ConfigurationError(f"move {number}: no move is under way: it has ended")
            raise ConfigurationError(
                f"move {number}: expected one of {known}; a move that begins again has a new number"
            )
        return _with_move(now, number, replace(move, step="aborting")) if _copies(move) else None

    return await change(group, edit)


# --- for the director


async def claim(group: Group, move: Move, above: int = 0) -> Move | None:
    """Give a move a new number, under which only the caller copies; None if others were faster.

    Args:
        group: the metadata group.
        move: as it was in the map.
        above: the highest number that its source and target know. If the map is older than they
            are, its own numbers come again, and these groups would answer for earlier moves.

    Raises:
        RequestError: the group does not answer. The number may be in the map: nobody copies it.
    """
    claimed: Move | None = None

    def edit(now: ClusterMap) -> ClusterMap | None:
        # Two runs may write the same bytes. Only the one whose change was answered has claimed the
        # number: a run that reads its own bytes back finds the old number gone, and leaves it.
        nonlocal claimed
        found = _find(now, move.move)
        if found is None or not _copies(found):
            claimed = None
            return None
        number = max(now.epoch, above) + 1
        claimed = replace(found, move=number, attempts=found.attempts + 1)
        return replace(_with_move(now, move.move, claimed), epoch=number)

    await change(group, edit)
    return claimed


async def set_owner(group: Group, move: Move, *, done: bool) -> None:
    """Have the map say that the target owns the slots of a move.

    Args:
        group: the metadata group.
        move: the move.
        done: the source knows it, too, so the move is at its end.
    """

    def edit(now: ClusterMap) -> ClusterMap | None:
        found = _find(now, move.move)
        if found is None:
            return None
        if found.step != "ending":
            now = _with_owner(now, found)
        elif not done:
            return None
        return _with_move(now, move.move, None if done else replace(found, step="ending"))

    await change(group, edit)


async def remove(group: Group, move: Move) -> None:
    """Remove a move that has ended undone from the map."""
    await change(
        group,
        lambda now: _with_move(now, move.move, None) if _find(now, move.move) else None,
    )


async def correct(group: Group, seen: ClusterMap, owned: Mapping[int, Slots], highest: int) -> bool:
    """Have an old map say what the partitions own; return whether it was changed.

    Args:
        group: the metadata group.
        seen: a map without moves, that was the newest one before and after the partitions were
            asked. A newer one is left alone.
        owned: what each of them has answered to own.
        highest: the highest number of a move that one of them knows.

    Raises:
        ConfigurationError: two partitions own a slot: the map would contradict itself.
        RequestError: the group does not answer. The map may be corrected.
    """
    changed = False

    def edit(now: ClusterMap) -> ClusterMap | None:
        nonlocal changed
        wrong = any(_slots(each.slots) != owned[each.partition] for each in seen.partitions)
        changed = now == seen and not now.moves and (wrong or highest > now.epoch)
        if not changed:
            return None
        partitions = [
            replace(each, slots=text_of(owned[each.partition])) for each in now.partitions
        ]
        epoch = max(now.epoch, highest + LOST_EPOCHS if highest > now.epoch else 0) + 1
        return replace(now, partitions=tuple(partitions), epoch=epoch)

    await change(group, edit)
    return changed


# --- maps


def _find(now: ClusterMap, number: int) -> Move | None:
    return next((each for each in now.moves if each.move == number), None)


def _copies(move: Move) -> bool:
    return move.step == "copying"


def _slots(text: str) -> Slots:
    return parse_slots_untrusted(text)


def _with_move(now: ClusterMap, number: int, after: Move | None) -> ClusterMap:
    """Return the map with another record in place of a move's, or without it."""
    moves = [after if each.move == number else each for each in now.moves]
    return replace(now, moves=tuple(each for each in moves if each is not None))


def _with_owner(now: ClusterMap, move: Move) -> ClusterMap:
    slots = _slots(move.slots)
    partitions = list(now.partitions)
    for each in now.partitions:
        owned = _slots(each.slots)
        after = owned | slots if each.partition == move.target else owned & ~slots
        partitions[each.partition] = replace(each, slots=text_of(after))
    return replace(now, partitions=tuple(partitions))


def check_move(now: ClusterMap, move: Move) -> None:
    """Refuse a move of slots that its source does not own, or that move already."""
    slots = _slots(move.slots)
    if slots & ~_slots(now.partitions[move.source].slots):
        raise ConfigurationError(
            f"slots {move.slots}: expected those of partition {move.source}: make a new plan"
        )
    for each in now.moves:
        if slots & _slots(each.slots):
            raise ConfigurationError(
                f"slots {move.slots}: move {each.move} has some of them: wait until it ends"
            )
