"""Scripted peers of a real member, and logs of any shape.

A peer has real links. The test reads the member's messages from them, and sends any messages. A
peer is linked to one member only, number 0.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from quorate.node.protocol.signal import Signal
from quorate.simulation.machines.clock import EPOCH_MS
from quorate.storage import (
    Entry,
    EntryKind,
    NodeState,
    Store,
    decode_header_untrusted,
    encode_batch,
)
from quorate.storage.log.recorder import Write
from quorate.storage.testing import InlineExecutor
from quorate.transport import (
    NULL_VALUE,
    Address,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    FrameStream,
    Hello,
    HelloStatus,
    Links,
    LogBatch,
    LogJoined,
    Message,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    Scout,
    ScoutReply,
    StreamPurpose,
    TermSpan,
    Vote,
    VoteReason,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from quorate.node import NodeConfig
    from quorate.transport.testing import MemoryNetwork

ME = 0
"""The real member; the others are scripted."""

SESSION = 1115055142
PATIENCE = 60.0  # virtual seconds after which a test that waits fails
SHORTEST_WITH_AN_ENTRY = 96

M = TypeVar("M", bound=Message)


# --- logs -----------------------------------------------------------------------------------------


def batch(term: int, position: int, end: int, *, commit: int = 0, name: str = "") -> bytes:
    """Encode a batch that ends exactly at `end`: one command, or none if no entry fits."""
    size = end - position - SHORTEST_WITH_AN_ENTRY
    entries: list[Entry] = []
    if size >= 0:
        text = f"{name or term}@{position} ".encode()
        entries.append(Entry(EntryKind.COMMAND, text.ljust(size, b".")[:size]))
    made = encode_batch(
        entries, term=term, position=position, timestamp_ms=EPOCH_MS, commit_position=commit
    )
    assert len(made) == end - position, f"no batch has {end - position} bytes"
    return made


def log(*ends: tuple[int, int], commit: int = 0) -> list[bytes]:
    """Encode successive batches, each given by its term and its end."""
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
    """Make a member's store: batches, then terms that begin at their end, and the vote."""
    store = Store.open(
        config.directory / "log",
        cluster=config.cluster,
        member_id=config.member_id,
        rng=random.Random(0),
        executor=InlineExecutor[Write],
    )
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            last = NULL_VALUE
            for each in batches:
                head = decode_header_untrusted(each)
                store.append(each)
                last = head.term
            for term in opened:
                base = store.submitted_position
                await store.ensure_coherent(term=term, base=base, end=None, timestamp_ms=EPOCH_MS)
            await store.save_node_state(promised or NodeState(max(last, *opened, -1), -1))
            nursery.cancel_scope.cancel()
    finally:
        store.close()


# --- peers ----------------------------------------------------------------------------------------


def untimed(message: Message) -> Message:
    """Return the message without its sender's clock, for comparison with another one."""
    if isinstance(message, Vote | AppendPosition | CommitPosition):
        return attrs.evolve(message, timestamp=NULL_VALUE)
    return message


@attrs.frozen
class Heard:
    """A message of the member, and when it arrived (trio's clock)."""

    at: float
    message: Message


@attrs.define(eq=False)
class Replay:
    """A replay that the member requested from a peer; it stays open until the test ends it."""

    request: ReplayRequest
    stream: FrameStream
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, term: int, *batches: bytes) -> None:
        """Send batches, as the leader of that term."""
        for each in batches:
            await self.stream.send(LogBatch(term, 0, each))

    def end(self) -> None:
        """Close the stream."""
        self.ended.set()


