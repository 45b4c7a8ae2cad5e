"""One real member against scripted peers, in virtual time.

The member is whole: its store lies in a temporary folder, its links go over a network in memory,
its election runs. Its peers are real links with nothing behind them but the test, which hears what
the member says and says what it likes. So a test takes the member into any corner, one message at
a time, and compares every message that leaves it.

Time is virtual and the scheduler is seeded: the same script is always the same run.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]

from quorate.node import Member, MemberConfig, NodeConfig, State, Timeouts, Transition, open_member
from quorate.node.roles import Signal
from quorate.storage import Entry, EntryKind, InlineExecutor, NodeState, Store, TermRow
from quorate.storage import decode_header_untrusted as header_of
from quorate.storage import encode_batch
from quorate.transport import (
    NULL_VALUE,
    Address,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    FrameStream,
    Hello,
    Links,
    LogBatch,
    LogJoined,
    MemoryNetwork,
    Message,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    StreamPurpose,
    TermSpan,
    Vote,
    VoteReason,
)

from .world import EPOCH_MS, TIMEOUTS, Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

ME = 0
"""The real member; the others are scripted."""

SESSION = 1115055142
PATIENCE = 60.0  # virtual seconds after which a test fails that waits
HEADER_AND_ONE_ENTRY = 96

M = TypeVar("M", bound=Message)


# --- logs -----------------------------------------------------------------------------------------


def batch(term: int, position: int, end: int, *, commit: int = 0, name: str = "") -> bytes:
    """Encode a batch of exactly `end` - `position` bytes: one command, or none if 64 are too few."""
    length = end - position
    entries: list[Entry] = []
    if length >= HEADER_AND_ONE_ENTRY:
        payload = f"{name or term}@{position} ".encode().ljust(length - HEADER_AND_ONE_ENTRY, b".")
        entries.append(Entry(EntryKind.COMMAND, payload[: length - HEADER_AND_ONE_ENTRY]))
    made = encode_batch(
        entries, term=term, position=position, timestamp_ms=EPOCH_MS, commit_position=commit
    )
    assert len(made) == length, f"{length} is no length of a batch"
    return made


def log(*ends: tuple[int, int], commit: int = 0) -> list[bytes]:
    """Encode batches back to back, each given by its term and where it ends."""
    made: list[bytes] = []
    position = 0
    for term, end in ends:
        made.append(batch(term, position, end, commit=commit))
        position = end
    return made


async def record(
    config: NodeConfig,
    batches: Iterable[bytes] = (),
    *,
    opened: Sequence[int] = (),
    promised: NodeState | None = None,
) -> None:
    """Make a member's store: batches, then terms begun at their end, and the vote."""

    def executor(
        write: Callable[..., None], *, delivered: Callable[[], None]
    ) -> InlineExecutor:  # type: ignore[type-arg]
        return InlineExecutor(write, delivered=delivered)

    store = Store.open(
        config.directory / "log",
        cluster=config.cluster,
        member_id=config.member_id,
        rng=random.Random(0),
        executor=executor,
    )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            term = NULL_VALUE
            for each in batches:
                head = header_of(each)
                row = TermRow(head.term, head.position, None, EPOCH_MS)
                store.append(each, term_row=row if head.term > term else None)
                term = head.term
            for each in opened:
                base = store.appended_position
                await store.ensure_coherent(term=each, base=base, end=None, timestamp_ms=EPOCH_MS)
            await store.save_node_state(promised or NodeState(max(term, *opened, -1), -1))
            nursery.cancel_scope.cancel()
    finally:
        store.close()


# --- peers ----------------------------------------------------------------------------------------


@attrs.frozen
class Heard:
    """A message of the member, and when it came (trio's clock)."""

    at: float
    message: Message


