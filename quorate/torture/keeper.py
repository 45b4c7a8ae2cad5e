"""Keeps the members of a torture running, and judges how their processes end.

A process may end by a fault, on a full disk, or because its member was removed from the cluster.
Everything else is a violation.
"""

import math
import os
from collections import Counter
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
        full: members whose disk was full, each with the time when it had room again.
        leaving: ids of members that somebody has asked the cluster to remove.
        former: processes of members that were removed, and have ended.
        on_change: called when the processes in the cluster are other ones.
    """

    cluster: LocalCluster
    tell: Callable[[str], None]
    violations: list[str]
    full: dict[int, float] = attrs.field(factory=dict[int, float])
    leaving: set[int] = attrs.field(factory=set[int])
    former: list[MemberProcess] = attrs.field(factory=list[MemberProcess])
    on_change: Callable[[], None] = lambda: None
    _holds: Counter[int] = attrs.field(factory=Counter[int])
    _starting: trio.Lock = attrs.field(factory=trio.Lock)

    def find(self, member_id: int) -> MemberProcess | None:
        """Return the process of a member; None if it has none, or was removed and has ended."""
        return next((each for each in self.cluster.members if each.member_id == member_id), None)

    def is_held(self, member_id: int) -> bool:
        """Say whether a fault keeps a member down."""
        return self._holds[member_id] > 0

    def hold(self, process: MemberProcess) -> None:
        """Keep a member down until `release`, which has to be called as often as this."""
        # Counted: a member that is killed in a change may be the one that then is dead for good.
        self._holds[process.member_id] += 1

    async def release(self, process: MemberProcess, *, for_all: bool = False) -> None:
        """Start a member, unless another fault keeps it down, too.

        Args:
            process: of the member.
            for_all: start it in any case; what others call later has no effect.
        """
        member = process.member_id
        async with self._starting:
            # Held until it runs: otherwise `look_after` would take its end for its own.
            if for_all or self._holds[member] <= 1:
                await self._run(process)
            self._holds[member] = 0 if for_all else max(self._holds[member] - 1, 0)
        await self._end_if_held(process)

    async def start(self, process: MemberProcess) -> None:
        """Start a member, unless it runs, is kept down, or was removed and has ended."""
        async with self._starting:
            if not self.is_held(process.member_id):
                await self._run(process)
        await self._end_if_held(process)

    async def _run(self, process: MemberProcess) -> None:
        # Under a lock: several tasks may find the same member dead, and two processes must not
        # share a store.
        if process.pid is None and process not in self.former:
            await process.start()

    async def _end_if_held(self, process: MemberProcess) -> None:
        """Kill a member that another fault has begun to keep down while it was being started."""
        if self.is_held(process.member_id):
            await process.kill()

    async def look_after(self) -> None:
        """Start each member again that has ended by itself, and judge why it has."""
        for process in list(self.cluster.members):
            if process.pid is None and not self.is_held(process.member_id):
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
