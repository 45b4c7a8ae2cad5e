"""One moment of several groups: positions of their logs that belong together.

The naive way is to ask all groups for their positions at the same time. But between two answers a
client may write to one group, and then, since it knows of that, to another one. The second write is
in its group's position, and the first one is not in the other's: a state that nobody ever saw.

So all groups are suspended, and resumed only when all of them are. A group's log up to its RESUME
has all that it has acknowledged before, and nothing that came later. Take two writes, the second
sent after the first was acknowledged. If the second is before the RESUME of its group, it was taken
before that group was suspended, so before any was resumed. So the first is before a RESUME, too.

RESUME, and not SUSPEND, is what counts: then what is restored takes writes. And a leader takes
writes until it has applied SUSPEND, which are behind it in the log.

A leader that loses its place in between may have taken more. So each group must have the same
leader and term before and after; otherwise there is no moment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import QuorateError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .groups import Group, Groups

__all__ = ["Moment", "NoMomentError", "one_moment"]

RESUME_S: Final = 30.0
"""Seconds for which a group is asked to resume. Shorter than an election under load takes, and a
group stays suspended after all. Longer, and nobody hears of it."""

SUSPEND_S: Final = 5.0
"""Seconds for all groups to be suspended; then it is given up. Shorter, and a busy group is not
there in time. Longer, and writes that wait for the end are refused before it."""

LATE_S: Final = 3.0
"""A request to suspend may be done so much later although its answer was lost; it is undone then.
Shorter, and a group stays suspended. Longer, and a failed backup ends later."""

_PAUSE_S: Final = 0.1
_POSITION: Final = re.compile(r"resumed at (\d{1,19})")


class NoMomentError(QuorateError):
    """There was no moment, and all groups take writes; or the text says which do not."""


@attrs.frozen
class Moment:
    """Positions that belong together.

    Args:
        positions: of each partition, where its log counts up to.
        pause_s: for how long writes waited somewhere, in seconds.
    """

    positions: dict[int, int]
    pause_s: float


async def one_moment(groups: Groups, partitions: Sequence[int]) -> Moment:
    """Suspend all partitions, note where their logs end, and resume them.

    Args:
        groups: of the cluster.
        partitions: numbers of all of them.

    Raises:
        NoMomentError: a group did not answer in time, was suspended already, or has a new leader.
    """
    before: dict[int, tuple[int, int]] = {}
    resumed: dict[int, int] = {}
    suspended: set[int] = set()
    troubles: list[str] = []
    await _each(partitions, lambda one: _look(groups.group(one), one, before))
    began = trio.current_time()
    try:
        with trio.move_on_after(SUSPEND_S) as scope:
            await _each(partitions, lambda one: _suspend(groups.group(one), one, suspended))
        if scope.cancelled_caught:
            troubles.append(f"not all partitions are suspended after {SUSPEND_S:g} s")
    except* QuorateError as errors:
        troubles += map(str, errors.exceptions)
    finally:

        async def resume(one: int) -> None:
            patience_s = 0.0 if one in suspended else LATE_S
            try:
                resumed[one] = await _resume(groups.group(one), one, patience_s)
            except NoMomentError as error:
                troubles.append(str(error))

        # Also when cancelled: nobody else would resume them.
        with trio.CancelScope(shield=True):
            await _each(partitions, resume)
    pause_s = trio.current_time() - began
    if not troubles:
        after: dict[int, tuple[int, int]] = {}
        await _each(partitions, lambda one: _look(groups.group(one), one, after))
        changed = [one for one in partitions if before[one] != after[one]]
        troubles += [f"partition {one} has another leader than before" for one in changed]
    if troubles:
        raise NoMomentError("; ".join(troubles))
    return Moment(resumed, pause_s)


async def _each(partitions: Sequence[int], do: Callable[[int], Awaitable[None]]) -> None:
    """Do something with all partitions at the same time."""
    try:
        async with trio.open_nursery() as nursery:
            for one in partitions:
                nursery.start_soon(do, one)
    except* NoMomentError as errors:
        raise NoMomentError("; ".join(map(str, errors.exceptions))) from None


async def _look(group: Group, partition: int, seen: dict[int, tuple[int, int]]) -> None:
    try:
        status = await group.status()
    except QuorateError as error:
        raise NoMomentError(f"partition {partition}: {error}") from error
    if status["suspended"]:
        raise NoMomentError(f"partition {partition} is suspended: resume it first")
    seen[partition] = status["member_id"], status["term"]


async def _suspend(group: Group, partition: int, suspended: set[int]) -> None:
    try:
        await group.control("suspend")
    except QuorateError as error:
        raise NoMomentError(f"partition {partition}: {error}") from error
    suspended.add(partition)


async def _resume(group: Group, partition: int, patience_s: float) -> int:
    """Resume a group; return the position up to which its log counts.

    Args:
        group: whether or not it was suspended.
        partition: its number.
        patience_s: for how long a request to suspend it may still be on its way.

    Raises:
        NoMomentError: it was not suspended, or may be suspended still.
    """
    why, began = "", trio.current_time()
    with trio.move_on_after(RESUME_S):
        while True:
            try:
                said = await group.control("resume")
            except RefusedError as error:
                # It was not suspended, or an earlier request of ours has resumed it.
                if trio.current_time() - began >= patience_s:
                    raise NoMomentError(f"partition {partition}: {error}") from error
            except QuorateError as error:
                why = str(error)
            else:
                if found := _POSITION.search(said):
                    return int(found[1])
                why = said
            await trio.sleep(_PAUSE_S)
    raise NoMomentError(
        f"partition {partition} may still refuse writes ({why}): quorate control resume"
    )
