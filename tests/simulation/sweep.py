"""A sweep over broken networks: with a quorum that is mutually connected there is a leader.

A network of members is a graph: which pairs can talk to each other. For each graph in which a
quorum is mutually connected, the cluster starts whole and settled, with one and the same member as
its leader; then the links that are not in the graph are cut. Within `BOUND` there must be a leader
that a quorum reaches, and only one; from then on, for `QUIET`, leader and terms stay as they are,
and writes at the leader are acknowledged. Then the network is whole again, and all must follow that
same leader without another election.

Of 3, 4 and 5 members these are all graphs, up to renaming members other than the leader; of more,
a sample. ``python -m tests.simulation.sweep`` does them all and tells the longest time to a leader;
the tests do a sample.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from quorate.node.protocol.quorum import quorum
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.machines import scheduler
from quorate.simulation.plan import RAM_DISK
from quorate.simulation.world import TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.simulation import Ledger, World

Graph = frozenset[tuple[int, int]]
"""The pairs that can talk, the lower id first."""

FIRST = 0  # who leads when the links are cut

BOUND = 2 * TIMEOUTS.leader_heartbeat_timeout + 4 * TIMEOUTS.election_timeout
"""Seconds until there is a leader that a quorum reaches, and no other."""

QUIET = 20 * TIMEOUTS.leader_heartbeat_timeout


def graphs(members: int) -> Iterator[Graph]:
    """Yield all graphs with a mutually connected quorum, one of those that differ only in names."""
    pairs = list(itertools.combinations(range(members), 2))
    seen: set[Graph] = set()
    for bits in range(1 << len(pairs)):
        graph = frozenset(pair for i, pair in enumerate(pairs) if bits >> i & 1)
        if graph not in seen and has_connected_quorum(graph, members):
            seen.update(_renamed(graph, members))
            yield graph


def _renamed(graph: Graph, members: int) -> Iterator[Graph]:
    """Yield what becomes of a graph when members other than the leader change names."""
    for names in itertools.permutations(range(1, members)):
        name = (FIRST, *names)
        yield frozenset((min(name[a], name[b]), max(name[a], name[b])) for a, b in graph)


def has_connected_quorum(graph: Graph, members: int) -> bool:
    """Say whether a quorum is mutually connected."""
    return any(
        all(pair in graph for pair in itertools.combinations(group, 2))
        for group in itertools.combinations(range(members), quorum(members))
    )


def some_graphs(members: int, count: int, rng: random.Random) -> list[Graph]:
    """Draw graphs with a mutually connected quorum and other links by chance."""
    drawn: list[Graph] = []
    for _ in range(count):
        names = rng.sample(range(members), members)
        core = sorted(names[: quorum(members)])
        density = rng.random()
        links = set(itertools.combinations(core, 2))
        for pair in itertools.combinations(range(members), 2):
            if rng.random() < density:
                links.add(pair)
        drawn.append(frozenset(links))
    return drawn


async def sweep(directory: Path, members: int, chosen: Sequence[Graph]) -> list[float]:
    """Try graphs one after the other on one cluster; return the seconds each took to a leader."""
    async with open_ledgers(directory, members) as world:
        await world.start()
        return [await _try(world, graph) for graph in chosen]


async def _try(world: World[Ledger], graph: Graph) -> float:
    leader = await world.settled()
    if leader != FIRST:
        await world.hosts[leader].running.control(f"transfer {FIRST}")
    assert await world.settled() == FIRST
    for one, other in itertools.combinations(world.hosts, 2):
        if (one, other) not in graph:
            world.network.cut(f"h{one}", f"h{other}")
    cut_at, steady_at = trio.current_time(), trio.current_time()
    while trio.current_time() < cut_at + BOUND:
        await trio.sleep(0.01)
        if not _led(world, graph):
            steady_at = trio.current_time()
    assert _led(world, graph), f"no one leader after {BOUND} s: {world.leaders()}"
    await _stays(world)
    world.mend()
    (leader,) = world.leaders()
    term = _terms(world)
    assert await world.settled() == leader
    assert _terms(world) == term, "healing the network cost an election"
    return steady_at - cut_at


def _led(world: World[Ledger], graph: Graph) -> bool:
    """Whether just one member leads, and reaches a quorum."""
    leaders = world.leaders()
    reached = [
        each for each in world.hosts for one in leaders if (min(one, each), max(one, each)) in graph
    ]
    return len(leaders) == 1 and len(reached) + 1 >= quorum(len(world.hosts))


async def _stays(world: World[Ledger]) -> None:
    """See that leader and terms are what they are for a while, and that writes are done."""
    (leader,), term = world.leaders(), _terms(world)
    for i in range(4):
        await trio.sleep(QUIET / 4)
        assert world.leaders() == [leader], f"{leader} led, now {world.leaders()}"
        assert _terms(world) == term, f"terms went from {term} to {_terms(world)}"
        assert await world.attempt(leader, b"%d" % i)


def _terms(world: World[Ledger]) -> int:
    """The highest term that anybody has promised or lives in."""
    stores = [host.running.store for host in world.hosts.values()]
    return max(max(store.node_state.candidate_term, store.log_term) for store in stores)


def run(members: int, chosen: Sequence[Graph]) -> list[float]:
    """Run :func:`sweep` in virtual time, on a new cluster."""
    parent = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="quorate-", dir=parent) as directory:
        return scheduler.run(sweep, Path(directory), members, chosen, seed=members)


def main() -> None:
    """Do all of them."""
    for members in (3, 4, 5, 7):
        chosen = [*graphs(members)] if members < 6 else some_graphs(members, 40, random.Random(0))
        times: list[float] = []
        for first in range(0, len(chosen), 20):
            times += run(members, chosen[first : first + 20])
        all_or_some = "all" if members < 6 else "some"
        print(  # noqa: T201 - it is a program
            f"{members} members, {all_or_some} {len(times)} graphs with a connected quorum: one "
            f"leader after {max(times):.2f} s at most (allowed {BOUND:.2f} s), and no more terms"
        )


if __name__ == "__main__":
    main()
