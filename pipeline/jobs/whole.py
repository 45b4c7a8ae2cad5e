"""The state of a cluster with partitions: each key from the partition that owned its slot then.

Each partition's log is cut at the same log time, and each cut gives the keys of one partition. Two
things are between that and the state of the whole:

- A slot may have two owners by the cuts: its target has it, and its source has not heard. The one
  with the higher epoch has it, as in the cluster itself.
- A slot may have none: clocks of leaders differ, so the source's log may have given it up before
  that time, and the target's log taken it over behind it. Then the target's cut is moved there.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ...errors import PrunedError
from ...keyvalue.slots.hashing import key_slot
from ...keyvalue.slots.ranges import ALL_SLOTS, Slots
from .invariants import union
from .partitions import moves_in
from .versions import NOT_OF_STATE, Moment, moment_at, present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from ...keyvalue.slots.history import PartitionLog
    from ..source.logs import Origin

__all__ = ["Cut", "Part", "cut_at", "whole_state"]


@attrs.frozen
class Part:
    """What is taken from the log of one partition.

    Args:
        origin: the log.
        at: where it is cut.
        owned: the slots that it owned there.
        slots: those whose keys are taken from it: no other partition has them since a later epoch.
    """

    origin: Origin
    at: Moment
    owned: Slots
    slots: Slots


@attrs.frozen
class Cut:
    """The logs of partitions, each cut at one moment.

    Args:
        parts: by partition.
        missing: slots that no log has an owner of: that of a partition is missing, or its
            recording ends too early.
    """

    parts: Mapping[int, Part]
    missing: Slots


def cut_at(origins: Mapping[int, Origin], timestamp_ms: int | None = None) -> Cut:
    """Cut the logs of partitions at a log time, or where each ends.

    It needs no Spark, and reads each log once.

    Args:
        origins: a log of each partition.
        timestamp_ms: the log time; None for the ends.

    Raises:
        PrunedError: a log does not reach back that far.
        StorageError, TransportError: a log can't be read.
    """
    logs = {number: _known(number, origin) for number, origin in origins.items()}
    moments = {
        number: moment_at(origin, timestamp_ms=timestamp_ms) for number, origin in origins.items()
    }
    while (late := _late(logs, moments)) is not None:  # each time one cut moves past one more step
        number, position = late
        moments[number] = moment_at(origins[number], position=position + 1)
    owned = {number: _owned(logs[number], moments[number].position) for number in origins}
    taken: Slots = 0
    slots = dict.fromkeys(origins, 0)
    spans = [(epoch, number) for number, epochs in owned.items() for epoch in epochs]
    for epoch, number in sorted(spans, reverse=True):
        slots[number] |= owned[number][epoch] & ~taken
        taken |= owned[number][epoch]
    parts = {
        number: Part(origin, moments[number], _all_of(owned[number]), slots[number])
        for number, origin in origins.items()
    }
    return Cut(parts, ALL_SLOTS & ~taken)


def _known(partition: int, origin: Origin) -> PartitionLog:
    found = moves_in(partition, origin)
    if found is None:
        raise PrunedError(
            f"partition {partition}: its log is pruned, and has no snapshot: read from a copy that "
            "still has it"
        )
    return found


def _late(
    logs: Mapping[int, PartitionLog], moments: Mapping[int, Moment]
) -> tuple[int, int] | None:
    """Find slots that were given up, and taken over behind the cut: in which log, and where."""
    for number, log in logs.items():
        for step in log.steps:
            if step.kind != "release" or step.position >= moments[number].position:
                continue
            for other in logs[step.target].steps if step.target in logs else ():
                same = other.kind == "own" and other.move == step.move
                if same and other.position >= moments[step.target].position:
                    return step.target, other.position
    return None


def _owned(log: PartitionLog, position: int) -> dict[int, Slots]:
    """Return the slots that a partition owned at a position, by epoch."""
    owned: dict[int, Slots] = {}
    steps = [*log.earlier, *(step for step in log.steps if step.position < position)]
    for step in steps:
        if step.kind in ("found", "own"):
            owned[step.epoch] = owned.get(step.epoch, 0) | step.slots
        elif step.kind == "release":
            owned = {epoch: slots & ~step.slots for epoch, slots in owned.items()}
    return owned


def _all_of(owned: Mapping[int, Slots]) -> Slots:
    found = 0
    for slots in owned.values():
        found |= slots
    return found


def whole_state(spark: SparkSession, cut: Cut) -> DataFrame:
    """Return the store of all partitions at a cut.

    Returns:
        A row for each key, as `versions.state` has it, and the column partition. Revisions and
        positions are those of that partition.

    Raises:
        PrunedError: a log is pruned, and there is no snapshot up to its cut.
    """
    frames: list[DataFrame] = []
    for number, part in cut.parts.items():
        if not part.slots and frames:
            continue  # it has no keys; the first one is there for the columns
        found = present(spark, part.origin, part.at).drop(*NOT_OF_STATE)
        if part.slots != part.owned:
            found = found.where(_in_slots(part.slots)("key"))
        frames.append(found.withColumn("partition", F.lit(number)))
    return union(frames)


def _in_slots(slots: Slots) -> Callable[[str], Column]:
    """Return a test of keys."""
    bits = f"{slots:0{ALL_SLOTS.bit_length()}b}"[::-1]
    return F.udf(lambda key: bits[key_slot(bytes(key))] == "1", "boolean")
