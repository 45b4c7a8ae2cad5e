"""The trouble: members are killed and paused, one fault after another, by a seeded choice.

A fault begins only when the cluster has gone on working after the one before, so every one of
them hits a cluster that does something; that it does is checked by the way (liveness).
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import trio

from quorate.status import survey

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from quorate.cluster import LocalCluster, MemberProcess

    from .clients import Ledger

FAULTS: Final = {
    "kill the leader": 5,
    "kill a follower": 2,
    "kill a majority": 1,
    "kill all": 1,
    "pause the leader": 3,
    "pause a follower": 1,
}
CALM_SECONDS: Final = 0.3
AWAY_SECONDS: Final = (0.05, 0.2, 0.5, 1.5)
"""Back before anybody notices; during the election that follows; after it; far behind."""
PROGRESS_WRITES: Final = 50
PROGRESS_SECONDS: Final = 60.0


class NoProgressError(Exception):
    """All members run, and yet no write is acknowledged."""


class Nemesis:
    """Kills and pauses members.

    Args:
        cluster: the members.
        ledger: what the clients were told; shows whether there is progress.
        rng: its own.
        tell: takes a line about each fault.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        ledger: Ledger,
        rng: random.Random,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._rng = rng
        self._tell = tell
        self.kills = 0
        self.pauses = 0

    async def run(self, *, kills: int, seconds: float) -> None:
        """Make trouble for that long, and until that many members were killed.

        Raises:
            NoProgressError: the cluster did not recover from a fault.
        """
        end = trio.current_time() + seconds
        while self.kills < kills or trio.current_time() < end:
            await self.progress()
            await trio.sleep(self._rng.uniform(0.0, CALM_SECONDS))
            (fault,) = self._rng.choices(list(FAULTS), list(FAULTS.values()))
            await self._strike(fault)
        await self.progress()

    async def progress(self) -> None:
        """Wait until the cluster works; see that no member has ended by itself."""
        goal = len(self._ledger.acknowledged) + PROGRESS_WRITES
        with trio.move_on_after(PROGRESS_SECONDS) as waiting:
            while len(self._ledger.acknowledged) < goal:
                for member in self._cluster.members:
                    if member.pid is None:
                        self._ledger.violations.append(
                            f"member {member.member_id} ended by itself with {member.returncode}:"
                            f" {_last_lines(member)}"
                        )
                        await member.start()
                await trio.sleep(0.02)
        if waiting.cancelled_caught:
            seen = await survey(self._cluster.addresses)
            told = [f"member {one.member_id} {one.state} term {one.term}" for one in seen.said]
            raise NoProgressError(
                f"no {PROGRESS_WRITES} writes in {PROGRESS_SECONDS:g} s: {', '.join(told)}"
            )

    async def _strike(self, fault: str) -> None:
        victims = await self._victims(fault)
        pause = fault.startswith("pause")
        away = self._rng.choice(AWAY_SECONDS)
        names = ", ".join(str(victim.member_id) for victim in victims)
        self._tell(f"{fault}: member {names}, away for {away:g} s")
        if pause:
            self.pauses += len(victims)
        else:
            self.kills += len(victims)
        for victim in victims:
            victim.send_signal(signal.SIGSTOP if pause else signal.SIGKILL)
        if not pause:
            for victim in victims:
                await victim.wait()
        await trio.sleep(away)
        for victim in victims:
            if pause:
                victim.send_signal(signal.SIGCONT)
            else:
                await victim.start()

    async def _victims(self, fault: str) -> list[MemberProcess]:
        members = self._cluster.members
        leading = (await survey(self._cluster.addresses)).leader
        leader = members[leading.member_id] if leading else self._rng.choice(members)
        followers = [member for member in members if member is not leader]
        match fault.split(maxsplit=1)[1]:
            case "the leader":
                return [leader]
            case "a follower":
                return [self._rng.choice(followers)]
            case "a majority":
                return [leader, *self._rng.sample(followers, len(members) // 2)]
            case _:
                return members


def _last_lines(member: MemberProcess) -> str:
    return " / ".join(member.log.read_text(errors="replace").splitlines()[-5:])
