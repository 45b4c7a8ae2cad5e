"""All that runs: the members, the nodes and the client, with what was found out so far."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console

from ...local.cluster import LocalCluster, MemberProcess
from ...local.survey import SETTLED, Survey, agreed, until
from ...local.words import span
from .nodes import SCOPE, Node, NodeState
from .rows import Rows, query

__all__ = ["HeldPrimary", "World"]

PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
_TROUBLE: Final = ("demot", "promot")
"""Words in a log of Patroni that must not be there while only members of quorate have trouble."""


@attrs.frozen
class HeldPrimary:
    """A primary that must stay one.

    Args:
        node: which it is.
        state: as it was.
        began: when that was; trio's clock.
        ends: of the logs of all nodes, at that time.
    """

    node: Node
    state: NodeState
    began: float
    ends: Mapping[Path, int]


class World:
    """The members, the nodes and the client.

    Args:
        console: prints what happens.
        cluster: the members, which run.
        nodes: Patroni and PostgreSQL.
        psql: the client's program.
    """

    def __init__(
        self, console: Console, cluster: LocalCluster, nodes: Sequence[Node], psql: Path
    ) -> None:
        self._console = console
        self._psql = psql
        self.cluster = cluster
        self.nodes = nodes
        self.rows = Rows(psql, nodes)
        self.results: list[tuple[str, str]] = []
        self.held = True

    def say(self, text: str) -> None:
        """Print what happens now."""
        self._console.print(text, markup=False, soft_wrap=True)

    def check(self, what: str, words: str, *, right: bool) -> None:
        """Print and keep the result of a check."""
        self.held &= right
        shown = words if right else f"WRONG: {words}"
        self._console.print(
            f"  {what}: {shown}",
            style="green" if right else "bold red",
            markup=False,
            soft_wrap=True,
        )
        self.results.append((what, shown))

    async def states(self) -> dict[Node, NodeState]:
        """Ask all nodes at the same time; those that do not answer are left out."""
        found: dict[Node, NodeState] = {}

        async def ask(node: Node) -> None:
            state = await node.state()
            if state is not None:
                found[node] = state

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(ask, node)
        return found

    async def wait(
        self,
        wanted: Callable[[Mapping[Node, NodeState]], bool],
        seconds: float = PATIENCE_SECONDS,
    ) -> float | None:
        """Wait until the states are as wanted; return how long it took, None if too long."""
        began = trio.current_time()
        while not wanted(await self.states()):
            if trio.current_time() > began + seconds:
                return None
            await trio.sleep(_LOOK_SECONDS)
        return trio.current_time() - began

    async def whole(self) -> float | None:
        """Wait until one node is primary, and the others run on its timeline."""

        def complete(states: Mapping[Node, NodeState]) -> bool:
            running = [state for state in states.values() if state.running]
            primaries = sum(state.primary for state in running)
            timelines = {state.timeline for state in running}
            return len(running) == len(self.nodes) and primaries == 1 and len(timelines) == 1

        return await self.wait(complete)

    async def safe_to_leave(self) -> Node:
        """Wait until the primary has a replica that has all of its rows, and return that.

        Patroni replaces a primary by no other one, and says which it is.

        Raises:
            trio.TooSlowError: it has none for a minute.
        """
        await self.whole()
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                _, shown = await self.nodes[0].control("list", SCOPE)
                for line in shown.splitlines():
                    if "Sync Standby" in line:
                        return next(node for node in self.nodes if node.name in line)
                await trio.sleep(_LOOK_SECONDS)

    async def primary(self) -> tuple[Node, NodeState]:
        """Wait for the primary, and return it.

        Raises:
            TimeoutError: there is none for a minute.
        """
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                for node, state in (await self.states()).items():
                    if state.primary:
                        return node, state
                await trio.sleep(_LOOK_SECONDS)

    async def leader(self, after: int = -1) -> MemberProcess:
        """Wait for a leader of the members in a term above `after`, and return it."""

        def leads(seen: Survey) -> bool:
            leader = seen.leader
            return leader is not None and leader.term > after and leader.state == SETTLED

        leader = (await until(self.cluster.addresses, leads, PATIENCE_SECONDS)).leader
        assert leader is not None
        return self.cluster.members[leader.member_id]

    async def agreement(self) -> None:
        """Wait until all members follow one leader."""
        await until(self.cluster.addresses, agreed, PATIENCE_SECONDS)

    async def control(self, *words: str) -> str:
        """Run patronictl for the cluster, print its output, and check its exit status.

        Args:
            words: the verb and its arguments; the name of the cluster comes behind the verb.
        """
        verb, *more = words
        self.say(f"patronictl {' '.join((verb, SCOPE, *more))}")
        status, output = await self.nodes[0].control(verb, SCOPE, *more)
        self.say(output)
        if status:
            self.check(f"patronictl {verb}", right=False, words=f"exit status {status}")
        return output

    async def ask(self, node: Node, text: str) -> str | None:
        """Run a query on one node."""
        return await query(self._psql, [node], text, writing=False)

    async def hold(self) -> HeldPrimary:
        """Return the primary, to see later that it was left alone."""
        node, state = await self.primary()
        ends = {each.log: each.log.stat().st_size for each in self.nodes}
        return HeldPrimary(node, state, trio.current_time(), ends)

    async def check_held(self, what: str, held: HeldPrimary) -> None:
        """Check that the primary was neither demoted nor restarted."""
        now = (await self.states()).get(held.node)
        said = [line for log, end in held.ends.items() for line in _lines(log, end)]
        bad = [line for line in said if any(word in line for word in _TROUBLE)]
        for line in bad[:5]:
            self.say(f"  {line}")
        gap = span(self.rows.longest_gap(held.began))
        self.check(
            what,
            right=now == held.state and not bad,
            words=f"{held.node.name} stayed primary; longest time without a row {gap}"
            if now == held.state
            else f"{held.node.name} was {held.state} and is {now}",
        )


def _lines(log: Path, end: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(end)
        return file.read().decode(errors="replace").splitlines()
