"""A winner that is behind first fetches the most advanced log among those that voted for it.

Any member may be asked to lead, even one whose log lacks something (BlazingMQ: the designated
leader). Its voters then have not compared logs; each says with its vote how far its own goes. The
winner takes the longest of them, truncates where its own log parts from it, and has the rest
replayed, term by term, before it says where its own term begins.

Why that is safe: what is committed is on a quorum, so at least one voter has it, and the longest
log of a quorum has all of it, by the rule by which a candidate's log is otherwise judged. Who voted
has promised the term, and takes nothing more from older leaders. When the voter with that log fails
meanwhile the ballot was for nothing, and there is another election.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import trio

from ...errors import TransportError, WireError
from ...storage import TermRow, check_received_untrusted
from ...transport import (
    NULL_VALUE,
    CommitPosition,
    LogBatch,
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
from ..protocol import log_matching
from ..protocol.role import SLOWEST_DISK

if TYPE_CHECKING:
    from ...storage import BatchHeader
    from ...transport import FrameStream
    from .context import Election


async def adopt_voter_log(e: Election, ahead: Vote) -> None:
    """Replicate the log of the voter that is ahead.

    Raises:
        TransportError: it can't be had, or somebody lives in a newer term.
        trio.TooSlowError: nothing of it has come for a heartbeat timeout, or our disk stands still.
        OSError: the voter can't be reached.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hold_off, e)
        nursery.start_soon(_listen, e)
        nursery.start_soon(_watch, e)
        await _Fetch(e, ahead).run()
        nursery.cancel_scope.cancel()


async def _hold_off(e: Election) -> Never:
    """Have the others wait: a leader that is heard is not replaced, though it has no log yet."""
    while True:
        commit = e.applier.commit_position
        e.links.broadcast(CommitPosition(e.promised_term, commit, e.state.member_id, 0))
        await trio.sleep(e.state.timeouts.leader_heartbeat_interval)


async def _watch(e: Election) -> Never:
    """Give up when nothing is done for too long, as by our disk: the others wait for us.

    Raises:
        trio.TooSlowError: it was too long.
    """
    store, timeouts = e.store, e.state.timeouts
    state, moved_at = (store.submitted, store.recorded), trio.current_time()
    while True:
        await trio.sleep(timeouts.leader_heartbeat_interval)
        before, state = state, (store.submitted, store.recorded)
        if state[0] is not before[0] or state[1] is not before[1]:
            moved_at = trio.current_time()
        patience = 2 * timeouts.leader_heartbeat_timeout + store.unsynced / SLOWEST_DISK
        if trio.current_time() >= moved_at + patience:
            raise trio.TooSlowError("our disk has stalled while the log of a voter was fetched")


async def _listen(e: Election) -> Never:
    """Refuse rivals, and give up when somebody lives in a newer term."""
    while True:
        event = await e.inbox.receive(float("inf"))
        assert event is not None
        sender, message = event
        match message:
            case RequestVote(candidate_term_id=term) if term <= e.promised_term:
                e.voter.refuse(sender, message, leader_alive=False)
            case Scout(member_id=member) if member == sender:
                e.voter.answer_scout(message, in_ballot=False, leader_alive=False)
            case (
                RequestVote(candidate_term_id=term)
                | NewLeadershipTerm(leadership_term_id=term)
                | CommitPosition(leadership_term_id=term)
                | StaleLeader(leadership_term_id=term)
            ) if term > e.promised_term:
                e.highest_term_heard = max(e.highest_term_heard, term)
                raise TransportError(f"member {sender} lives in term {term}")
            case _:
                pass


class _Fetch:
    """The replay of another member's log."""

    def __init__(self, e: Election, ahead: Vote) -> None:
        self._e = e
        self._store = e.store
        self._term = e.promised_term
        self._from = ahead.follower_member_id
        self._end = ahead.log_position
        self._spans = ahead.terms

    async def run(self) -> None:
        """Truncate, fetch, and record the terms."""
        self._check_untrusted()
        await self._truncate()
        store = self._store
        if store.append_position < self._end:
            links = self._e.links
            async with await links.open_stream(self._from, purpose=StreamPurpose.REPLAY) as stream:
                await stream.send(ReplayRequest(store.append_position, self._end))
                await self._record(stream)
        for span in self._spans:
            if span.term >= store.log_term:
                await store.ensure_coherent(
                    term=span.term,
                    base=span.base,
                    end=span.end,
                    timestamp_ms=self._e.clocks.now_ms(),
                )

    def _check_untrusted(self) -> None:
        """Refuse a table of terms that is not the end of a log.

        Raises:
            WireError: it is not.
        """
        position, term = NULL_VALUE, NULL_VALUE
        for span in self._spans:
            coherent = position in {NULL_VALUE, span.base} and term < span.term
            if not (coherent and 0 <= span.base <= span.end):
                raise WireError(f"member {self._from} has no such terms: {self._spans}")
            position, term = span.end, span.term
        if (term, position) >= (self._term, 0) or position != self._end:
            raise WireError(f"member {self._from}: its log does not end with its terms: {term}")

    async def _truncate(self) -> None:
        """Drop what the other log does not have."""
        store = self._store
        # Our own term comes behind all of it, so the rules are those of a follower's table.
        theirs = (*self._spans, TermSpan(self._term, self._end, NULL_VALUE))
        position, last_term = log_matching.agreement(store.terms, store.append_position, theirs)
        parted = position < store.append_position or last_term != store.log_term
        if why := await self._e.log_guard.cut_contradiction(position):
            raise TransportError(f"member {self._from}: {why}")
        if parted or log_matching.ends_early(store.terms, theirs):
            await self._e.log_guard.truncate(position, last_term)
        first = self._spans[0]
        if last_term < first.term and (last_term, position) != (NULL_VALUE, first.base):
            # The next vote tells of older terms.
            raise TransportError(f"the logs part before term {first.term} of member {self._from}")

    async def _record(self, stream: FrameStream) -> None:
        store = self._store
        last_term = store.log_term
        while store.appended_position < self._end:
            with trio.fail_after(self._e.state.timeouts.leader_heartbeat_timeout):
                message = await stream.receive()
            if message is None:
                raise TransportError(
                    f"the replay ended at {store.appended_position} of {self._end}"
                )
            if not isinstance(message, LogBatch):
                raise WireError(f"a {type(message).__name__} in a replay of the log")
            if message.leadership_term_id >= self._term:
                # Its sender lives in our term already, or in a newer one: it may have truncated.
                raise WireError(f"a replay in term {message.leadership_term_id}")
            header = check_received_untrusted(message.batch)
            self._fits_untrusted(header)
            row = None
            if header.term > last_term:
                row = TermRow(header.term, header.position, None, header.timestamp_ms)
                last_term = header.term
            store.append(message.batch, header=header, term_row=row)
            if store.unsynced > MAX_UNSYNCED_BYTES:
                await store.settled()
        await store.settled()

    def _fits_untrusted(self, header: BatchHeader) -> None:
        """Refuse a batch that is not the next one of the log that was promised.

        Raises:
            WireError: it is not.
        """
        due = self._store.appended_position
        inside = any(
            span.term == header.term and span.base <= due and header.end <= span.end
            for span in self._spans
        )
        if header.position != due or not inside:
            raise WireError(f"a replay of another log: {header}, our log ends at {due}")
