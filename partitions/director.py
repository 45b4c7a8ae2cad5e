"""The director: brings the partitions to where the map says they are to be.

It runs on one machine, the one with the metadata group's leader, and is replaced by another one at
any time. Nothing depends on there being one only: see :mod:`.move`. All that it knows is in the map
and in the groups; when it begins, it looks at them.

- It does the moves in the map, several at once, but each partition is in one move at a time.
- It founds partitions, and sets right what groups have (:mod:`.reconcile`).
- It watches over machines and leaders (:mod:`.health`), and over members (:mod:`.replicas`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Never

import attrs
import trio

from ..errors import ConfigurationError, QuorateError, RequestError
from ..keyvalue.slots.cluster_map import MAP_KEY, META
from ..keyvalue.slots.ranges import parse_slots_untrusted
from ..log_events import log_event
from .groups import PATIENCE_S
from .health import watch_health
from .metadata import load
from .move import MoveError, copy_slots, finish, settle
from .reconcile import Reconciler
from .replicas import keep_replicas
from .waits import Waits
from .wishes import claim, remove

if TYPE_CHECKING:
    from random import Random

    from ..keyvalue.slots.cluster_map import ClusterMap, Move
    from .groups import Groups

__all__ = ["MOST_ATTEMPTS", "Director"]

_log = logging.getLogger("quorate.partitions")

PERIOD_S: Final = 1.0
"""Seconds between two looks at the map. Longer, and an operator waits for the begin of a move."""

MOST_ATTEMPTS: Final = 20
"""How often the copying of a move begins, before it is given up. Fewer, and a move fails that meets
some elections. More, and one that can't succeed costs its source the reading of all rows each time,
for hours."""

_PAUSE_S: Final = 0.5
"""After a failed attempt; it doubles, up to `_LONGEST_PAUSE_S`."""
_LONGEST_PAUSE_S: Final = 60.0
_DOUBLINGS: Final = 7

OTHERS_S: Final = 10.0
"""For how long a move is left alone that another director has claimed after we began. Shorter, and
two directors end what the other one copies; longer, and what a dead one has left waits longer."""

_LAST_S: Final = 1.0
"""Seconds for ending a move, when the director is stopped while it copies."""


@attrs.define(eq=False)
class _Drive:
    """A move that is being driven: begun, continued, or ended."""

    move: Move
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    claimed: Move | None = None
    """The move under the number that we have claimed, if we have."""

    @property
    def numbers(self) -> set[int]:
        """Its numbers, the former one too: a map that was read before may have that."""
        return {self.move.move} | ({self.claimed.move} if self.claimed else set())


@attrs.define
class _Others:
    """What other directors may be copying: what was claimed after we began, and not by us.

    A director that ends what another one has just begun, and the other way round, keeps all moves
    from being done.
    """

    ours: set[int] = attrs.field(factory=set[int])
    """Numbers that we have claimed."""
    _began_at: int | None = None
    _seen_at: dict[int, float] = attrs.field(factory=dict[int, float])

    def look(self, cluster_map: ClusterMap) -> None:
        """Note what the newest map has."""
        if self._began_at is None:
            self._began_at = cluster_map.epoch
        there = {each.move for each in cluster_map.moves if each.attempts}
        # A map may have been read before the last claims.
        self.ours = {each for each in self.ours if each in there or each > cluster_map.epoch}
        now, before = trio.current_time(), self._seen_at
        strange = {each for each in there - self.ours if each > self._began_at}
        self._seen_at = {each: before.get(each, now) for each in strange}

    def may_copy(self, move: Move) -> bool:
        """Whether another director may be at work on a move of the map that was looked at last."""
        seen_at = self._seen_at.get(move.move)
        return seen_at is not None and trio.current_time() - seen_at < OTHERS_S


class Director:
    """Brings the partitions to where the map says they are to be.

    Args:
        groups: of the cluster.
        rng: draws pauses.
    """

    def __init__(self, groups: Groups, rng: Random) -> None:
        self._groups = groups
        self._meta = groups.group(META)
        self._rng = rng
        self._drives: list[_Drive] = []
        self._not_before: dict[tuple[str, int, int], float] = {}
        self._others = _Others()
        self._wake = trio.Event()
        self._waits = Waits()
        self._reconciler = Reconciler(groups, self._driven, self._waits)

    async def run(self) -> Never:
        """Direct until cancelled.

        Raises:
            ExceptionGroup: of a ConfigurationError: the map is gone.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reconciler.run)
            nursery.start_soon(watch_health, self._groups)
            nursery.start_soon(keep_replicas, self._groups)
            while True:
                await self._look(nursery)
                with trio.move_on_after(PERIOD_S):
                    await self._wake.wait()
                self._wake = trio.Event()
        raise AssertionError("it only ends by being cancelled")

    def _driven(self) -> set[int]:
        """Return the numbers of the moves that are being done."""
        return {number for drive in self._drives for number in drive.numbers}

    async def _look(self, nursery: trio.Nursery) -> None:
        """Begin with the moves of the map that can begin.

        Raises:
            ConfigurationError: the map is gone.
        """
        try:
            cluster_map = await load(self._meta)
        except QuorateError as error:
            self._waits.say(error)
            return
        if cluster_map is None:
            raise ConfigurationError(
                f"the metadata group has no map: expected the key {MAP_KEY.decode()}; it gets the "
                "newest one that this machine has"
            )
        self._others.look(cluster_map)
        for move in cluster_map.moves:
            running = [each for each in self._drives if move.move in each.numbers]
            if running:
                if move.step == "aborting" and running[0].move.step == "copying":
                    running[0].scope.cancel()
            elif move.step != "copying" or self._may_copy(move):
                drive = _Drive(move)
                self._drives.append(drive)
                nursery.start_soon(self._run, drive, cluster_map)

    def _may_copy(self, move: Move) -> bool:
        """Whether no other move is under way at its partitions, and its pause is over."""
        if self._others.may_copy(move):
            return False
        copies = [each.move for each in self._drives if each.move.step == "copying"]
        busy = {each.source for each in copies} | {each.target for each in copies}
        due_at = self._not_before.get(_wish(move), 0.0)
        return not busy & {move.source, move.target} and trio.current_time() >= due_at

    async def _run(self, drive: _Drive, cluster_map: ClusterMap) -> None:
        with drive.scope:
            try:
                await self._attempt(drive, cluster_map)
            except MoveError as error:
                self._fails(drive, error)
            except QuorateError as error:
                # Perhaps nobody answers for the slots until it is done, so it is tried again soon.
                # One that has no trace in any log yet lets others of its partitions go first, lest
                # they wait for as long as its target has no leader.
                self._waits.say(error)
                if not drive.move.attempts:
                    self._not_before[_wish(drive.move)] = trio.current_time() + _PAUSE_S
        self._drives.remove(drive)
        self._wake.set()

    async def _attempt(self, drive: _Drive, cluster_map: ClusterMap) -> None:
        move = drive.move
        # A move that nobody has claimed has no trace in any log.
        if move.step == "ending" or (move.attempts and await settle(self._groups, move)):
            await finish(self._groups, move)
        elif move.step == "aborting" or move.attempts >= MOST_ATTEMPTS:
            aborted = move.step == "aborting"
            why = "an operator has aborted it" if aborted else f"{move.attempts} attempts failed"
            await self._give_up(move, why)
        else:
            # One that imports before it has its first slots never gets them.
            ends = [cluster_map.partitions[each] for each in (move.source, move.target)]
            states = [await self._reconciler.founded(each, PATIENCE_S) for each in ends]
            if parse_slots_untrusted(move.slots) & ~states[0].owned:
                # No attempt can succeed, and an older map is corrected only once nothing moves.
                await self._give_up(move, "its source does not own them: the map was older")
                return
            drive.claimed = await claim(self._meta, move, max(each.highest for each in states))
            if drive.claimed is None:
                return
            self._others.ours.add(drive.claimed.move)
            await self._copy(drive.claimed)
        self._not_before.pop(_wish(move), None)

    async def _copy(self, move: Move) -> None:
        """Do a move under a number that we have claimed."""
        log_event(
            _log,
            logging.INFO,
            "move_begins",
            "move %(move)d begins: slots %(slots)s from partition %(source)d to %(target)d",
            move=move.move,
            slots=move.slots,
            source=move.source,
            target=move.target,
        )
        keys: int | None = None
        try:
            keys = await copy_slots(self._groups, move)
        except MoveError:
            # At once: the slots may be frozen.
            if not await settle(self._groups, move):
                raise
        except trio.Cancelled:
            with trio.move_on_after(_LAST_S, shield=True), suppress(RequestError):
                await settle(self._groups, move)
            raise
        await finish(self._groups, move, keys)

    async def _give_up(self, move: Move, why: str) -> None:
        await remove(self._meta, move)
        log_event(
            _log,
            logging.INFO if move.step == "aborting" else logging.WARNING,
            "move_given_up",
            "move %(move)d of slots %(slots)s ends undone: %(why)s",
            move=move.move,
            slots=move.slots,
            source=move.source,
            target=move.target,
            why=why,
        )

    def _fails(self, drive: _Drive, error: MoveError) -> None:
        move = drive.claimed or drive.move
        pause = min(_PAUSE_S * 2 ** min(move.attempts, _DOUBLINGS), _LONGEST_PAUSE_S)
        pause *= self._rng.uniform(0.5, 1)
        self._not_before[_wish(move)] = trio.current_time() + pause
        log_event(
            _log,
            logging.WARNING,
            "move_fails",
            "an attempt to move slots %(slots)s to partition %(target)d has failed: %(why)s; the "
            "next one begins in %(seconds).1f s",
            move=move.move,
            slots=move.slots,
            source=move.source,
            target=move.target,
            why=str(error),
            seconds=pause,
        )


def _wish(move: Move) -> tuple[str, int, int]:
    """Return what stays the same when a move begins again."""
    return move.slots, move.source, move.target
