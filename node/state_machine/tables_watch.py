"""Ends a member whose reader met damaged tables, so that they are made anew.

Applying the log, flushing and taking a snapshot run in tasks of the member, so their errors end it.
A reader is different: a client port contains the errors of one connection. So the calls that
readers make are wrapped in a watch, which ends the member instead. Its supervisor (``quorate run``)
then starts it again, with tables that are made from a snapshot and the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from ...errors import DamagedTablesError

if TYPE_CHECKING:
    from types import TracebackType

    import trio

    from ..state import MemberState


class TablesWatch:
    """A context manager around calls that may read tables. Errors still propagate.

    Args:
        state: of the member; the damage is recorded there.
    """

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._nursery: trio.Nursery | None = None

    def watch(self, nursery: trio.Nursery) -> None:
        """End a nursery's tasks at the next damage."""
        self._nursery = nursery

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """If tables are damaged, record that and end the member."""
        if isinstance(error, DamagedTablesError) and self._nursery is not None:
            self._state.tables_damage = str(error)
            self._nursery.start_soon(self._end, str(error))
            self._nursery = None  # report only the first damage

    async def _end(self, words: str) -> Never:
        raise DamagedTablesError(words)
