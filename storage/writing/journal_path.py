"""The journal path of a group commit: groups whose durability is one write to a file.

The journal writer (`journal_writer`) writes one span at a time. What arrives during that waits
here, and becomes the next group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from .executor import MAX_GROUP_JOBS, J

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .journal_writer import Span, Writer


class JournalPath(Generic[J]):
    """Groups that wait for the journal writer, and the one that it writes.

    Args:
        writer: of the journal; belongs to this object.
        begin: see `Executor.by_spans`.
        end: likewise.

    Attributes:
        waiting: jobs that no path has begun to write, in order.
    """

    def __init__(
        self,
        writer: Writer,
        begin: Callable[[Sequence[J]], Span | None],
        end: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._begin = begin
        self._end = end
        self._group: Sequence[J] = ()  # under way
        self.waiting: list[J] = []

    @property
    def took(self) -> float:
        """How many seconds the write of the last group lasted."""
        return self._writer.took

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return bool(self._group)

    def begin(self) -> bool:
        """Begin to write the first group that waits; False if it needs the LMDB path."""
        group = self.waiting[:MAX_GROUP_JOBS]
        # Still in `waiting`: if the group needs LMDB, all that waits goes to the writer thread in
        # order.
        span = self._begin(group)
        if span is None:
            return False
        del self.waiting[: len(group)]
        self._group = group
        self._writer.write(span.file, span.offset, span.data)
        return True

    def finished(self) -> Sequence[J]:
        """Return the group that became durable, empty if the write is under way or there is none.

        Raises:
            StorageError: the write failed.
        """
        error = self._writer.outcome()
        if error is None:
            return ()
        # Before `_end`, which raises for a failed write: `_drain` waits until this path is no
        # longer busy.
        group, self._group = self._group, ()
        if error:
            # Nothing behind a failed write may be written: it would be durable without it.
            self.waiting.clear()
        self._end(error)
        return group

    def close(self) -> None:
        """End the writer's thread, after a write that is under way; idempotent."""
        self._writer.close()
