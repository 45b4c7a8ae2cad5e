"""The two scenarios of BlazingMQ's article with real members, each in a network namespace.

``python -m tests.programs.crash.stability DIRECTORY``, in a namespace where one may make others;
prints what was seen as one JSON object: for each scenario leader and terms before and after.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.local.cluster import LocalCluster, free_client_port, lay_out
from quorate.local.survey import Verdict, survey
from quorate.node.config.config import Timeouts
from quorate.node.config.security import Security
from quorate.torture.network import Namespaces, open_namespaces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.local.survey import Survey

MEMBERS = 4
TIMEOUTS = Timeouts(4.0, 2.0, 0.1, 0.5, 0.05)
"""Of one building, but patient: it is not the machine's speed that is looked at."""

WAIT_SECONDS = 60.0


async def agreed(cluster: LocalCluster) -> Survey:
    """Wait until all members follow one leader."""
    with trio.fail_after(WAIT_SECONDS):
        while True:
            seen = await survey(cluster.addresses)
            if seen.verdict is Verdict.AGREED and seen.leader:
                return seen
            await trio.sleep(0.1)


async def cut(network: Namespaces, one: int, other: int) -> None:
    """Cut two members off from each other."""
    await network.cut(one, other)
    await network.cut(other, one)


async def heal(network: Namespaces) -> None:
    """Undo all cuts."""
    for one in range(MEMBERS):
        for other in range(MEMBERS):
            if one != other:
                await network.heal(one, other)


async def cut_off_and_returning(network: Namespaces, leader: int) -> None:
    """One member is cut off for ten election timeouts, and comes back."""
    lonely = (leader + 1) % MEMBERS
    for other in range(MEMBERS):
        if other != lonely:
            await cut(network, lonely, other)
    await trio.sleep(10 * TIMEOUTS.election_timeout)
    await heal(network)


async def to_and_fro(network: Namespaces, leader: int) -> None:
    """The leader and one follower can't see each other, the others see both."""
    await cut(network, leader, (leader + 1) % MEMBERS)
    await trio.sleep(4 * TIMEOUTS.leader_heartbeat_timeout)
    await heal(network)


SCENARIOS: list[Callable[[Namespaces, int], Awaitable[None]]] = [cut_off_and_returning, to_and_fro]


async def main(directory: Path) -> None:
    """Run both."""
    found: dict[str, dict[str, int]] = {}
    async with open_namespaces(MEMBERS) as network:
        configs = lay_out(
            directory, members=MEMBERS, client_port=free_client_port(MEMBERS), hosts=network.hosts
        )
        for config in configs:
            patient = attrs.evolve(
                config,
                directory=Path(),
                timeouts=TIMEOUTS,
                security=Security(insecure_network=True),
            )
            (config.directory / "node.toml").write_text(patient.to_toml())
        cluster = LocalCluster(configs)
        for member in cluster.members:
            member.launcher = network.launcher(member.member_id)
        try:
            await cluster.start()
            for scenario in SCENARIOS:
                before = (await agreed(cluster)).leader
                assert before is not None
                await scenario(network, before.member_id)
                await agreed(cluster)
                await trio.sleep(2 * TIMEOUTS.leader_heartbeat_timeout)
                after = (await agreed(cluster)).leader
                assert after is not None
                found[scenario.__name__] = {
                    "leader": before.member_id,
                    "term": before.term,
                    "leader_after": after.member_id,
                    "term_after": after.term,
                }
        finally:
            await cluster.kill()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
