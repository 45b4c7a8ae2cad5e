"""Whether history that is compacted is refused, and all other history is not.

A compaction without an answer may be done at any time, or never; so what is between the highest one
that was answered and the highest one that was asked for may be served, or not.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from .records import Compaction, Records, Watched

__all__ = ["KEPT_S", "Asked", "judge_past", "judge_watch"]

KEPT_S: Final = 3500.0
"""Without a client's compaction, members keep their history for an hour, unless it is larger than
all that these clients write. They count from when they apply, so a watch may see it some time
later."""


class Asked:
    """What clients had asked to compact by any moment; a long run has thousands of compactions."""

    def __init__(self, compactions: Sequence[Compaction]) -> None:
        in_order = sorted(compactions, key=lambda each: each.asked)
        self._moments = [each.asked for each in in_order]
        self._highest = [0, *accumulate((each.revision for each in in_order), max)]

    def until(self, at: float) -> int:
        """Return the highest revision that clients had asked to compact."""
        return self._highest[bisect(self._moments, at)]


def judge_past(records: Records) -> Iterator[str]:
    """Yield which answers do not fit to what clients have compacted."""
    for compaction in records.compactions:
        yield from _judge_compaction(compaction)
    for past in records.past:
        if past.served and past.revision < past.known:
            words = f"was read after {past.known} was compacted"
            yield f"revision {past.revision} {words}"
        if not past.served and past.revision >= past.asked:
            words = f"was called compacted, and clients asked for {past.asked} at most"
            yield f"revision {past.revision} {words}"


def _judge_compaction(compaction: Compaction) -> Iterator[str]:
    revision = compaction.revision
    if compaction.status == "ok" and revision <= compaction.known:
        words = f"was answered after {compaction.known} was compacted"
        yield f"a compaction to {revision} {words}"
    if compaction.status == "fail" and revision > compaction.before:
        words = f"was called done before, and clients asked for {compaction.before} at most"
        yield f"a compaction to {revision} {words}"


def judge_watch(watched: Watched, records: Records, seen: float | None) -> Iterator[str]:
    """Yield what a watch was told wrongly.

    Args:
        watched: the watch.
        records: have the compactions.
        seen: when the last revision before it was first shown; None if it never was.
    """
    for told in watched.progress:
        if told.revision > told.shown:
            words = f"{told.revision}, and had shown nothing after {told.shown}"
            yield f"{watched.name} said that it has shown everything up to {words}"
    asked = (each for each in records.compactions if each.asked <= watched.began)
    if not watched.cut or watched.start in {each.revision for each in asked}:
        return
    age = watched.began - (watched.began if seen is None else seen)
    if age < KEPT_S:
        last = watched.start - 1
        words = f"though {last} was {age:.1f} s old, and nobody asked to compact it"
        yield f"{watched.name} showed nothing up to revision {last}, {words}"
