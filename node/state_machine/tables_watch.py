"""Ends a member whose reader has met damaged tables, so that they are made anew.

What applies the log, flushes or takes a snapshot runs in a task of the member and ends it by its
error. A reader does not: a client port keeps the errors of one connection from the others. So what
readers call of the member is wrapped in a watch, which ends the member in their place. Whoever runs
the member begins it anew then (``quorate run`` does), with tables that are made from a snapshot and
the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from ...errors import DamagedTablesError

if TYPE_CHECKING:
    from types import TracebackType

    import trio

    from ..state import Core


class TablesWatch:
    """A context around what may read tables; the error rises all the same.

    Args:
        core: of the member.

    Attributes:
        nursery: of the member's tasks, while they run: ended by damage.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.nursery: trio.Nursery | None = None

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Note damage, and end the member by it."""
        if isinstance(error, DamagedTablesError) and self.nursery is not None:
            self._core.tables_damage = str(error)
            self.nursery.start_soon(self._end, str(error))
            self.nursery = None  # once is enough

    async def _end(self, words: str) -> Never:
        raise DamagedTablesError(words)
