"""The groups of members of a cluster, as those see them who drive them.

All of this room speaks with groups through two protocols, so it runs as well in simulated time, on
groups that are not there. In production a `Group` has connections to the client ports of the
members: a `KeyValue` of our client, and operator requests.

**Repeating.** A request may be lost, and so may its reply. All commands that this room sends may be
repeated: `surely` does that until there is an answer, or the time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from ..errors import NoLeaderError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..keyvalue.programs.client import Argument
    from ..keyvalue.protocol.resp import Reply

__all__ = ["PATIENCE_S", "Group", "Groups", "slots_command", "surely"]

PATIENCE_S: Final = 10.0
"""Seconds after which nothing more is repeated. Shorter than an election under load takes, and all
that is under way begins again. Longer, and a group without a quorum holds up the others' turns."""

_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class Group(Protocol):
    """A group of members: a partition, or the metadata group.

    None of these methods blocks for ever: an implementation has a time limit for each request.
    """

    async def execute(self, *words: Argument) -> Reply:
        """Run a command of the state machine at the leader, as `KeyValue.execute` does.

        Raises:
            KeyValueError: the store replied with an error.
            NoLeaderError: nothing happened.
            UnknownOutcomeError: it may have happened, and may still happen.
        """
        ...

    async def control(self, words: str) -> str:
        """Ask the leader for what only an operator may: ``transfer 2``, ``member list``.

        Raises:
            RefusedError: it cannot be done, and nothing has changed.
            NoLeaderError: nothing happened.
            UnknownOutcomeError: it may have happened, and may still happen.
        """
        ...

    async def status(self) -> Mapping[str, Any]:
        """Return the leader's answer to QUORATE.STATUS.

        Raises:
            RequestError: there is none.
        """
        ...


class Groups(Protocol):
    """All groups of a cluster."""

    def group(self, partition: int) -> Group:
        """Return the group of a partition, or of `META`. It need not answer."""
        ...


async def surely(group: Group, *words: Argument, within_s: float = PATIENCE_S) -> Reply:
    """Run a command that may be repeated, until it is answered.

    Args:
        group: runs it.
        words: of the command.
        within_s: seconds after which it is not repeated any more.

    Raises:
        KeyValueError: the store replied with an error.
        NoLeaderError: the time was over; the last attempt did nothing, earlier ones may have.
        UnknownOutcomeError: the time was over.
    """
    deadline = trio.current_time() + within_s
    pause = _PAUSE_S
    while True:
        try:
            return await group.execute(*words)
        except (NoLeaderError, UnknownOutcomeError):
            if trio.current_time() + pause >= deadline:
                raise
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


async def slots_command(group: Group, *words: Argument, within_s: float = PATIENCE_S) -> Reply:
    """Run a form of QUORATE.SLOTS, all of which may be repeated; see `surely`."""
    return await surely(group, "QUORATE.SLOTS", *words, within_s=within_s)