@attrs.define(eq=False)
class Replay:
    """A replay that the member asked a peer for."""

    request: ReplayRequest
    stream: FrameStream
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, term: int, *batches: bytes) -> None:
        for each in batches:
            await self.stream.send(LogBatch(term, 0, each))

    def end(self) -> None:
        self.ended.set()


class Peer:
    """A scripted member: it hears everything and says nothing by itself.

    Attributes:
        heard: all that the member said, oldest first.
        replays: what the member asked for on streams.
    """

    def __init__(self, script: Script, member_id: int) -> None:
        self.member_id = member_id
        self.heard: list[Heard] = []
        self.replays: list[Replay] = []
        self.linked = 0  # of the two directions
        self._seen = 0
        self._changed = Signal()
        own = script.config.members[member_id]
        self.links = Links(
            cluster=script.config.cluster,
            member_id=member_id,
            incarnation=1000 + member_id,
            bind=Address(own.host, own.member_port),
            peers={ME: Address(script.config.own.host, script.config.own.member_port)},
            network=script.network.host(own.host),
            handler=self,
            rng=random.Random(member_id),
        )

    # --- hearing

    def on_message(self, sender: int, message: Message) -> None:
        assert sender == ME
        self.heard.append(Heard(trio.current_time(), message))
        self._changed.notify()

    def on_link_up(self, member: int) -> None:
        assert member == ME
        self._changed.notify()

    def on_link_lost(self, member: int) -> None:
        assert member == ME
        self._changed.notify()

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        assert hello.purpose is StreamPurpose.REPLAY
        request = await stream.receive()
        assert isinstance(request, ReplayRequest)
        replay = Replay(request, stream)
        self.replays.append(replay)
        self._changed.notify()
        await replay.ended.wait()

    def messages(self, kind: type[M]) -> list[M]:
        """All messages of a kind that were heard."""
        return [each.message for each in self.heard if isinstance(each.message, kind)]

    def forget(self) -> None:
        """Let :meth:`hears` look at nothing that was heard until now."""
        self._seen = len(self.heard)

    async def hears(
        self, kind: type[M], when: Callable[[M], bool] = lambda _: True, *, within: float = PATIENCE
    ) -> M:
        """Return the next message of a kind (that is so), after the one returned before."""
        with trio.fail_after(within):
            while True:
                while self._seen < len(self.heard):
                    message = self.heard[self._seen].message
                    self._seen += 1
                    if isinstance(message, kind) and when(message):
                        return message
                await self._changed.wait()

    async def replay(self) -> Replay:
        """Wait until the member asks for a replay."""
        with trio.fail_after(PATIENCE):
            while not self.replays:
                await self._changed.wait()
        return self.replays.pop(0)

    # --- saying

    def say(self, *messages: Message) -> None:
        for message in messages:
            assert self.links.send(ME, message), f"no link for {message}"

    def canvass(self, log_term: int = -1, position: int = 0, *, term: int | None = None) -> None:
        living_in = log_term if term is None else term
        self.say(CanvassPosition(log_term, position, living_in, self.member_id))

    def request_vote(self, term: int, log_term: int = -1, position: int = 0) -> None:
        self.say(RequestVote(log_term, position, term, self.member_id))

    def vote(self, term: int, *, granted: bool = True, own_term: int | None = None) -> None:
        self.say(
            Vote(
                candidate_term_id=term,
                log_leadership_term_id=-1,
                log_position=0,
                candidate_member_id=ME,
                follower_member_id=self.member_id,
                vote=granted,
                voter_candidate_term_id=term if own_term is None else own_term,
                reason=VoteReason.GRANTED if granted else VoteReason.TERM,
            )
        )

    def lead(self, term: int, log_term: int = -1, *spans: TermSpan, **changed: object) -> None:
        self.say(self.new_term(term, log_term, *spans, **changed))

    def new_term(
        self, term: int, log_term: int = -1, *spans: TermSpan, **changed: object
    ) -> NewLeadershipTerm:
        """Build what a leader of `term` says to a member whose log ends in `log_term`.

        The last span is the leader's own term, and the log ends there unless `log_position` is
        given. What follows the log term is looked up among the spans. Other fields by name.
        """
        spans = spans or (TermSpan(term, 0, NULL_VALUE),)
        base = spans[-1].base
        after = next((each for each in spans if each.term > log_term), None)
        made = NewLeadershipTerm(
            log_leadership_term_id=log_term,
            next_leadership_term_id=NULL_VALUE if after is None else after.term,
            next_term_base_log_position=NULL_VALUE if after is None else after.base,
            next_log_position=NULL_VALUE if after is None else after.end,
            leadership_term_id=term,
            term_base_log_position=base,
            log_position=base,
            leader_recording_id=0,
            timestamp=EPOCH_MS,
            leader_member_id=self.member_id,
            log_session_id=SESSION,
            app_version=1,
            is_startup=False,
            commit_position=0,
            replication_position=0,
            terms=spans,
        )
        return attrs.evolve(made, **changed)  # type: ignore[arg-type]

    def commit(self, term: int, position: int = 0, *, confirm: int = 0) -> None:
        self.say(CommitPosition(term, position, self.member_id, confirm, 0))

    def append_position(
        self, term: int, position: int, flags: AppendFlags = AppendFlags.NONE, *, confirm: int = 0
    ) -> None:
        self.say(AppendPosition(term, position, self.member_id, flags, confirm))

    def join(self, term: int, position: int) -> None:
        self.say(LogJoined(term, SESSION, position, self.member_id))

    def live(self, *batches: bytes, confirm: int = 0) -> None:
        for each in batches:
            self.say(LogBatch(header_of(each).term, confirm, each))

    async def open_catchup(self, position: int, *, session: int = SESSION) -> FrameStream:
        return await self.links.open_stream(
            ME, purpose=StreamPurpose.CATCHUP, log_session_id=session, join_position=position
        )


