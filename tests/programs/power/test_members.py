"""Real members under load lose their power, all at the same moment, and keep their promises.

Each member writes down what it does to its files. When the power goes, all are killed, and the
files of each become what its journal says that a disk may have kept. So a majority does not help:
what was acknowledged and not synced is gone everywhere. In the end the check is the torture's.
"""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from quorate.histories.history import HistoryWriter
from quorate.local.cluster import LocalCluster, MemberProcess, free_client_port, lay_out
from quorate.torture.checks import check_recordings
from quorate.torture.clients import Clients
from quorate.torture.faults import Nemesis
from quorate.torture.plan import check_history, check_states
from tests.programs.power.journal import Chance, PowerLoss, Tree, read_journal, replace

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS: Final = 3
LOSSES: Final = 2
KEPT: Final = frozenset({"member.log"})  # not the member's own: this process holds it open


@attrs.define(eq=False)
class Grid:
    """What the members have their power from.

    Args:
        cluster: the members.
        directory: where the journals lie.
        library: what writes them.
        chance: what becomes of that which was not synced.
        heeded: which kinds of syncs the disks keep.
    """

    cluster: LocalCluster
    directory: Path
    library: Path
    rng: Random
    heeded: str = "SY"
    _before: dict[int, Tree] = attrs.field(factory=dict[int, Tree])

    async def on(self) -> None:
        """Start all members."""
        for member in self.cluster.members:
            self._journal(member).unlink(missing_ok=True)
            self._before[member.member_id] = Tree.of(member.config.directory)
            member.environment = {
                "LD_PRELOAD": str(self.library),
                "FORGETFUL_ROOT": str(member.config.directory),
                "FORGETFUL_JOURNAL": str(self._journal(member)),
            }
            await member.start()

    async def fail(self) -> None:
        """Let the power go, for all at the same time."""
        for member in self.cluster.members:
            member.send_signal(signal.SIGKILL)
        for member in self.cluster.members:
            await member.wait()
        for member in self.cluster.members:
            before, records = self._before[member.member_id], read_journal(self._journal(member))
            chance = Chance.of(self.rng) if self.heeded else Chance(self.rng, 0.0, 0.0)
            left = PowerLoss(before, records, chance, self.heeded).tree()
            replace(member.config.directory, left, but=KEPT)

    def _journal(self, member: MemberProcess) -> Path:
        return self.directory / f"journal-{member.member_id}"


async def lose_power(tmp_path: Path, library: Path, *, losses: int, heeded: str) -> list[str]:
    """Run members under load, let the power go, and return what did not hold."""
    rng = Random(1)
    configs = lay_out(
        tmp_path, members=MEMBERS, client_port=free_client_port(MEMBERS), cluster="power"
    )
    cluster = LocalCluster(configs)
    grid = Grid(cluster, tmp_path, library, rng, heeded)
    history = tmp_path / "history.jsonl"
    with history.open("wb") as file:
        clients = Clients(cluster.addresses, HistoryWriter(file), seed=1)
        nemesis = Nemesis(cluster, clients, rng, print, faults=())
        try:
            await grid.on()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.run)
                for _ in range(losses):
                    await nemesis.progress()
                    await trio.sleep(rng.uniform(0.0, 0.3))
                    await grid.fail()
                    await grid.on()
                await nemesis.progress()
                nursery.cancel_scope.cancel()
            await check_states(nemesis)
        finally:
            await cluster.kill()
    _, found = check_recordings([member.config.directory for member in cluster.members])
    return [*clients.violations, *found, *map(str, check_history(history).trouble)]


async def test_members_that_all_lose_their_power_lose_no_promise(
    tmp_path: Path, library: Path
) -> None:
    assert await lose_power(tmp_path, library, losses=LOSSES, heeded="SY") == []


@pytest.mark.slow
async def test_members_on_disks_that_lie_are_found_out(tmp_path: Path, library: Path) -> None:
    """Without any sync they begin anew, and what they had acknowledged is gone."""
    violations = await lose_power(tmp_path, library, losses=1, heeded="")
    assert any("not linearizable" in violation for violation in violations)
