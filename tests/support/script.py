"""One real member against scripted peers, in virtual time.

The member is complete: its store is in a temporary folder, its links use a network in memory, and
its election runs. The test plays its peers. So a test can drive the member into any state, one
message at a time, compare every message that it sends, and cut its power at any write.

Time is virtual and the scheduler is seeded: equal scripts give equal runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import trio

from quorate.node import Member, MemberConfig, NodeConfig, State, Timeouts, Transition, open_member
from quorate.node.protocol.signal import Signal
from quorate.simulation.ledger import Book
from quorate.simulation.machines.clock import EPOCH_MS
from quorate.simulation.machines.scheduler import seeded_scheduler
from quorate.simulation.world import TIMEOUTS
from quorate.storage import Identity, NodeState, Store, VotingRight, VotingStatus, make_store
from quorate.storage.log.recorder import Write
from quorate.storage.testing import InlineExecutor
from quorate.storage.writing.executor import nothing
from quorate.transport import AppendFlags, TermSpan
from quorate.transport.testing import MemoryNetwork
from tests.support.peers import ME, PATIENCE, Peer, record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from pathlib import Path

T = TypeVar("T")
P = ParamSpec("P")


class Disk(InlineExecutor[Write]):
    """The member's disk: as slow as the test chooses, and its power can be cut at any write.

    Attributes:
        read_seconds: duration of a read.
        writes: number of groups written.
        before_write: called with the number of a write before it happens.
        after_write: called with the number of a durable write before it is reported.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Write]], None],
        *,
        delivered: Callable[[], None],
        idle: Callable[[], None],
        latency: float,
    ) -> None:
        super().__init__(self._count, delivered=delivered, idle=idle, latency=latency)
        self.read_seconds = 0.0
        self.writes = 0
        self.before_write: Callable[[int], None] = lambda _: None
        self.after_write: Callable[[int], None] = lambda _: None
        self._really_write = write

    def _count(self, group: Sequence[Write]) -> None:
        self.before_write(self.writes)
        if not self._ended:
            self._really_write(group)
            self.after_write(self.writes)
        self.writes += 1

    async def read(self, fn: Callable[[], T]) -> T:
        """Read after a delay."""
        await trio.sleep(self.read_seconds)
        return await super().read(fn)


