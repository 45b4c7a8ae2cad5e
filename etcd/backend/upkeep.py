"""The leader compacts the history by itself, so that nobody has to.

Each member notes from time to time which revision it has reached, and how many bytes of rows that
took. Every member does, so a new leader knows what is old. It starts from nothing after a restart:
then the history gets older, or larger, by as much as it may be.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import trio

from ..codes import EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..state.change import Change
    from .backend import Backend

__all__ = ["KEPT_BYTES", "KEPT_S", "LOOK_S", "Upkeep"]

KEPT_S: Final = 3600.0
"""Seconds for which history is kept. If smaller, clients that were away for long must read
everything again. If larger, the members keep more."""

KEPT_BYTES: Final = 64 << 20
"""Bytes of rows that are kept as history; the same trade-off."""

LOOK_S: Final = 30.0
"""Seconds between two looks at both. If smaller, there are more compactions; if larger, there is
more history than the bounds say."""

_MARK_BYTES: Final = KEPT_BYTES // 16
"""Bytes of rows after which a revision is noted, at the latest."""


class _Mark(NamedTuple):
    """When a revision was reached, and how many bytes of rows had been written by then."""

    time: float
    revision: int
    written: int


class Upkeep:
    """Proposes compactions while this member leads.

    Args:
        backend: reaches the cluster and the state.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._state = backend.state
        self._written = 0
        self._marks: deque[_Mark] = deque()
        self._mark()
        self._state.listen(self._applied)

    async def run(self) -> Never:
        """Look after the history until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self._mark()
            target = self._target()
            if target > self._state.compacted and self._backend.gateway.topology.is_leader:
                request = rpc.CompactionRequest(revision=target)
                # A client may be first, or we lead no more. There will be another look.
                with suppress(EtcdError):
                    await self._backend.ask(Op.COMPACT, request.SerializeToString())

    def _applied(self, _revision: int, changes: Sequence[Change]) -> None:
        self._written += sum(len(change.row) for change in changes)
        if self._written - self._marks[-1].written >= _MARK_BYTES:
            self._mark()

    def _mark(self) -> None:
        self._marks.append(_Mark(trio.current_time(), self._state.revision, self._written))

    def _target(self) -> int:
        """Return up to which revision the history is too old, or more than is kept; 0 for none."""
        old, full = trio.current_time() - KEPT_S, self._written - KEPT_BYTES
        # The newest mark that is past a bound stays, for a later leader's or our own next try.
        while len(self._marks) > 1 and _is_past(self._marks[1], old, full):
            self._marks.popleft()
        first = self._marks[0]
        return first.revision if _is_past(first, old, full) else 0


def _is_past(mark: _Mark, old: float, full: int) -> bool:
    return mark.time <= old or mark.written <= full
