"""The leader's commands on their way: those that wait for a batch, and the batches in flight."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ...errors import RefusedError
from ...storage import DESCRIPTOR_BYTES, Entry, EntryKind
from ..requests.gateway import still_wanted

if TYPE_CHECKING:
    from ..requests.gateway import Request
    from ..state import Core

MAX_IN_FLIGHT_BYTES: Final = 32 << 20
"""With one more request of the usual largest size it fits the queue of a link."""

ENOUGH_COMMANDS: Final = 100
"""From this many commands on, a batch is sent although others are in flight. Larger, and commands
wait longer than they save; smaller, and members handle more batches for the same load."""


def entries_of(requests: list[Request]) -> list[Entry]:
    """Return the entries of the log that a batch of commands comes to."""
    kind = EntryKind.COMMAND  # a member of an enumeration is slow to get at
    return [Entry(kind, each.payload, each.flags, each.session, each.sequence) for each in requests]


class Proposals:
    """The window of a leadership.

    Args:
        core: of the member.

    Attributes:
        waiting: commands that are in no batch yet; `Leadership` appends to it.
        in_flight: where the batches end that are not committed, and how many commands each has.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.waiting: list[Request] = []
        self.in_flight: deque[tuple[int, int]] = deque()
        self._commands = 0  # of all in flight

    def withdraw(self) -> list[Request]:
        """Give back the commands that are in no batch."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def take(self) -> list[Request]:
        """Take commands for one batch, as many as fit and at least one; none if it has to wait."""
        if not self.waiting or not self._has_room():
            return []
        if self._core.suspended:
            while self.waiting:  # clients ask for more upon that, which is refused too
                for request in self.withdraw():
                    request.done(
                        RefusedError("the cluster is suspended by an operator; nothing was done")
                    )
            return []
        self.waiting = [*still_wanted(self.waiting)]
        size, limit = 0, self._core.config.limits.max_batch_bytes
        for count, request in enumerate(self.waiting):
            size += len(request.payload) + DESCRIPTOR_BYTES
            if size > limit and count:
                taken, self.waiting = self.waiting[:count], self.waiting[count:]
                break
        else:
            taken, self.waiting = self.waiting, []
        return taken

    def _has_room(self) -> bool:
        """Whether one more batch may be in flight."""
        applier, most = self._core.applier, self._core.config.limits.batches_in_flight
        if applier.lagging:  # what is committed faster than it is applied would pile up
            return False
        if not self.in_flight:
            return True
        size = self.in_flight[-1][0] - applier.commit_position
        if len(self.in_flight) >= most or size >= MAX_IN_FLIGHT_BYTES:
            return False
        # Clients that were answered together send their next commands one after the other. A batch
        # of the first few would cost every member as much as one batch of them all.
        least = min(self._commands // (most - 1), ENOUGH_COMMANDS)
        return sum(request.commands for request in self.waiting) >= least

    def sent(self, end: int, commands: int) -> None:
        """A batch of so many commands that ends there is in flight."""
        self.in_flight.append((end, commands))
        self._commands += commands

    def committed(self, position: int) -> None:
        """Everything below is committed."""
        while self.in_flight and self.in_flight[0][0] <= position:
            self._commands -= self.in_flight.popleft()[1]
