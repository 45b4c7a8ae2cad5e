"""The follower's half of the election: from the adoption of a leader to CLOSED, and following.

The four ways to join, by what our log lacks: nothing; earlier terms, which are replicated one at a
time with a canvass in between; a part of the current term, which is caught up by a replay that
merges into the live log. (The fourth, truncation, happens before a leader is adopted.)
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ...errors import TransportError
from ...storage import EMPTY_LOG, LogEnd
from ...transport import Address, AppendFlags, CatchupPosition, ReplayRequest, StreamPurpose
from ..follower.following import Following
from ..follower.snapshot_install import install
from ..protocol import rules
from ..protocol.states import State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from ...transport import FrameStream
    from .context import Election

# The live log is joined when the catch-up is this close to the end of the leader's log.
JOIN_WINDOW_BYTES = 4 << 20


async def following(e: Election) -> State:
    """Run the role of a follower until it ends or asks for another canvass."""
    core = e.core
    assert e.adopted is not None
    compared = not isinstance(e.decision, rules.Install)
    role = core.role = Following(core, e.adopted, compared=compared)
    e.inbox.clear()
    again: list[State] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(role.run)
            nursery.start_soon(_join, e, role, again)
            ended = await role.wait_ended()
            nursery.cancel_scope.cancel()
    finally:
        cancelled = trio.current_effective_deadline() == -math.inf  # the member is
        e.requests.lost_leader(answers=role.leader_answers and not cancelled)
        role.end("cancelled")
        core.role = e.inbox
    if again:
        return again[0]
    if ended.in_order:
        core.lease_promise.release()  # the leader leads no more, or wants us to
    return e.reopen(ended)


async def _join(e: Election, role: Following, again: list[State]) -> None:
    """Go through the follower's states to CLOSED, or to another canvass."""
    while e.state is not State.CLOSED:
        after = await FOLLOWER_FUNCTIONS[e.state](e, role)
        if after is State.CANVASS:
            again.append(after)
            role.end("term replicated")
            return
        e.enter(after)
    e.close()


async def follower_log_replication(e: Election, role: Following) -> State:
    """Fetch what we lack of one earlier term from the leader's recording.

    The piece is recorded once it is durable; nothing of it is applied before the leader has
    committed an entry of its own term.
    """
    store, wanted = e.core.store, e.decision
    if isinstance(wanted, rules.Install):
        with e.core.backlog.fetching():
            head = await install(e, role, wanted)
        e.because(f"snapshot at {head.position} installed")
        return State.CANVASS
    assert isinstance(wanted, rules.Replicate)
    role.recorded_term = wanted.term
    if store.append_position < wanted.stop:
        async with _replay_stream(e, role, wanted.stop) as stream:
            with e.core.backlog.fetching():
                await role.record_replay(stream, wanted.stop)
        if store.append_position != wanted.stop:
            raise TransportError(f"the replay ended at {store.append_position}: {wanted}")
    base = store.append_position if wanted.base is None else wanted.base
    await store.ensure_coherent(
        term=wanted.term, base=base, end=wanted.stop, timestamp_ms=role.timestamp_ms
    )
    e.because(f"term {wanted.term} replicated to {wanted.stop}")
    return State.CANVASS


@asynccontextmanager
async def _replay_stream(
    e: Election, role: Following, stop: int
) -> AsyncGenerator[FrameStream, None]:
    stream = await e.core.links.open_stream(role.leader_id, purpose=StreamPurpose.REPLAY)
    async with stream:
        request = ReplayRequest(e.core.store.append_position, stop)
        await stream.send(request)
        yield stream


async def follower_replay(e: Election, role: Following) -> State:
    """Apply what we have and know to be committed; the rest follows when it is."""
    assert isinstance(e.decision, rules.Replay)
    e.requests.follow(role.leader_id)
    role.report()
    applier = e.core.applier
    await applier.applied(applier.commit_position)
    e.because(f"applied to {applier.applied_position}")
    if e.decision.catchup_join is None:
        return State.FOLLOWER_LOG_INIT
    return State.FOLLOWER_CATCHUP_INIT


