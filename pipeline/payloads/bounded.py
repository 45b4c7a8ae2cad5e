"""Rows gathered into batches that are bounded in rows and in bytes.

A batch bounded by its rows alone has no bound in memory: 8,192 values of 32 MiB are 256 GiB. And
an Arrow column of binary values holds 2 GiB at most. So whatever makes a batch out of values goes
through :func:`gathered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "gathered"]

BATCH_ROWS: Final = 8192
"""With fewer, the cost of a batch shows; with more, nothing is gained."""

BATCH_BYTES: Final = 8 << 20
"""A task holds a few batches at once, so this is about a tenth of its memory."""

T = TypeVar("T")


def gathered(found: Iterable[T], weigh: Callable[[T], int]) -> Iterator[list[T]]:
    """Gather rows until there are :data:`BATCH_ROWS` of them, or :data:`BATCH_BYTES` in them.

    Args:
        found: the rows. They are taken one by one, and no further than the batch needs.
        weigh: the bytes of a row. One that has more than the bound is a batch of its own, or the
            last one of its batch.
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
