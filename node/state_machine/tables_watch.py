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

    from ..state import MemberState


class TablesWatch:
    """A context around what may read tables; the error rises all the same.

    Args:
        state: of the member.
    """

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._nursery: trio.Nursery | None = None

    def watch(self, nursery: trio.Nursery) -> None:
        """Have damage end the tasks of a nursery from now on."""
        self._nursery = nursery

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Note damage, and end the member by it."""
        if isinstance(error, DamagedTablesError) and self._nursery is not None:
            self._state.tables_damage = str(error)
            self._nursery.start_soon(self._end, str(error))
            self._nursery = None  # once is enough

    async def _end(self, words: str) -> Never:
        raise DamagedTablesError(words)
