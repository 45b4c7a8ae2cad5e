"""Ends a member whose reader has met damaged tables, so that they are made anew.

What applies the log, flushes or takes a snapshot runs in a task of the member and ends it by its
error. A reader does not: a client port keeps the errors of one connection from the others. So what
readers call of the member is wrapped in a watch, which ends the member in their place. Whoever runs
the member begins it anew then (``quorate run`` does), with tables that are made from a snapshot and
the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import trio

from ..errors import DamagedTablesError

if TYPE_CHECKING:
    from types import TracebackType

    from .core import Core


class TablesWatch:
    """A context around what may read tables; the error rises all the same.

    Args:
        core: of the member.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._found = trio.Event()

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Note damage."""
        if isinstance(error, DamagedTablesError):
            self._core.tables_damage = str(error)
            self._found.set()

    async def run(self) -> Never:
        """Wait until damage is met.

        Raises:
            DamagedTablesError: it was.
        """
        await self._found.wait()
        raise DamagedTablesError(self._core.tables_damage)
