"""A histogram of durations or counts, with one bucket for each power of two."""

from __future__ import annotations

from math import ceil
from typing import Final

SECONDS: Final = 2.0**-16
"""Upper bound of the first bucket of durations: about 15 microseconds. Smaller: buckets that no
disk and no network reaches. Larger: the fast half of all writes falls into one bucket."""

BUCKETS: Final = 21
"""Buckets with an upper bound; durations go up to 16 seconds. Fewer: a slow disk can't be told from
a dead one. More: each scrape is longer."""


class Histogram:
    """Counts observations by size.

    Args:
        first: the upper bound of the first bucket; each further bound is twice as large.

    Attributes:
        counts: observations by bucket; the last one has no upper bound.
        total: the sum of all observations.
    """

    __slots__ = ("_per_unit", "counts", "total")

    def __init__(self, first: float = SECONDS) -> None:
        self._per_unit = 1 / first
        self.counts = [0] * (BUCKETS + 1)
        self.total = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count `weight` observations of one value, such as the entries of a batch."""
        # Bucket n ends at `first * 2**n`, and includes that bound.
        bucket = (ceil(value * self._per_unit) - 1).bit_length() if value > 0 else 0
        self.counts[min(bucket, BUCKETS)] += weight
        self.total += value * weight

    def clear(self) -> None:
        """Forget all observations."""
        # In place: others hold the list.
        self.counts[:] = [0] * len(self.counts)
        self.total = 0.0

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    def bounds(self) -> list[float]:
        """Return the upper bounds of the buckets but the last."""
        return [2**n / self._per_unit for n in range(BUCKETS)]

    def quantile(self, share: float, since: tuple[int, ...] = ()) -> float | None:
        """Estimate what a share of the observations does not exceed; None without any.

        Args:
            share: from 0 to 1.
            since: `counts` of an earlier moment; only what came later is looked at.

        Returns:
            A place within a bucket, as if its observations were spread evenly there. This is the
            estimate of Prometheus' `histogram_quantile`, except for the last bucket, which has
            no upper bound: infinity.
        """
        before = since or (0,) * len(self.counts)
        found = [now - then for now, then in zip(self.counts, before, strict=True)]
        wanted, seen = share * sum(found), 0
        for bucket, count in enumerate(found):
            if count and seen + count >= wanted:
                if bucket == BUCKETS:
                    return float("inf")
                # The first bucket begins at 0; a further one is as wide as its lower bound.
                lower = 2 ** (bucket - 1) if bucket else 0
                width = lower or 1
                return (lower + width * (wanted - seen) / count) / self._per_unit
            seen += count
        return None