# --- the script -----------------------------------------------------------------------------------


class Disk(InlineExecutor):  # type: ignore[type-arg]
    """The member's disk: slow as the test wants it, and its power can be cut at any write.

    Attributes:
        read_seconds: how long a read takes.
        writes: groups written so far.
        before_write: called with the number of a write before it happens.
        after_write: called with its number once it is durable and nobody knows it yet.
    """

    def __init__(
        self, write: Callable[..., None], *, delivered: Callable[[], None], latency: float
    ) -> None:
        super().__init__(self._count, delivered=delivered, latency=latency)
        self.read_seconds = 0.0
        self.writes = 0
        self.before_write: Callable[[int], None] = lambda _: None
        self.after_write: Callable[[int], None] = lambda _: None
        self._really_write = write

    def _count(self, group: object) -> None:
        self.before_write(self.writes)
        if not self._ended:
            self._really_write(group)
            self.after_write(self.writes)
        self.writes += 1

    async def read(self, fn: Callable[[], object]) -> object:  # type: ignore[override]
        await trio.sleep(self.read_seconds)
        return await super().read(fn)


class Script:
    """The member, its peers, and what was seen of its election.

    Attributes:
        transitions: of the member's election, through all its starts.
        fsync: seconds that a write takes, from the next start on.
        read_seconds: seconds that a read takes, from the next start on.
    """

    def __init__(
        self, nursery: trio.Nursery, directory: Path, size: int, timeouts: Timeouts
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
        self.peers = {i: Peer(self, i) for i in range(1, size)}
        self.transitions: list[Transition] = []
        self.service = Ledger()
        self.fsync = 0.001
        self.read_seconds = 0.0
        self.on_transition: Callable[[Transition], None] = lambda _: None
        self._nursery = nursery
        self._member: Member | None = None
        self._disk: Disk | None = None
        self._starts = 0
        self._seen = 0
        self._changed = Signal()
        self._scope = trio.CancelScope()
        self._gone = trio.Event()

    @property
    def member(self) -> Member:
        assert self._member is not None
        return self._member

    @property
    def disk(self) -> Disk:
        assert self._disk is not None
        return self._disk

    @property
    def store(self) -> Store:
        return self.member.store

    @property
    def state(self) -> State:
        return State[self.member.status().state]

    @property
    def path(self) -> list[State]:
        """The states entered so far, in order."""
        return [each.after for each in self.transitions]

    @property
    def reason(self) -> str:
        """Of the last transition."""
        return self.transitions[-1].reason

    # --- the member's life

    async def start_peers(self) -> None:
        for peer in self.peers.values():
            await self._nursery.start(peer.links.run)

    async def start(self) -> None:
        """Start the member, and wait until all links are up."""
        await self._nursery.start(self._run)
        await self.until(self._linked)

    def _linked(self) -> bool:
        links = self.member.core.links
        return all(links.connected(i) and p.links.connected(ME) for i, p in self.peers.items())

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._starts += 1
        self.service, self._scope, self._gone = Ledger(), trio.CancelScope(), trio.Event()

        def executor(write: Callable[..., None], *, delivered: Callable[[], None]) -> Disk:
            self._disk = Disk(write, delivered=delivered, latency=self.fsync)
            self._disk.read_seconds = self.read_seconds
            return self._disk

        try:
            with self._scope:
                async with open_member(
                    self.config,
                    self.service,
                    rng=random.Random(self._starts),
                    clock_ms=lambda: EPOCH_MS + int(trio.current_time() * 1000),
                    network=self.network.host(self.config.own.host),
                    executor=executor,
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
        """Cut the power: nothing more is written or sent; :meth:`power_is_off` waits for the end."""
        for peer in self.peers.values():
            self.network.cut(self.config.own.host, f"h{peer.member_id}")
        self.disk.cut_power()
        self._scope.cancel()

    async def power_is_off(self) -> None:
        """Wait until the member is gone; what was on its way to others is lost."""
        await self._gone.wait()
        for peer in self.peers.values():
            route = self.config.own.host, f"h{peer.member_id}"
            self.network.break_links(*route)
            self.network.heal(*route)

    async def restart(self) -> None:
        """Cut the power and start the member again, on what its disk holds."""
        self.pull_plug()
        await self.power_is_off()
        await self.start()

    # --- waiting

    async def until(self, condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
        with trio.fail_after(within):
            while not condition():
                await trio.sleep(0.0005)

    async def enters(self, state: State, *, within: float = PATIENCE) -> Transition:
        """Wait for the next transition into a state, after the one returned before."""
        with trio.fail_after(within):
            while True:
                while self._seen < len(self.transitions):
                    transition = self.transitions[self._seen]
                    self._seen += 1
                    if transition.after is state:
                        return transition
                await self._changed.wait()

    # --- the usual ways

    async def nominate(self) -> None:
        """Have all peers say that they would vote for the member."""
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
        term = await self.win()
        position = self.store.append_position
        await self.until(lambda: self.member.core.leadership_term == term)
        for peer in self.peers.values():
            peer.append_position(term, position, AppendFlags.READY)
        await self.enters(State.CLOSED)
        return term

    async def follow(self, leader: Peer, term: int, *spans: TermSpan, log_term: int = -1) -> None:
        """Make the member follow a peer whose log ends where the member's does."""
        leader.lead(term, log_term, *spans)
        await self.enters(State.FOLLOWER_LOG_AWAIT)
        leader.join(term, self.store.append_position)
        await self.enters(State.CLOSED)

    def vote(self, peer: int, term: int) -> None:
        self.peers[peer].vote(term)


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
    seed: int = 0,
) -> AsyncIterator[Script]:
    """Run a member with that log, linked to its scripted peers and just begun to canvass."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)  # pyright: ignore[reportPrivateUsage]
    async with trio.open_nursery() as nursery:
        script = Script(nursery, directory, size, timeouts)
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
