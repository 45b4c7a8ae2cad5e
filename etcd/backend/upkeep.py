"""The leader compacts the history by itself, so that nobody has to.

Each member notes from time to time which revision it has reached, and how many bytes of rows that
took. Every member does, with a port for clients of etcd or without, so a new leader knows what is
old. It starts from nothing after a restart: then the history gets older, or larger, by as much as
it may be.

Ages are of this member's clock, from when it has applied a revision. So a member that was behind
takes history for younger than it is, and keeps it for longer.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import trio

from ...errors import RequestError
from ...keyvalue.protocol.payload import ETCD
from ...node.requests.request import COMMAND
from ...node.requests.task_calls import Calls
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, encode_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...node.requests.gateway import Gateway
    from ...node.requests.request import Request
    from ..keyspace.change import Change
    from ..state.machine import EtcdState

__all__ = ["KEPT_BYTES", "KEPT_S", "LOOK_S", "MAX_BYTES", "YOUNG_S", "Upkeep"]

KEPT_S: Final = 3600.0
"""Seconds for which history is kept. If smaller, clients that were away for long must read
everything again. If larger, the members keep more."""

KEPT_BYTES: Final = 64 << 20
"""Bytes of rows that are kept as history; the same trade-off."""

YOUNG_S: Final = 300.0
"""Seconds for which history is kept however much it is, up to `MAX_BYTES`. If smaller, a few large
puts take the history from a watcher that is seconds behind. If larger, the members keep more."""

MAX_BYTES: Final = 1 << 30
"""Bytes of rows that are kept as history, whatever their age. If smaller, a writer of some MiB/s
takes the history from watchers; if larger, it fills the disks."""

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
        gateway: of the member.
        state: of the keyspace, as this member has applied it.
    """

    def __init__(self, gateway: Gateway, state: EtcdState) -> None:
        self._gateway = gateway
        self._state = state
        self._calls = Calls(self._submit)
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
            # A keyspace that nobody uses stays at the first revision, and nothing is written.
            if target > max(self._state.compacted, 1) and self._gateway.topology.is_leader:
                request = rpc.CompactionRequest(revision=target).SerializeToString()
                # We may lead no more. There will be another look, so also at the reply: a client
                # may have been first.
                with suppress(RequestError):
                    await self._calls.ask(COMMAND, encode_request(Op.COMPACT, request), ETCD)

    def _submit(self, request: Request) -> None:
        request.deadline = trio.current_time() + LOOK_S
        self._gateway.submit(request)

    def _applied(self, _revision: int, changes: Sequence[Change]) -> None:
        self._written += sum(len(change.row) for change in changes)
        if self._written - self._marks[-1].written >= _MARK_BYTES:
            self._mark()

    def _mark(self) -> None:
        self._marks.append(_Mark(trio.current_time(), self._state.revision, self._written))

    def _target(self) -> int:
        """Return up to which revision the history is too old, or more than is kept; 0 for none."""
        # The newest mark that is past a bound stays, for a later leader's or our own next try.
        while len(self._marks) > 1 and self._is_past(self._marks[1]):
            self._marks.popleft()
        first = self._marks[0]
        return first.revision if self._is_past(first) else 0

    def _is_past(self, mark: _Mark) -> bool:
        age, size = trio.current_time() - mark.time, self._written - mark.written
        return age >= KEPT_S or size >= MAX_BYTES or (age >= YOUNG_S and size >= KEPT_BYTES)
