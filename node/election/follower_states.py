"""The follower's states, from the adoption of a leader to CLOSED, and its term.

Which of them a follower goes through depends on what its log is missing: nothing, a part of the
leader's own term, or earlier terms; see "The four ways to join" in :mod:`.election`. (In the
fourth, a truncation, no leader is adopted.)
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from ...errors import TransportError
from ...storage import EMPTY_LOG, LogEnd
from ...transport import Address, AppendFlags, CatchupPosition, ReplayRequest, StreamPurpose
from ..protocol import log_matching
from ..protocol.states import State
from .transition import Next

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from ...transport import FrameStream
    from ..follower.following import Following
    from .context import ElectionContext
    from .transition import Adoption

JOIN_WINDOW_BYTES: Final = 4 << 20
"""How close to the end of the leader's log a catch-up must be before it joins the live log.
Smaller: a fast writer stays ahead of it for longer. Larger: more live batches wait in memory."""


async def run_follower(ctx: ElectionContext, adoption: Adoption) -> Next:
    """Run the role of a follower until it ends or asks for another canvass."""
    state = ctx.state
    state.role = role = ctx.follow(adoption.message, way=adoption.way)
    # What waits is from before this leader; the role would take it for news.
    ctx.inbox.clear()
    canvass: list[Next] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(role.run)
            # Runs next to the role, since messages and failures must be handled in each of the
            # states.
            nursery.start_soon(_join, ctx, role, canvass)
            ended = await role.wait_ended()
            nursery.cancel_scope.cancel()
    finally:
        # If the whole member is cancelled, nothing will be answered any more.
        cancelled = trio.current_effective_deadline() == -math.inf
        ctx.requests.lost_leader(answers=role.leader_answers and not cancelled)
        role.end("cancelled")
        state.role = ctx.inbox
    # Not `reopen`, which would count as a failure: a term that was copied is progress.
    if canvass:
        return canvass[0]
    if ended.in_order:
        # The leader leads no more, or wants us to: our promise to it is over.
        ctx.voter.lease_promise.release()
    return ctx.reopen(ended)


async def _join(ctx: ElectionContext, role: Following, canvass: list[Next]) -> None:
    """Go through the follower's states to CLOSED, or add another canvass to the list."""
    while ctx.current is not State.CLOSED:
        step = await FOLLOWER_FUNCTIONS[ctx.current](ctx, role)
        # The leader may have changed while we copied; only a new announcement says how to go on.
        if step.state is State.CANVASS:
            canvass.append(step)
            role.end("term replicated")
            return
        ctx.enter(step)


async def follower_log_replication(ctx: ElectionContext, role: Following) -> Next:
    """Fetch what is missing of one earlier term from the leader, or a snapshot.

    Nothing of it is applied before the leader has committed an entry of its own term.
    """
    store, way = ctx.store, role.way
    if isinstance(way, log_matching.Install):
        head = await role.install_snapshot(way.oldest)
        return Next(State.CANVASS, f"snapshot at {head.position} installed")
    assert isinstance(way, log_matching.Replicate)
    # A batch of any other term ends the role from now on: it would lie in the wrong row (I-12).
    role.recorded_term = way.term
    if store.append_position < way.stop:
        async with _replay_stream(ctx, role, way.stop) as stream:
            await role.record_replay(stream, way.stop)
        # The leader may have stopped in the middle of it. A row must not promise the rest.
        if store.append_position != way.stop:
            raise TransportError(f"the replay ended at {store.append_position}: {way}")
    # Closed where it ends, only now that all of it is durable: a row that promises more than the
    # log has would be believed when logs are compared.
    base = store.append_position if way.base is None else way.base
    await store.ensure_coherent(
        term=way.term, base=base, end=way.stop, timestamp_ms=role.timestamp_ms
    )
    return Next(State.CANVASS, f"term {way.term} replicated to {way.stop}")


@asynccontextmanager
async def _replay_stream(
    ctx: ElectionContext, role: Following, stop: int
) -> AsyncGenerator[FrameStream, None]:
    stream = await ctx.links.open_stream(role.leader_id, purpose=StreamPurpose.REPLAY)
    async with stream:
        request = ReplayRequest(ctx.store.append_position, stop)
        await stream.send(request)
        yield stream


async def follower_replay(ctx: ElectionContext, role: Following) -> Next:
    """Apply what we have and know to be committed; the rest follows when it is."""
    assert isinstance(role.way, log_matching.Replay)
    # Requests are forwarded from now on, and not sooner: while earlier terms are copied, each
    # canvass may find another leader.
    ctx.requests.follow(role.leader_id)
    # The leader's election waits for a quorum of these positions before it can go on.
    role.report()
    applier = ctx.applier
    await applier.applied(applier.commit_position)
    reason = f"applied to {applier.applied_position}"
    if role.way.catchup_join is None:
        return Next(State.FOLLOWER_LOG_INIT, reason)
    return Next(State.FOLLOWER_CATCHUP_INIT, reason)