class Peer:
    """A scripted member: it records all messages, and answers only pre-vote requests by itself.

    Attributes:
        heard: all messages of the member, oldest first.
        supports: its answer to a pre-vote request; None for no answer.
    """

    supports: VoteReason | None = VoteReason.GRANTED

    def __init__(self, config: NodeConfig, member_id: int, network: MemoryNetwork) -> None:
        self.member_id = member_id
        self.heard: list[Heard] = []
        self._replays: list[Replay] = []
        self._seen = 0
        self._changed = Signal()
        own = config.members[member_id]
        self.links = Links(
            cluster=config.cluster,
            member_id=member_id,
            incarnation=1000 + member_id,
            instance=2000 + member_id,
            bind=Address(own.host, own.member_port),
            peers={ME: Address(config.own.host, config.own.member_port)},
            network=network.host(own.host),
            handler=self,
            rng=random.Random(member_id),
        )

    def hello(self, *, instance: int) -> Hello:
        """The hello with which it links to the member, as if it had another store."""
        hello = self.links._hello(ME, StreamPurpose.CONSENSUS)  # pyright: ignore[reportPrivateUsage]
        return attrs.evolve(hello, instance=instance)

    # --- receiving

    def admits(self, hello: Hello) -> tuple[HelloStatus, str]:
        """See `LinkHandler`."""
        assert hello.member_id == ME
        return HelloStatus.ACCEPTED, ""

    def on_peers(self) -> None:
        """See `LinkHandler`."""
        raise AssertionError("its only peer is listed")

    def on_removed(self, member: int, reason: str) -> None:
        """See `LinkHandler`."""
        raise AssertionError(member, reason)

    def on_hello(self, member: int, hello: Hello) -> None:
        """See `LinkHandler`."""
        assert member == hello.member_id == ME

    def on_message(self, sender: int, message: Message) -> None:
        """See `LinkHandler`."""
        assert sender == ME
        self.heard.append(Heard(trio.current_time(), message))
        self._changed.notify()
        if isinstance(message, Scout) and self.supports is not None:
            term = message.proposed_term_id
            self.say(ScoutReply(term, message.nonce, self.member_id, self.supports, NULL_VALUE))

    def on_receiving(self, member: int) -> None:
        """See `LinkHandler`."""
        assert member == ME

    def on_link_up(self, member: int) -> None:
        """See `LinkHandler`."""
        assert member == ME

    def on_link_lost(self, member: int) -> None:
        """See `LinkHandler`."""
        assert member == ME

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        """See `LinkHandler`."""
        assert hello.purpose is StreamPurpose.REPLAY
        request = await stream.receive()
        assert isinstance(request, ReplayRequest)
        replay = Replay(request, stream)
        self._replays.append(replay)
        self._changed.notify()
        await replay.ended.wait()

    def messages(self, kind: type[M]) -> list[M]:
        """Return all received messages of a kind."""
        return [each.message for each in self.heard if isinstance(each.message, kind)]

    def forget(self) -> None:
        """Let :meth:`hears` ignore all messages received until now."""
        self._seen = len(self.heard)

    async def hears(
        self, kind: type[M], when: Callable[[M], bool] = lambda _: True, *, within: float = PATIENCE
    ) -> M:
        """Return the next message of a kind (that fulfils a condition), after the last one
        returned."""
        with trio.fail_after(within):
            while True:
                while self._seen < len(self.heard):
                    message = self.heard[self._seen].message
                    self._seen += 1
                    if isinstance(message, kind) and when(message):
                        return message
                await self._changed.wait()

    async def replay(self) -> Replay:
        """Wait until the member requests a replay."""
        with trio.fail_after(PATIENCE):
            while not self._replays:
                await self._changed.wait()
        return self._replays.pop(0)

    # --- sending

    def say(self, *messages: Message) -> None:
        """Send messages to the member."""
        for message in messages:
            assert self.links.send(ME, message), f"no link for {message}"

    def canvass(self, log_term: int = -1, position: int = 0, *, term: int | None = None) -> None:
        """Send a canvass with the end of the log."""
        lives_in = log_term if term is None else term
        self.say(CanvassPosition(log_term, position, lives_in, self.member_id))

    def request_vote(self, term: int, log_term: int = -1, position: int = 0) -> None:
        """Request the member's vote in a term."""
        self.say(RequestVote(log_term, position, term, self.member_id))

    def vote(self, term: int, *, granted: bool = True, own_term: int | None = None) -> None:
        """Answer a vote request."""
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

    def lead(
        self,
        term: int,
        log_term: int = -1,
        *spans: TermSpan,
        position: int | None = None,
        commit: int = 0,
    ) -> None:
        """Announce a leadership; see `new_term`."""
        self.say(self.new_term(term, log_term, *spans, position=position, commit=commit))

    def new_term(
        self,
        term: int,
        log_term: int = -1,
        *spans: TermSpan,
        position: int | None = None,
        commit: int = 0,
    ) -> NewLeadershipTerm:
        """Build the message of a leader of `term` to a member whose log ends in `log_term`.

        The last span is the leader's own term. The leader's log ends where that begins, unless its
        position is given. The term that follows the log term is taken from the spans.
        """
        spans = spans or (TermSpan(term, 0, NULL_VALUE),)
        base = spans[-1].base
        after = next((each for each in spans if each.term > log_term), None)
        return NewLeadershipTerm(
            log_leadership_term_id=log_term,
            next_leadership_term_id=NULL_VALUE if after is None else after.term,
            next_term_base_log_position=NULL_VALUE if after is None else after.base,
            next_log_position=NULL_VALUE if after is None else after.end,
            leadership_term_id=term,
            term_base_log_position=base,
            log_position=base if position is None else position,
            leader_recording_id=0,
            timestamp=EPOCH_MS,
            leader_member_id=self.member_id,
            log_session_id=SESSION,
            app_version=1,
            is_startup=False,
            commit_position=commit,
            replication_position=0,
            terms=spans,
        )

    def commit(self, term: int, position: int = 0, *, confirm: int = 0) -> None:
        """Send the commit position, as the leader."""
        self.say(CommitPosition(term, position, self.member_id, confirm))

    def append_position(
        self, term: int, position: int, flags: AppendFlags = AppendFlags.NONE, *, confirm: int = 0
    ) -> None:
        """Report the durable end of the log, as a follower."""
        self.say(AppendPosition(term, position, self.member_id, flags, confirm))

    def join(self, term: int, position: int) -> None:
        """Announce where the live log begins, as the leader."""
        self.say(LogJoined(term, SESSION, position, self.member_id))

    def live(self, *batches: bytes, confirm: int = 0) -> None:
        """Send batches of the live log, as the leader."""
        for each in batches:
            self.say(LogBatch(decode_header_untrusted(each).term, confirm, each))

    async def open_catchup(self, position: int, *, session: int = SESSION) -> FrameStream:
        """Open a replay that begins at a position, as the leader."""
        return await self.links.open_stream(
            ME, purpose=StreamPurpose.CATCHUP, log_session_id=session, join_position=position
        )