class Script:
    """The member, its peers, and a record of its elections.

    Attributes:
        peers: the scripted members by their ids, from 1 on.
        transitions: transitions of the member's elections, in all its starts.
        on_transition: called during each transition.
        fsync: seconds that a write takes, from the next start on.
        read_seconds: seconds that a read takes, from the next start on.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        directory: Path,
        size: int,
        timeouts: Timeouts,
        standing: VotingRight = VotingRight.VOTER,
    ) -> None:
        self.network = MemoryNetwork(random.Random(0), latency=0.0005)
        members = tuple(
            MemberConfig(member_id=i, host=f"h{i}", member_port=7000, client_port=6000)
            for i in range(size)
        )
        self.config = NodeConfig(
            cluster="test",
            member_id=ME,
            directory=directory / "member-0",
            members=members,
            timeouts=timeouts,
        )
        founders = VotingStatus(standing, tuple((i, i) for i in range(size)))
        make_store(self.config.directory / "log", Identity("test", ME, ME), founders)
        self.peers = {i: Peer(self.config, i, self.network) for i in range(1, size)}
        self.transitions: list[Transition] = []
        self.on_transition: Callable[[Transition], None] = lambda _: None
        self.service = Book()
        self.fsync = 0.001
        self.read_seconds = 0.0
        self._nursery = nursery
        self._member: Member | None = None
        self._disk: Disk | None = None
        self._starts = 0
        self._seen = 0
        self._changed = Signal()
        self._scope = trio.CancelScope()
        self._gone = trio.Event()
        self._peer_scopes: dict[int, trio.CancelScope] = {}

    @property
    def member(self) -> Member:
        """The member, which must be running."""
        assert self._member is not None
        return self._member

    @property
    def disk(self) -> Disk:
        """Its disk."""
        assert self._disk is not None
        return self._disk

    @property
    def store(self) -> Store:
        """Its store."""
        return self.member.store

    @property
    def state(self) -> State:
        """Return the state of its election."""
        return State[self.member.status().state]

    @property
    def path(self) -> list[State]:
        """Return the states entered so far, in order."""
        return [each.after for each in self.transitions]

    @property
    def terms(self) -> list[tuple[int, int, int | None]]:
        """Return the member's recording log: term, base and end of each."""
        return [(row.term, row.base, row.end) for row in self.store.terms]

    # --- lives

    async def start_peers(self) -> None:
        """Let the peers listen and connect."""
        for member_id in self.peers:
            self._peer_scopes[member_id] = await self._nursery.start(self._run_peer, member_id)

    async def _run_peer(
        self, member_id: int, *, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.peers[member_id].links.run)
                task_status.started(scope)

    def stop_peer(self, member_id: int) -> None:
        """End a peer's process: its links break, and its port refuses connections."""
        self._peer_scopes[member_id].cancel()

    async def start(self) -> None:
        """Start the member, and wait until it canvasses and all links are up."""
        await self._nursery.start(self._run)
        await self.until(self.linked)
        if self.peers:
            await self.enters(State.CANVASS)

    def linked(self) -> bool:
        """Return whether all links are up, in both directions."""
        links = self.member.links
        return all(links.connected(i) and p.links.connected(ME) for i, p in self.peers.items())

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._starts += 1
        self.service, self._scope, self._gone = Book(), trio.CancelScope(), trio.Event()
        self._disk = None

        def executor(
            write: Callable[[Sequence[Write]], None],
            *,
            delivered: Callable[[], None],
            idle: Callable[[], None] = nothing,
        ) -> Disk:
            made = Disk(write, delivered=delivered, idle=idle, latency=self.fsync)
            made.read_seconds = self.read_seconds
            if self._disk is None:  # the store's comes first
                self._disk = made
            return made

        try:
            with self._scope:
                async with open_member(
                    self.config,
                    self.service,
                    rng=random.Random(self._starts),
                    clock_ms=lambda: EPOCH_MS + int(trio.current_time() * 1000),
                    network=self.network.host(self.config.own.host),
                    executor=executor,
                    free=lambda _: 1 << 50,
                ) as member:
                    self._member = member
                    member.observe(self._observe)
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._member = None
            self._gone.set()

    def _observe(self, transition: Transition) -> None:
        self.transitions.append(transition)
        self.on_transition(transition)
        self._changed.notify()

    def pull_plug(self) -> None:
        """Cut the power: nothing more is written or sent. Then wait for :meth:`power_is_off`."""
        for peer in self.peers.values():
            self.network.cut(self.config.own.host, f"h{peer.member_id}")
        self.disk.cut_power()
        self._scope.cancel()

    async def power_is_off(self) -> None:
        """Wait until the member is gone; its messages in transit are lost."""
        await self._gone.wait()
        for peer in self.peers.values():
            route = self.config.own.host, f"h{peer.member_id}"
            self.network.break_links(*route)
            self.network.heal(*route)

    async def restart(self) -> None:
        """Cut the power, and start the member again from its disk."""
        self.pull_plug()
        await self.power_is_off()
        await self.start()

    # --- waiting

    async def until(self, condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
        """Wait for a condition."""
        with trio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - in virtual time, for any condition
                await trio.sleep(0.0005)

    async def enters(self, state: State, *, within: float = PATIENCE) -> Transition:
        """Wait for the next transition into a state, after the last one returned."""
        with trio.fail_after(within):
            while True:
                while self._seen < len(self.transitions):
                    transition = self.transitions[self._seen]
                    self._seen += 1
                    if transition.after is state:
                        return transition
                await self._changed.wait()

    # --- common courses

    async def nominate(self) -> None:
        """Let all peers grant the member's pre-vote."""
        for peer in self.peers.values():
            peer.canvass()
        await self.enters(State.NOMINATE)

    async def stand(self) -> int:
        """Take the member into its ballot; return the term."""
        await self.nominate()
        await self.enters(State.CANDIDATE_BALLOT)
        return self.store.node_state.candidate_term

    async def win(self) -> int:
        """Take the member to LEADER_LOG_REPLICATION; return its term."""
        term = await self.stand()
        for peer in self.peers.values():
            peer.vote(term)
        await self.enters(State.LEADER_LOG_REPLICATION)
        return term

    async def lead(self) -> int:
        """Make the member leader, its election closed; return its term."""
        position, term = self.store.append_position, await self.win()
        for peer in self.peers.values():
            peer.append_position(term, position, AppendFlags.READY)
        await self.enters(State.CLOSED)
        return term

    async def follow(self, leader: int, term: int, *spans: TermSpan, log_term: int = -1) -> Peer:
        """Make the member follow a peer with an equally long log; return the peer."""
        peer = self.peers[leader]
        peer.lead(term, log_term, *spans)
        await self.enters(State.FOLLOWER_LOG_AWAIT)
        peer.join(term, self.store.append_position)
        await self.enters(State.CLOSED)
        return peer


@contextlib.asynccontextmanager
async def open_script(
    directory: Path,
    size: int = 3,
    *,
    batches: Sequence[bytes] = (),
    opened: Sequence[int] = (),
    promised: NodeState | None = None,
    timeouts: Timeouts = TIMEOUTS,
    read_seconds: float = 0.0,
    standing: VotingRight = VotingRight.VOTER,
    seed: int = 0,
) -> AsyncGenerator[Script, None]:
    """Run a member with a log, linked to its scripted peers, that has just begun to canvass."""
    with seeded_scheduler(seed):
        async with trio.open_nursery() as nursery:
            script = Script(nursery, directory, size, timeouts, standing)
            script.read_seconds = read_seconds
            if batches or opened or promised is not None:
                await record(script.config, batches, opened=opened, promised=promised)
            await script.start_peers()
            await script.start()
            try:
                yield script
            finally:
                script.disk.cut_power()
                nursery.cancel_scope.cancel()


def scripted(
    *,
    size: int = 3,
    batches: Sequence[bytes] = (),
    opened: Sequence[int] = (),
    promised: NodeState | None = None,
    read_seconds: float = 0.0,
) -> Callable[[Callable[Concatenate[Script, P], Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Make a test of a function that takes a script, and perhaps parameters, in virtual time."""

    def make(
        body: Callable[Concatenate[Script, P], Awaitable[None]],
    ) -> Callable[..., Awaitable[None]]:
        @functools.wraps(body)
        async def test(
            tmp_path: Path, autojump_clock: object, *args: P.args, **kwargs: P.kwargs
        ) -> None:
            del autojump_clock  # it was installed before the test began
            async with open_script(
                tmp_path,
                size,
                batches=batches,
                opened=opened,
                promised=promised,
                read_seconds=read_seconds,
            ) as script:
                await body(script, *args, **kwargs)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fixtures = [inspect.Parameter(name, kind) for name in ("tmp_path", "autojump_clock")]
        of_its_own = list(inspect.signature(body).parameters.values())[1:]
        vars(test)["__signature__"] = inspect.Signature([*fixtures, *of_its_own])
        return test

    return make