async def follower_catchup_init(ctx: ElectionContext, role: Following) -> Next:
    """Ask the leader for a replay from the end of our log, to our catch-up endpoint."""
    state = ctx.state
    own = state.config.own
    request = CatchupPosition(
        leadership_term_id=role.term,
        log_position=ctx.store.append_position,
        follower_member_id=state.member_id,
        catchup_endpoint=str(Address(own.host, own.member_port)),
    )
    # A leader that does not answer, but sends heartbeats, would hold us here for ever (L-2).
    with trio.fail_after(state.timeouts.leader_heartbeat_timeout):
        # Our link to the leader may still be on its way up, though it hears and answers us.
        while not ctx.links.send(role.leader_id, request):
            await role.changed.wait()
    reason = f"asked for a replay from {request.log_position}"
    return Next(State.FOLLOWER_CATCHUP_AWAIT, reason)


async def follower_catchup_await(ctx: ElectionContext, role: Following) -> Next:
    """Wait for the replay to arrive; it must begin just where our log ends."""
    with trio.fail_after(ctx.state.timeouts.leader_heartbeat_timeout):
        while role.catchup_position is None:
            await role.changed.wait()
    # A stream of an earlier attempt does not go on from where our log ends now.
    if role.catchup_position != ctx.store.append_position:
        raise TransportError(f"a replay from {role.catchup_position} was not asked for")
    return Next(State.FOLLOWER_CATCHUP, f"replay from {role.catchup_position} joined")


async def follower_catchup(ctx: ElectionContext, role: Following) -> Next:
    """Record the replay, join the live log when it is near, and leave when both have met."""
    store = ctx.store
    assert isinstance(role.way, log_matching.Replay)
    target = role.way.catchup_join or 0
    # With this flag each report also asks the leader to stop a replay that has met the live log.
    role.flags = AppendFlags.CATCHUP
    role.report()
    subscribed = False
    position, moved_at = store.append_position, trio.current_time()
    # Both ends must know that they have met: the leader stops the replay once we report a position
    # behind the one where our live log began.
    while not (
        role.catchup_stopped
        and role.join_position is not None
        and store.append_position >= role.join_position
    ):
        near = max(target, role.notified_commit) - JOIN_WINDOW_BYTES
        # H9: we join before the end is reached, because a busy leader moves the end as fast as we
        # follow.
        if not subscribed and store.append_position >= near:
            role.subscribe()
            subscribed = True
        if store.append_position > position:
            position, moved_at = store.append_position, trio.current_time()
        await role.changed.wait(role.catchup_deadline(moved_at))
        # Asked again after the wait: a part of a large batch may have come during it.
        late = role.catchup_deadline(moved_at) <= trio.current_time()
        if late and store.append_position == position:
            raise trio.TooSlowError(f"no progress of the catch-up at {position}")
    reason = f"caught up to {store.append_position}, live from {role.join_position}"
    return Next(State.FOLLOWER_LOG_INIT, reason)


async def follower_log_init(_ctx: ElectionContext, role: Following) -> Next:
    """Ask for the live log, unless the catch-up has joined it already."""
    await trio.lowlevel.checkpoint()
    # A subscription made twice would restart the live log at a later position.
    if role.live_position is None:
        role.subscribe()
        return Next(State.FOLLOWER_LOG_AWAIT, "nothing to catch up")
    return Next(State.FOLLOWER_READY, "live log joined")


async def follower_log_await(ctx: ElectionContext, role: Following) -> Next:
    """Wait for the live log; it must begin just where our log ends."""
    append = ctx.store.append_position
    with trio.fail_after(ctx.state.timeouts.leader_heartbeat_timeout):
        while role.join_position is None:
            await role.changed.wait()
    # The leader wrote between our position and the join; what lies between would be a hole.
    if role.join_position != append:
        raise TransportError("the live log has moved on; catch-up is needed")
    await role.anchor()
    return Next(State.FOLLOWER_READY, f"live from {role.join_position}")


async def follower_ready(ctx: ElectionContext, role: Following) -> Next:
    """Report to the leader that its term is durable here."""
    # After a catch-up the term's row may still be missing, or not durable. READY without it is H3
    # (F3, I-26).
    await role.anchor()
    # Now our log is the leader's, up to where its live log began for us. So a damaged end of this
    # term is back. One of an earlier term is back if it was committed; if not, it is void.
    if EMPTY_LOG < ctx.store.recorded.lost < LogEnd(role.term + 1, 0):
        await ctx.store.clear_lost()
    # Durable before the first promise: after a restart we must wait for as long.
    await ctx.voter.expect_leases(role.lease_ms)
    role.flags = AppendFlags.READY
    role.report()
    await trio.lowlevel.checkpoint()
    ctx.state.leader_id = role.leader_id
    return Next(State.CLOSED, f"following member {role.leader_id} in term {role.term}")


FOLLOWER_FUNCTIONS: dict[State, Callable[[ElectionContext, Following], Awaitable[Next]]] = {
    State.FOLLOWER_LOG_REPLICATION: follower_log_replication,
    State.FOLLOWER_REPLAY: follower_replay,
    State.FOLLOWER_CATCHUP_INIT: follower_catchup_init,
    State.FOLLOWER_CATCHUP_AWAIT: follower_catchup_await,
    State.FOLLOWER_CATCHUP: follower_catchup,
    State.FOLLOWER_LOG_INIT: follower_log_init,
    State.FOLLOWER_LOG_AWAIT: follower_log_await,
    State.FOLLOWER_READY: follower_ready,
}
