"""Base classes for a replicated state machine of your own.

:class:`StateMachine` needs one method, ``apply``. :class:`SnapshotStateMachine` needs two more,
which turn the state into bytes and back; then members take snapshots, and delete old log.
:class:`quorate.Service` is the protocol behind both, for machines that keep their state on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .node import Command

__all__ = ["SnapshotStateMachine", "StateMachine"]

_PIECE_BYTES: Final = 1 << 20
"""Smaller pieces cost a turn of a thread each. A larger one is held in memory twice."""


class StateMachine(ABC):
    """A state machine in memory: each member applies the same commands in the same order.

    The state must depend on the commands alone. Take chance and time from the command
    (``command.position``, ``command.timestamp_ms``), never from the machine. The state is rebuilt
    from the log at each start.

    Give your class an attribute ``kind``, a few words that tell it from other services of yours.
    A directory that holds the log of one kind is refused to another.

    Attributes:
        position: log position up to which the state is complete at a start; 0, since memory is
            empty then.
    """

    position: int = 0

    @abstractmethod
    def apply(self, command: Command) -> bytes:
        """Apply a committed command, and return the reply.

        Answer bad input with a reply. An exception here ends every member, and ends it again at
        each start, since the command stays in the log.
        """

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer a question from the state, without changing it. The default answers nothing."""
        del payload, flags
        return b""

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Act at the end of a batch of commands, at this log time. The default does nothing."""
        del position, timestamp_ms

    def next_deadline_ms(self) -> int | None:
        """Return the log time at which `advance` is due without a command; None for never."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work in the background until cancelled. The default does nothing."""
        task_status.started()
        await trio.sleep_forever()


class SnapshotStateMachine(StateMachine):
    """A state machine in memory whose state fits into one bytes object.

    Members save it now and then; a start replays only the log behind the newest snapshot.
    """

    @abstractmethod
    def dump(self) -> bytes:
        """Return the state. Equal states must give equal bytes on all members."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Replace the state by one that `dump` returned, here or on another member."""

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Return the pieces of a snapshot; see :class:`quorate.SnapshotService`."""
        await trio.lowlevel.checkpoint()
        # Commands are applied again from started() on, so the copy must be complete before.
        state = self.dump()
        task_status.started()
        return (state[at : at + _PIECE_BYTES] for at in range(0, len(state), _PIECE_BYTES))

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Take the state from the pieces of a snapshot."""
        del position, timestamp_ms
        await trio.lowlevel.checkpoint()
        self.restore(b"".join(pieces))
