"""Moves of slots, and all else that an operator may ask for while there are faults.

Two operators give one order after the other: a move of random slots, which is aborted at a random
moment in some cases; a transfer of a leader; or other preferred leaders, as `quorate partition
rebalance` asks for them. In the middle of the run all partitions are split.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from ...errors import ConfigurationError, QuorateError
from ...keyvalue.slots.cluster_map import META
from ...keyvalue.slots.hashing import SLOTS
from ...keyvalue.slots.ranges import slots_of
from ...partitions.balance import rebalanced, split
from ...partitions.metadata import change, load
from ...partitions.progress import in_words, outcome_of
from ...partitions.wishes import abort_move, plan_move, request_moves
from .machines import MACHINES

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from ...keyvalue.slots.cluster_map import ClusterMap, Move
    from ...machine.reach import RemoteGroups

__all__ = ["Movers"]

OPERATORS: Final = 2
ABORTS: Final = 0.5
"""Part of the moves that are aborted, or would be if they did not end before."""
LONGEST_COPY_SECONDS: Final = 1.0
"""An abort comes at most so long after the copying has begun."""
LOOK_SECONDS: Final = 0.1
MOVE_SECONDS: Final = 180.0
"""After this, a move that has not ended is left to itself."""
_PAUSE_SECONDS: Final = 0.5
_ORDERS: Final = {"move": 12, "transfer": 3, "rebalance": 1}
_LENGTHS: Final = (1, 300, 2000, 6000)


class Movers:
    """Gives orders.

    Args:
        groups: of the cluster.
        rng: chooses the orders.
        tell: called with a line about each.

    Attributes:
        counts: what was done. "finished" and "aborted" are moves; "aborted early" those that had
            not begun to copy; "too late" those that were finished although an abort was asked for;
            "given up" those that the director has; "attempts" that failed.
        ends: set to have it end.
        split_due: set to have all partitions split.
    """

    def __init__(
        self, groups: RemoteGroups, rng: random.Random, tell: Callable[[str], None]
    ) -> None:
        self._groups, self._rng, self._tell = groups, rng, tell
        self._meta = groups.group(META)
        self.counts: Counter[str] = Counter()
        self.ends = trio.Event()
        self.split_due = False
        self._unsplit = 0

    async def run(self) -> None:
        """Give orders until `ends` is set; the last ones are seen to their ends."""
        async with trio.open_nursery() as nursery:
            for number in range(OPERATORS):
                nursery.start_soon(self._operate, number)

    async def _operate(self, number: int) -> None:
        while not self.ends.is_set() or self.split_due:
            try:
                if self.split_due:  # which is possible once no slots move
                    if number == 0:
                        await self._split()
                else:
                    (order,) = self._rng.choices(list(_ORDERS), list(_ORDERS.values()))
                    await getattr(self, f"_{order}")()
            except QuorateError as error:
                self.counts["orders that failed"] += 1
                self._tell(f"an order failed: {error!s:.150}")
            with trio.move_on_after(self._rng.uniform(0, _PAUSE_SECONDS)):
                await self.ends.wait()

    async def newest(self) -> ClusterMap:
        """Return the map of the metadata group.

        Raises:
            ConfigurationError: there is none.
            RequestError: the group does not answer.
        """
        found = await load(self._meta)
        if found is None:
            raise ConfigurationError("the metadata group has no map")
        return found

    async def _move(self) -> None:
        now = await self.newest()
        length = self._rng.choice(_LENGTHS)
        first = self._rng.randrange(SLOTS)
        slots = slots_of([(first, min(SLOTS - 1, first + length))])
        target = self._rng.randrange(len(now.partitions))
        moves = plan_move(now, slots, target)
        if not moves:
            return
        # One of several parts is aborted, so that the others are on their way alone.
        aborted = self._rng.choice(moves) if self._rng.random() < ABORTS else None
        await request_moves(self._meta, moves)
        async with trio.open_nursery() as nursery:
            for each in moves:
                nursery.start_soon(self._follow, each, each is aborted)

    async def _follow(self, move: Move, aborts: bool) -> None:  # noqa: FBT001 - for start_soon
        """Wait for the end of a move, abort it if it is to be, and count it."""
        attempts, asked, due_at = 0, False, float("inf")
        with trio.move_on_after(MOVE_SECONDS):
            while True:
                await trio.sleep(LOOK_SECONDS)
                try:
                    now = await self.newest()
                    outcome = outcome_of(now, move)
                    if outcome is not None:
                        self._count(move, attempts, asked=asked, done=outcome.done)
                        return
                    present = _present(now, move)
                    if present is not None and present.attempts > attempts:
                        if not attempts:
                            due_at = trio.current_time() + self._rng.uniform(
                                0, LONGEST_COPY_SECONDS
                            )
                        attempts = present.attempts
                    if aborts and present is not None and trio.current_time() >= due_at:
                        asked = True
                        await abort_move(self._meta, present.move)
                except QuorateError:
                    continue
        self.counts["moves that took too long"] += 1
        self._tell(f"not ended after {MOVE_SECONDS:g} s: {in_words(move)}")

    def _count(self, move: Move, attempts: int, *, asked: bool, done: bool) -> None:
        self.counts["attempts"] += max(0, attempts - 1)
        if done:
            how = "finished"
            self.counts["too late"] += asked
        elif asked:
            how = "aborted" if attempts else "aborted early"
        else:
            how = "given up"
        self.counts[how] += 1
        self._tell(f"{in_words(move)}: {how}" + f", attempt {attempts}" * (attempts > 1))

    async def _transfer(self) -> None:
        now = await self.newest()
        number = self._rng.choice([META, *range(len(now.partitions))])
        machine = self._rng.randrange(MACHINES)
        await self._groups.group(number).control(f"transfer {machine}")
        self.counts["transfers"] += 1
        self._tell(f"transfer: machine {machine} leads {_name(number)}")

    async def _rebalance(self) -> None:
        """Have machines preferred as a plan wants it that leaves one of them out, or none."""
        # Each replica stays where it is: with three machines there is no other place.
        well = set(range(MACHINES)) - {self._rng.randrange(MACHINES + 1)}

        def edit(now: ClusterMap) -> ClusterMap | None:
            after = rebalanced(now, well)
            return None if after == now else after

        await change(self._meta, edit)
        self.counts["rebalanced"] += 1
        self._tell("rebalance: other leaders are preferred")

    async def _split(self) -> None:
        before = await self.newest()
        self._unsplit = self._unsplit or len(before.partitions)
        after = before
        if len(before.partitions) == self._unsplit:  # else an earlier attempt was done
            after = await change(self._meta, lambda now: split(now) if now == before else None)
            if len(after.partitions) == self._unsplit:
                return  # the map has changed: again
        self.split_due = False
        self.counts["splits"] += 1
        self._tell(f"split: {self._unsplit} -> {len(after.partitions)} partitions")
        async with trio.open_nursery() as nursery:
            for each in after.moves:
                nursery.start_soon(self._follow, each, False)


def _present(now: ClusterMap, move: Move) -> Move | None:
    wanted = move.slots, move.source, move.target
    return next(
        (each for each in now.moves if (each.slots, each.source, each.target) == wanted), None
    )


def _name(number: int) -> str:
    return "metadata" if number == META else f"partition {number}"
