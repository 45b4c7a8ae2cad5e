"""From the stream of a snapshot to tables on disk, step by step."""

from __future__ import annotations

import enum
from itertools import chain
from typing import TYPE_CHECKING, Final

from .stream import TABLES, blocks_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .disk import TablesDisk
    from .stream import Rows

_STEP_BYTES: Final = 16 << 20
"""One transaction writes this many bytes. Smaller ones sync more often; larger ones hold more rows
in memory, and keep the reader's thread from other reads for longer."""


class Step(enum.Enum):
    """How a step of loading ended."""

    MORE = 0
    """Written; call `step` again."""
    FULL = 1
    """Nothing was written: the map must grow, then call `step` again."""
    DONE = 2
    """The tables are complete."""


class TablesLoader:
    """Replaces the content of tables by a stream, one transaction per step.

    Args:
        disk: the tables.
        pieces: the stream.
        position: log position up to which the tables are complete then.
        timestamp_ms: log time there.
    """

    def __init__(
        self, disk: TablesDisk, pieces: Iterator[bytes], position: int, timestamp_ms: int
    ) -> None:
        self._disk = disk
        self._blocks = blocks_untrusted(pieces)
        self._applied = position, timestamp_ms
        self._begun = False
        self._rows: tuple[Rows, ...] = tuple([] for _ in TABLES)

    def step(self) -> Step:
        """Write about `_STEP_BYTES` more.

        Raises:
            StorageError: the stream is damaged, or the disk failed.
        """
        # The first transaction marks the tables incomplete. After a crash before the last one they
        # are emptied when they are opened, so half a snapshot never looks like a state.
        if not self._begun:
            if not self._disk.clear():
                return Step.FULL
            self._begun = True
        size = sum(len(key) + len(value) for rows in self._rows for key, value in rows)
        done = False
        while size < _STEP_BYTES and not done:
            block = next(self._blocks, None)
            if block is None:
                done = True
            else:
                table, rows = block
                self._rows[table - 1].extend(rows)
                size += sum(map(len, chain.from_iterable(rows)))
        if not self._disk.load(self._rows, self._applied if done else None):
            return Step.FULL
        self._rows = tuple([] for _ in TABLES)  # kept until here, to repeat a step that was FULL
        return Step.DONE if done else Step.MORE
