"""Moves as an operator sees them: how far they are, and how they ended.

A move is known by what it is to do, since its number changes when it begins again. Once the map
does not have it any more it has ended: done if its target owns the slots by the same map, undone
otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import QuorateError
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.ranges import parse_slots_untrusted
from .metadata import load
from .slots_state import state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..keyvalue.slots.cluster_map import ClusterMap, Move
    from .groups import Groups

__all__ = ["Outcome", "follow_moves", "in_words", "outcome_of"]

LOOK_S: Final = 0.2
LONGEST_LOOK_S: Final = 5.0
"""Seconds between two looks, which grow. Shorter, and the looking costs the groups something, and
prints many lines. Longer, and the end of a short move is seen late."""

_ANSWER_S: Final = 1.0

SILENT_S: Final = 60.0
"""Seconds for which the metadata group may be silent while its moves are followed."""


@attrs.frozen
class Outcome:
    """How a move has ended.

    Args:
        move: as it was asked for.
        done: the target owns its slots; otherwise it has ended undone.
    """

    move: Move
    done: bool


def in_words(move: Move) -> str:
    """Write what a move is to do."""
    return f"slots {move.slots}: partition {move.source} -> {move.target}"


def outcome_of(cluster_map: ClusterMap, move: Move) -> Outcome | None:
    """Return how a move has ended, by a map; None if it has not."""
    if _present(cluster_map, move) is not None:
        return None
    owned = parse_slots_untrusted(cluster_map.partitions[move.target].slots)
    return Outcome(move, done=not parse_slots_untrusted(move.slots) & ~owned)


async def follow_moves(
    groups: Groups, moves: Sequence[Move], report: Callable[[str], None]
) -> list[Outcome]:
    """Wait until moves have ended, and report what they do.

    Args:
        groups: of the cluster.
        moves: in the map, or such as were; at least once they were.
        report: called with each piece of news, in words.

    Raises:
        RequestError: the metadata group was silent for a minute. The moves go on.
    """
    followed = [_Followed(move) for move in moves]
    pause, heard_at = LOOK_S, trio.current_time()
    while True:
        try:
            cluster_map = await load(groups.group(META))
            heard_at = trio.current_time()
        except QuorateError:
            if trio.current_time() - heard_at > SILENT_S:
                raise
        else:
            if cluster_map is not None:
                for each in followed:
                    await each.look(groups, cluster_map, report)
        outcomes = [each.outcome for each in followed if each.outcome is not None]
        if len(outcomes) == len(moves):
            return outcomes
        await trio.sleep(pause)
        pause = min(1.2 * pause, LONGEST_LOOK_S)


@attrs.define
class _Followed:
    move: Move
    said: str = ""
    outcome: Outcome | None = None

    async def look(
        self, groups: Groups, cluster_map: ClusterMap, report: Callable[[str], None]
    ) -> None:
        """Report what is new of the move, unless it has ended."""
        if self.outcome is not None:
            return
        self.outcome = outcome_of(cluster_map, self.move)
        if self.outcome is None:
            words = await _news(groups, cluster_map, self.move)
        else:
            words = "done" if self.outcome.done else "ended undone"
        if words != self.said:
            self.said = words
            report(f"{in_words(self.move)}: {words}")


def _present(cluster_map: ClusterMap, move: Move) -> Move | None:
    wanted = move.slots, move.source, move.target
    return next(
        (each for each in cluster_map.moves if (each.slots, each.source, each.target) == wanted),
        None,
    )


async def _news(groups: Groups, cluster_map: ClusterMap, move: Move) -> str:
    """Say how far a move is."""
    now = _present(cluster_map, move)
    if now is None:
        return ""
    if now.step != "copying":
        return now.step
    if not now.attempts:
        return "waits"
    again = f", attempt {now.attempts}" if now.attempts > 1 else ""
    try:
        state = await state_of(groups.group(move.target), within_s=_ANSWER_S)
    except QuorateError:
        return f"copying{again}"
    return f"copying{again}, {state.imported(now.move):,} keys so far"
