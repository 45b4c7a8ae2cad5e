"""Gathers rows into batches with a bounded number of rows and of bytes.

A bound on rows alone does not bound memory: 8,192 values of 32 MiB are 256 GiB. And an Arrow column
of binary values holds at most 2 GiB. So all code that makes batches of values uses
:func:`gathered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "gathered"]

BATCH_ROWS: Final = 8192
"""Smaller: the fixed cost of a batch shows. Larger: nothing is gained."""

BATCH_BYTES: Final = 8 << 20
"""Smaller: more batches for long values. Larger: a task runs out of memory, since it holds a few
batches at once; this is about a tenth of its memory."""

T = TypeVar("T")


def gathered(found: Iterable[T], weigh: Callable[[T], int]) -> Iterator[list[T]]:
    """Gather rows into batches of at most :data:`BATCH_ROWS` rows, or :data:`BATCH_BYTES` bytes.

    Args:
        found: the rows, taken one by one, only as the batch needs them.
        weigh: returns the bytes of a row. A row above the bound is a batch of its own, or the last
            row of its batch.
    """
    rows: list[T] = []
    size = 0
    for row in found:
        rows.append(row)
        size += weigh(row)
        if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows
