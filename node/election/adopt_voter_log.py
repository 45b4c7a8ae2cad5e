"""A winner that is behind first adopts the longest log among those of its voters.

An operator may have any member lead, even one whose log is behind (BlazingMQ: the designated
leader). Its voters then do not compare logs; each reports with its vote how far its own goes. The
winner takes the longest of these logs, truncates its own where the two part, and fetches the rest,
before it announces where its own term begins.

Why it is safe
==============
A committed entry is on a quorum, so at least one voter has it. The most up-to-date log of a quorum
has all committed entries: every ballot relies on that (Raft, §5.4.1). The voters have promised the
winner's term, so they take nothing more from older leaders while the winner fetches.

If the voter with the longest log fails in the meantime, the ballot was for nothing, and there is
another election.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import trio

from ...errors import TransportError, WireError
from ...transport import (
    NULL_VALUE,
    CommitPosition,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    Scout,
    StaleLeader,
    StreamPurpose,
    TermSpan,
    Vote,
)
from ..follower.following import MAX_UNSYNCED_BYTES
from ..follower.replay_receiver import ReplayReceiver
from ..protocol import log_matching
from ..protocol.role import SLOWEST_DISK

if TYPE_CHECKING:
    from ...storage import BatchHeader
    from ...transport import FrameStream
    from .context import ElectionContext


async def adopt_voter_log(ctx: ElectionContext, term: int, ahead: Vote) -> None:
    """Make our log that of the voter that is ahead.

    Args:
        ctx: of the winner.
        term: that it has won.
        ahead: the vote of that voter.

    Raises:
        TransportError: its log can't be had, or somebody lives in a newer term.
        trio.TooSlowError: no batch has come for a heartbeat timeout, or our disk has stalled.
        OSError: the voter can't be reached.
    """
    # We have won, but do not lead yet: nothing else would keep the cluster waiting for us.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hold_off, ctx)
        nursery.start_soon(_listen, ctx)
        nursery.start_soon(_watch, ctx)
        await _VoterLog(ctx, term, ahead).adopt()
        nursery.cancel_scope.cancel()


async def _hold_off(ctx: ElectionContext) -> Never:
    """Send heartbeats: members that hear a leader do not elect another one."""
    while True:
        # The commit position that we knew before: no entry of our term is on a quorum yet.
        commit = ctx.applier.commit_position
        ctx.links.broadcast(CommitPosition(ctx.promised_term, commit, ctx.state.member_id, 0))
        await trio.sleep(ctx.state.timeouts.leader_heartbeat_interval)


async def _watch(ctx: ElectionContext) -> Never:
    """Give up when nothing was written for too long: the cluster waits for us.

    Raises:
        trio.TooSlowError: nothing was.
    """
    store, timeouts = ctx.store, ctx.state.timeouts
    now, moved_at = (store.submitted, store.recorded), trio.current_time()
    while True:
        await trio.sleep(timeouts.leader_heartbeat_interval)
        # Either something more was handed to the disk, or the disk has finished something.
        before, now = now, (store.submitted, store.recorded)
        if now[0] is not before[0] or now[1] is not before[1]:
            moved_at = trio.current_time()
        patience = 2 * timeouts.leader_heartbeat_timeout + store.unsynced / SLOWEST_DISK
        if trio.current_time() >= moved_at + patience:
            raise trio.TooSlowError("our disk has stalled while the log of a voter was fetched")


async def _listen(ctx: ElectionContext) -> Never:
    """Refuse rivals, and give up when somebody lives in a newer term."""
    while True:
        event = await ctx.inbox.receive(float("inf"))
        assert event is not None
        sender, message = event
        match message:
            case RequestVote(candidate_term_id=term) if term <= ctx.promised_term:
                # Its term is lost to us: it learns so at once, and need not wait.
                ctx.voter.refuse(sender, message, leader_alive=False)
            case Scout(member_id=member) if member == sender:
                ctx.voter.answer_prevote(message, in_ballot=False, leader_alive=False)
            case (
                RequestVote(candidate_term_id=term)
                | NewLeadershipTerm(leadership_term_id=term)
                | CommitPosition(leadership_term_id=term)
                | StaleLeader(leadership_term_id=term)
            ) if term > ctx.promised_term:
                ctx.highest_term_heard = max(ctx.highest_term_heard, term)
                raise TransportError(f"member {sender} is in term {term}")
            case _:
                pass


class _VoterLog:
    """The log of a voter, as its vote describes it.

    Args:
        ctx: of the winner.
        term: that it has won.
        ahead: the vote.
    """

    def __init__(self, ctx: ElectionContext, term: int, ahead: Vote) -> None:
        self._ctx = ctx
        self._store = ctx.store
        self._term = term
        self._from = ahead.follower_member_id
        self._end = ahead.log_position
        self._spans = ahead.terms

    async def adopt(self) -> None:
        """Truncate our log where the two part, fetch the rest, and record the terms."""
        # First, while nothing is changed: a table that is no log would have us truncate our log.
        self._check_untrusted()
        await self._truncate()
        store = self._store
        if store.append_position < self._end:
            links = self._ctx.links
            async with await links.open_stream(self._from, purpose=StreamPurpose.REPLAY) as stream:
                await stream.send(ReplayRequest(store.append_position, self._end))
                await self._record(stream)
        for span in self._spans:
            # Terms without entries have no batch that would bring their row.
            if span.term >= store.log_term:
                await store.ensure_coherent(
                    term=span.term,
                    base=span.base,
                    end=span.end,
                    timestamp_ms=self._ctx.clocks.now_ms(),
                )

    def _check_untrusted(self) -> None:
        """Refuse a term table that is not the end of a log.

        Raises:
            WireError: it is not.
        """
        position, term = NULL_VALUE, NULL_VALUE
        for span in self._spans:
            coherent = position in {NULL_VALUE, span.base} and term < span.term
            if not (coherent and 0 <= span.base <= span.end):
                raise WireError(f"member {self._from} has no such terms: {self._spans}")
            position, term = span.end, span.term
        if term >= self._term or position != self._end:
            raise WireError(
                f"member {self._from}: its terms end at {position} in term {term}; "
                f"expected {self._end}, in a term below {self._term}"
            )

    async def _truncate(self) -> None:
        """Drop what the voter's log does not have."""
        store = self._store
        # We compare as a follower does with its leader's table: our own term comes behind it all.
        theirs = (*self._spans, TermSpan(self._term, self._end, NULL_VALUE))
        position, last_term = log_matching.agreement(store.terms, store.append_position, theirs)
        parted = position < store.append_position or last_term != store.log_term
        # What the vote says is not authenticated: it must not cost us committed entries.
        if why := await self._ctx.log_guard.cut_contradiction(position):
            raise TransportError(f"member {self._from}: {why}")
        if parted or log_matching.ends_early(store.terms, theirs):
            await self._ctx.log_guard.truncate(position, last_term)
        first = self._spans[0]
        if last_term < first.term and (last_term, position) != (NULL_VALUE, first.base):
            # The vote lists only the last terms. (Without a common term, a list that begins at
            # position 0 is the whole table.) Our log is truncated to the first of these, so the
            # next vote will list older ones.
            raise TransportError(f"the logs part before term {first.term} of member {self._from}")

    async def _record(self, stream: FrameStream) -> None:
        """Record the rest of the voter's log.

        Raises:
            TransportError: the replay has ended early.
            WireError: it is not of the log that the vote describes.
        """
        store = self._store
        # `before`: the voter must still be in an older term. In ours, or a newer one, it follows a
        # leader and may have truncated its log since.
        replay = ReplayReceiver(
            stream, self._term, lambda: store.submitted_position, self._end, before=True
        )
        while not replay.over:
            with trio.fail_after(self._ctx.state.timeouts.leader_heartbeat_timeout):
                await replay.receive(self._end)
            for header, batch in replay.take():
                self._check_span_untrusted(header)
                store.append(batch, header=header)
            if store.unsynced > MAX_UNSYNCED_BYTES:
                # Bounds memory: the voter's disk may be much faster than this one.
                await store.settled()
        # I-26: our term begins at our append position, which must be durable before it is
        # announced.
        await store.settled()
        if store.append_position < self._end:
            raise TransportError(f"the replay ended at {store.append_position} of {self._end}")

    def _check_span_untrusted(self, header: BatchHeader) -> None:
        """Refuse a batch that is not of the log that the vote describes.

        Raises:
            WireError: it is not.
        """
        # The batches are checked singly: after a disagreement the voter's log may have gone on in
        # other terms.
        inside = any(
            span.term == header.term and span.base <= header.position and header.end <= span.end
            for span in self._spans
        )
        if not inside:
            raise WireError(f"a replay of another log: {header}, expected {self._spans}")
