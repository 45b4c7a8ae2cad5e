"""Clusters driven by hypothesis: its rules are faults and operations, and it finds short scripts.

The rules only note what is to be done. When hypothesis has chosen its steps they are played in one
run of virtual time, under the observer that storms have too; then everything is mended, and the
cluster must serve. So a failure shrinks to the shortest script that still shows it, which is
printed as the calls of the rules.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from quorate.errors import RequestError
from quorate.simulation import Ledger, Observer, Setting, World, open_world, run
from quorate.simulation.door import Door, Serials
from quorate.simulation.machines.disk import Fate
from quorate.simulation.watching.watched import Watched, watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Step = tuple[str, Callable[["Played"], Awaitable[None]]]

MEMBERS = 3
CLIENTS = 3

members = st.integers(0, MEMBERS - 1)
pairs = st.tuples(members, members).filter(lambda pair: pair[0] != pair[1])


class Played:
    """A cluster while its script is played.

    Args:
        world: the cluster.
        observer: what looks at it.
        nursery: where clients wait for their answers.
    """

    def __init__(
        self, world: World[Watched[Ledger]], observer: Observer, nursery: trio.Nursery
    ) -> None:
        self.world = world
        self.nursery = nursery
        serials = Serials()
        self.doors = [
            Door(i, world, random.Random(i), observer.tell, serials) for i in range(CLIENTS)
        ]

    async def ask(self, client: int, member: int, *, query: bool) -> None:
        """Have a client ask a member; what it is told is checked by the observer."""
        with contextlib.suppress(RequestError):
            if query:
                await self.doors[client].query(b"", among=(member,))
            else:
                await self.doors[client].command(b"x", among=(member,))

    async def heal(self) -> None:
        """Undo everything; the cluster must serve, and all members hold the same."""
        world = self.world
        world.mend()
        for i, host in world.hosts.items():
            world.resume(i)
            host.disk.mend()
            await host.gone() if host.ending else None
            if host.stopped:
                await world.start(i)
        await world.settled()
        before = self.doors[0].counts["ok"]
        while self.doors[0].counts["ok"] == before:
            await self.ask(0, world.leaders()[0] if world.leaders() else 0, query=False)
        end = max(host.running.status().commit_position for host in world.hosts.values())
        await world.until(
            lambda: all(
                host.running.status().applied_position >= end for host in world.hosts.values()
            )
        )


class Cluster(RuleBasedStateMachine):
    """What may be done to a cluster, in any order."""

    script: ClassVar[list[str]] = []
    """What was played last: after a failure the shortest that shows it."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = []
        self._dead: set[int] = set()
        self._paused: set[int] = set()

    def _note(self, words: str, step: Callable[[Played], Awaitable[None]]) -> None:
        self._steps.append((words, step))

    # --- operations -------------------------------------------------------------------------------

    @rule(client=st.integers(0, CLIENTS - 1), member=members)
    def command(self, client: int, member: int) -> None:
        """Have a command done."""

        async def step(p: Played) -> None:
            p.nursery.start_soon(lambda: p.ask(client, member, query=False))

        self._note(f"client {client} asks member {member} to do something", step)

    @rule(client=st.integers(0, CLIENTS - 1), member=members)
    def query(self, client: int, member: int) -> None:
        """Ask something."""

        async def step(p: Played) -> None:
            p.nursery.start_soon(lambda: p.ask(client, member, query=True))

        self._note(f"client {client} asks member {member} something", step)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.3, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""

        async def step(_p: Played) -> None:
            await trio.sleep(seconds)

        self._note(f"{seconds:g} s pass", step)

    @rule(pair=pairs)
    def transfer(self, pair: tuple[int, int]) -> None:
        """Ask a member that another one lead."""

        async def ask(p: Played) -> None:
            host = p.world.hosts[pair[0]]
            if host.member is not None and not host.paused:
                with contextlib.suppress(RequestError), trio.move_on_after(1.0):
                    await host.running.control(f"transfer {pair[1]}")

        async def step(p: Played) -> None:
            p.nursery.start_soon(ask, p)

        self._note(f"member {pair[0]} is asked to have {pair[1]} lead", step)

    # --- faults -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self._dead) < MEMBERS)
    @rule(member=members, fate=st.sampled_from([None, Fate.LOST, Fate.WRITTEN, Fate.TORN]))
    def kill(self, member: int, fate: Fate | None) -> None:
        """Kill a process, or cut the power of its machine."""
        self._dead.add(member)
        self._paused.discard(member)

        async def step(p: Played) -> None:
            if fate is None:
                await p.world.kill(member)
            else:
                await p.world.cut_power(member, fate=fate)

        self._note(f"member {member} is killed ({fate})", step)

    @precondition(lambda self: self._dead)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Start a member again."""
        member = data.draw(st.sampled_from(sorted(self._dead)))
        self._dead.discard(member)

        async def step(p: Played) -> None:
            if p.world.hosts[member].stopped:
                await p.world.start(member)

        self._note(f"member {member} starts", step)

    @rule(member=members)
    def pause(self, member: int) -> None:
        """Hold a process still, or let it go on."""
        held = member in self._paused
        self._paused ^= {member}

        async def step(p: Played) -> None:
            if held:
                p.world.resume(member)
            else:
                p.world.pause(member)

        self._note(f"member {member} {'goes on' if held else 'stands still'}", step)

    @rule(pair=pairs)
    def cut(self, pair: tuple[int, int]) -> None:
        """Cut one way between two members."""

        async def step(p: Played) -> None:
            p.world.network.cut(f"h{pair[0]}", f"h{pair[1]}", both=False)

        self._note(f"nothing goes from {pair[0]} to {pair[1]}", step)

    @rule()
    def mend(self) -> None:
        """Undo all cuts."""

        async def step(p: Played) -> None:
            p.world.mend()

        self._note("all cuts are undone", step)

    @rule(pair=pairs)
    def reset(self, pair: tuple[int, int]) -> None:
        """Break the connections between two members."""

        async def step(p: Played) -> None:
            p.world.network.break_links(f"h{pair[0]}", f"h{pair[1]}")

        self._note(f"connections between {pair[0]} and {pair[1]} break", step)

    @rule(member=members, seconds=st.sampled_from([0.05, 0.4, 2.0]))
    def stall(self, member: int, seconds: float) -> None:
        """Have a disk complete nothing for a while."""

        async def step(p: Played) -> None:
            p.world.hosts[member].disk.stall(seconds)

        self._note(f"the disk of {member} stalls for {seconds:g} s", step)

    # --- playing ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Play what was noted."""
        type(self).script = [words for words, _ in self._steps]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            run(_play, Path(directory), self._steps, seed=0)


async def _play(directory: Path, steps: list[Step]) -> None:
    observer = Observer(list(range(MEMBERS)))
    service = watch(Ledger, observer.tell, observer)
    async with (
        open_world(directory, service, Setting(members=MEMBERS), observer=observer) as world,
        trio.open_nursery() as nursery,
    ):
        played = Played(world, observer, nursery)
        await world.start()
        await world.settled()
        for _, step in steps:
            await step(played)
        await played.heal()
        nursery.cancel_scope.cancel()
