"""The way of a batch through its leader, and the batches whose way took long.

::

    taken ---- appended ---- durable here ---- committed ---- applied, replied
       receive          sync             quorum         apply, reply

A journey holds times and sizes, and nothing that a client has sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...metrics import Histogram

SLOW_SECONDS: Final = 0.01
"""From this time on a batch counts as slow; the default of Redis for a command. Shorter: on a disk
that is slow by itself each batch is noted. Longer: what clients notice is missed."""

KEPT: Final = 128
"""Slow batches that are kept; the default of Redis. Fewer: a short disturbance pushes out what came
before. More: memory, and longer replies of SLOWLOG."""


@attrs.define(eq=False)
class Journey:
    """The way of one batch; times are trio's.

    Args:
        position: where the batch begins in the log.
        end: where it ends.
        entries: how many it has.
        timestamp_ms: log time of the batch.
        taken: when this member took the first of its requests; `appended` if it has none.
        appended: when it was sent to the followers and given to the disk.

    Attributes:
        durable: when this member's disk had it.
        committed: when a quorum had it.
    """

    position: int
    end: int
    entries: int
    timestamp_ms: int
    taken: float
    appended: float
    durable: float = 0.0
    committed: float = 0.0


@attrs.frozen
class SlowBatch:
    """A batch that took long, and where its time went, in seconds.

    Args:
        number: counts the slow batches of this process, from 0 on.
        position: where it begins in the log.
        entries: how many it has.
        size: bytes in the log.
        timestamp_ms: log time of the batch.
        receive: from the first of its requests to the append: parked, or waiting for room.
        sync: from there until this member's disk had it.
        quorum: from there until it was committed.
        apply: waiting to be applied, and being applied.
        reply: handing the replies to the clients.
    """

    number: int
    position: int
    entries: int
    size: int
    timestamp_ms: int
    receive: float
    sync: float
    quorum: float
    apply: float
    reply: float

    @property
    def took(self) -> float:
        """How long it took, from the first of its requests to the last reply."""
        return self.receive + self.sync + self.quorum + self.apply + self.reply


@attrs.frozen
class Latencies:
    """How long things took in a member.

    Args:
        slow: the latest slow batches, the oldest first.
        histograms: durations in seconds, by what took so long.
    """

    slow: Sequence[SlowBatch] = ()
    histograms: Mapping[str, Histogram] = attrs.field(factory=dict[str, "Histogram"])


class SlowBatches:
    """The latest slow batches of a member, while it leads.

    Attributes:
        kept: the latest ones, the oldest first.
        count: all of them since the start.
        observers: each is called with every slow batch.
    """

    def __init__(self) -> None:
        self.kept: deque[SlowBatch] = deque(maxlen=KEPT)
        self.count = 0
        self.observers: list[Callable[[SlowBatch], None]] = []

    def ended(self, journey: Journey, now: float, reply: float) -> None:
        """Note the end of a batch's way, if it was slow.

        Args:
            journey: of the batch.
            now: when it was applied, and all its requests were answered.
            reply: how many seconds of that the replies took.
        """
        if now - journey.taken < SLOW_SECONDS:
            return
        # A batch whose disk or quorum was not seen, as at a change of roles, spent no time there.
        durable = journey.durable or journey.appended
        committed = max(journey.committed, durable)
        slow = SlowBatch(
            self.count,
            journey.position,
            journey.entries,
            journey.end - journey.position,
            journey.timestamp_ms,
            journey.appended - journey.taken,
            durable - journey.appended,
            committed - durable,
            max(now - committed - reply, 0.0),
            reply,
        )
        self.count += 1
        self.kept.append(slow)
        for observer in self.observers:
            observer(slow)
