"""With a quorum that is mutually connected there is a leader, soon, and no more terms after it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from tests.simulation.sweep import BOUND, Graph, graphs, has_connected_quorum, run, some_graphs

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


def test_there_are_as_many_graphs_as_there_should_be() -> None:
    assert [len([*graphs(members)]) for members in (3, 4, 5)] == [5, 8, 55]
    assert has_connected_quorum(frozenset({(0, 1)}), 3)
    assert not has_connected_quorum(frozenset({(0, 1), (1, 2)}), 4)


CHOSEN: dict[int, list[Graph]] = {
    3: [*graphs(3)],
    4: [*graphs(4)],
    5: [*graphs(5)][::6],
    7: some_graphs(7, 3, random.Random(7)),
}


@pytest.mark.parametrize(
    "members", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5)), 7]
)
def test_whatever_links_are_cut(members: int) -> None:
    times = run(members, CHOSEN[members])
    assert len(times) == len(CHOSEN[members])
    assert max(times) <= BOUND


@pytest.mark.slow
async def test_without_a_quorum_on_any_side_nobody_leads_and_no_term_is_raised(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4) as world:
        await world.start()
        await world.settled()
        term = max(host.running.store.node_state.candidate_term for host in world.hosts.values())
        for one in (0, 1):
            for other in (2, 3):
                world.network.cut(f"h{one}", f"h{other}")
        await trio.sleep(2 * TIMEOUTS.leader_heartbeat_timeout)
        assert world.leaders() == []
        await trio.sleep(60)
        assert world.leaders() == []
        states = [host.running.store.node_state for host in world.hosts.values()]
        assert max(state.candidate_term for state in states) == term
        world.mend()
        await world.settled(within=BOUND + 2)
