"""Keeps the members of a torture running, and judges how their processes end.

A process may end by a fault, on a full disk, or because its member was removed from the cluster.
Everything else is a violation.
"""

import math
import os
from collections.abc import Callable
from typing import Final

import attrs
import trio

from ..local.cluster import LocalCluster, MemberProcess

__all__ = ["EX_REMOVED", "Keeper"]

EX_REMOVED: Final = 77
"""Exit status of a member that was removed from its cluster."""

_FULL_SECONDS: Final = 15.0
"""How long after a full disk a member may end for that. If smaller, a busy machine makes violations
of it. If larger, ends for other reasons are excused."""
_LAST_LINES: Final = 5


@attrs.define(eq=False)
class Keeper:
    """Starts members again.

    Args:
        cluster: the members; one that was removed and has ended is taken out of it.
        tell: called with a line about what happens.
        violations: takes one line for each end that should not be.

    Attributes:
        held: ids of members that a fault keeps down.
        full: members whose disk was full, each with the time when it had room again.
        leaving: ids of members that somebody has asked the cluster to remove.
        former: processes of members that were removed, and have ended.
        on_change: called when the processes in the cluster are other ones.
    """

    cluster: LocalCluster
    tell: Callable[[str], None]
    violations: list[str]
    held: set[int] = attrs.field(factory=set[int])
    full: dict[int, float] = attrs.field(factory=dict[int, float])
    leaving: set[int] = attrs.field(factory=set[int])
    former: list[MemberProcess] = attrs.field(factory=list[MemberProcess])
    on_change: Callable[[], None] = lambda: None
    _starting: trio.Lock = attrs.field(factory=trio.Lock)

    def find(self, member_id: int) -> MemberProcess | None:
        """Return the process of a member; None if it has none, or was removed and has ended."""
        return next((each for each in self.cluster.members if each.member_id == member_id), None)

    async def start(self, process: MemberProcess) -> None:
        """Start a member, unless it runs, is kept down, or was removed and has ended."""
        # Several tasks may find the same member dead; two processes must not share a store.
        async with self._starting:
            kept = process.member_id in self.held or process in self.former
            if process.pid is None and not kept:
                await process.start()

    async def release(self, process: MemberProcess) -> None:
        """Start a member that was kept down."""
        async with self._starting:
            # The id is held until it runs: otherwise `look_after` would take its end for its own.
            if process.pid is None and process not in self.former:
                await process.start()
            self.held.discard(process.member_id)

    async def look_after(self) -> None:
        """Start each member again that has ended by itself, and judge why it has."""
        for process in list(self.cluster.members):
            if process.pid is None and process.member_id not in self.held:
                self._judge(process)
                await self.start(process)

    def _judge(self, process: MemberProcess) -> None:
        member, status = process.member_id, process.returncode
        if status == EX_REMOVED and member in self.leaving:
            self.tell(f"member {member} was removed, and has ended")
            self.cluster.members.remove(process)
            self.former.append(process)
            self.on_change()
        elif status == os.EX_IOERR and self._was_full(member):
            self.tell(f"member {member} stopped on its full disk; starting it again")
        else:
            words = f"member {member} ended by itself with {status}: {last_lines(process)}"
            self.violations.append(words)

    def _was_full(self, member: int) -> bool:
        return trio.current_time() < self.full.get(member, -math.inf) + _FULL_SECONDS


def last_lines(process: MemberProcess) -> str:
    """Return the last lines of a member's log, in one line."""
    return " / ".join(process.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