async def follower_catchup_init(e: Election, role: Following) -> State:
    """Ask the leader for a replay from the end of our log, to our catch-up endpoint."""
    core = e.core
    own = core.config.own
    request = CatchupPosition(
        leadership_term_id=role.term,
        log_position=core.store.append_position,
        follower_member_id=core.member_id,
        catchup_endpoint=str(Address(own.host, own.member_port)),
    )
    with trio.fail_after(core.timeouts.leader_heartbeat_timeout):
        while not core.send(role.leader_id, request):
            await role.changed.wait()
    e.because(f"asked for a replay from {request.log_position}")
    return State.FOLLOWER_CATCHUP_AWAIT


async def follower_catchup_await(e: Election, role: Following) -> State:
    """Wait for the replay to arrive; it must begin just where our log ends."""
    with trio.fail_after(e.core.timeouts.leader_heartbeat_timeout):
        while role.catchup_position is None:
            await role.changed.wait()
    if role.catchup_position != e.core.store.append_position:
        raise TransportError(f"a replay from {role.catchup_position} was not asked for")
    e.because(f"replay from {role.catchup_position} joined")
    return State.FOLLOWER_CATCHUP


async def follower_catchup(e: Election, role: Following) -> State:
    """Record the replay, join the live log when it is near, and leave when both have met."""
    store = e.core.store
    assert isinstance(e.decision, rules.Replay)
    target = e.decision.catchup_join or 0
    role.flags = AppendFlags.CATCHUP
    role.report()
    subscribed = False
    position, moved_at = store.append_position, trio.current_time()
    while not (
        role.catchup_stopped
        and role.join_position is not None
        and store.append_position >= role.join_position
    ):
        near = max(target, role.notified_commit) - JOIN_WINDOW_BYTES
        if not subscribed and store.append_position >= near:
            role.subscribe()
            subscribed = True
        if store.append_position > position:
            position, moved_at = store.append_position, trio.current_time()
        await role.changed.wait(role.catchup_deadline(moved_at))
        late = role.catchup_deadline(moved_at) <= trio.current_time()
        if late and store.append_position == position:
            raise trio.TooSlowError(f"no progress of the catch-up at {position}")
    e.because(f"caught up to {store.append_position}, live from {role.join_position}")
    return State.FOLLOWER_LOG_INIT


async def follower_log_init(e: Election, role: Following) -> State:
    """Ask for the live log, unless the catch-up has joined it already."""
    await trio.lowlevel.checkpoint()
    if role.live_position is None:
        role.subscribe()
        e.because("nothing to catch up")
        return State.FOLLOWER_LOG_AWAIT
    e.because("live log joined")
    return State.FOLLOWER_READY


async def follower_log_await(e: Election, role: Following) -> State:
    """Wait for the live log; it must begin just where our log ends."""
    append = e.core.store.append_position
    with trio.fail_after(e.core.timeouts.leader_heartbeat_timeout):
        while role.join_position is None:
            await role.changed.wait()
    if role.join_position != append:
        raise TransportError("the live log has moved on; catch-up is needed")
    await role.anchor()
    e.because(f"live from {role.join_position}")
    return State.FOLLOWER_READY


async def follower_ready(e: Election, role: Following) -> State:
    """Tell the leader that its term is durable here."""
    core = e.core
    await role.anchor()
    # Here is all that this leader had sent when we joined, so all that we ever had of its term.
    if EMPTY_LOG < core.store.recorded.lost < LogEnd(role.term + 1, 0):
        await core.store.regain()
    await core.expect_leases(role.lease_ms)
    role.flags = AppendFlags.READY
    role.report()
    await trio.lowlevel.checkpoint()
    e.because(f"following member {role.leader_id} in term {role.term}")
    core.leader_id = role.leader_id
    return State.CLOSED


FOLLOWER_FUNCTIONS: dict[State, Callable[[Election, Following], Awaitable[State]]] = {
    State.FOLLOWER_LOG_REPLICATION: follower_log_replication,
    State.FOLLOWER_REPLAY: follower_replay,
    State.FOLLOWER_CATCHUP_INIT: follower_catchup_init,
    State.FOLLOWER_CATCHUP_AWAIT: follower_catchup_await,
    State.FOLLOWER_CATCHUP: follower_catchup,
    State.FOLLOWER_LOG_INIT: follower_log_init,
    State.FOLLOWER_LOG_AWAIT: follower_log_await,
    State.FOLLOWER_READY: follower_ready,
}
