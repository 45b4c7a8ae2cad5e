"""The leader's states, from a won ballot to CLOSED, and its term.

Before CLOSED the leader commits nothing, announces no commit position that it did not know when the
election began, and applies nothing above that. First a quorum gets its whole log, then a quorum has
its term in the term table (READY), and then it writes the entry that opens the term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...errors import SafetyViolationError
from ..protocol.states import State
from ..state_machine.service import RuledService
from .adopt_voter_log import adopt_voter_log
from .transition import Next

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..leader.leadership import Leadership
    from .context import ElectionContext
    from .transition import Candidacy


async def run_leader(ctx: ElectionContext, won: Candidacy) -> Next:
    """Run the role of the leader until it ends.

    Args:
        ctx: of the member.
        won: the candidacy that has won.
    """
    state = ctx.state
    assert state.promised.voted_for == state.member_id, f"{state.promised}: won by another"
    # Before the role is made: the role takes our log end for the place where its term begins.
    if won.ahead is not None:
        await adopt_voter_log(ctx, won.term, won.ahead)
    # After the log was adopted, which may have brought terms that we did not know.
    _check_term(ctx, won.term)
    state.leadership_term = won.term
    state.leader_id = state.member_id
    # Nothing is awaited from here to `inbox.clear`, so no message is lost in between.
    state.role = role = ctx.lead(won.term)
    # What waits is from before our term: members repeat what still matters.
    ctx.inbox.clear()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(role.run)
            nursery.start_soon(_announce, ctx, role)
            nursery.start_soon(_begin_term, ctx, role)
            # Otherwise the leader would undo what the operator has just asked for.
            if not won.by_operator:
                nursery.start_soon(role.prefer)
            ended = await role.wait_ended()
            nursery.cancel_scope.cancel()
    finally:
        role.end("cancelled")
        # The role must not be given another message: it would answer as the leader that it was.
        state.role = ctx.inbox
        ctx.requests.lost_leadership(role)
    if not state.closing:
        # All members hear at once that we lead no more, however long INIT waits for our disk.
        ctx.canvass_once()
    return ctx.reopen(ended)


def _check_term(ctx: ElectionContext, term: int) -> None:
    """Refuse to begin a term that our log has already, or that is below its last one.

    Raises:
        SafetyViolationError: it is such a term: its batches would stand under two openings.
    """
    # I-16: otherwise two leaders could have written entries of one term.
    if term <= ctx.store.log_term:
        raise SafetyViolationError(
            f"member {ctx.state.member_id}: won term {term}, but its log holds term "
            f"{ctx.store.log_term}; expected a term above all in the log"
        )


async def _announce(ctx: ElectionContext, role: Leadership) -> None:
    """Announce the new term to all members until the election is closed."""
    # Until CLOSED, and not while `accepting` is False: a handover clears that flag again. An
    # announcement would then make the successor follow us once more.
    while ctx.current is not State.CLOSED:
        # Repeated, since a link drops what it has no room for, and members start late.
        announcement = role.new_leadership_term(ctx.store.log_term)
        for follower in role.followers.values():
            if not follower.gets_no_log:
                ctx.links.send(follower.member_id, announcement)
        await trio.sleep(ctx.state.timeouts.leader_heartbeat_interval)


async def _begin_term(ctx: ElectionContext, role: Leadership) -> None:
    """Go through the leader's states to CLOSED, and take requests from then on."""
    # A witness never takes requests, so none may wait for it.
    if not ctx.state.witness:
        ctx.requests.elected()
    while ctx.current is not State.CLOSED:
        ctx.enter(await LEADER_FUNCTIONS[ctx.current](ctx, role))
    # The order matters: `lead` releases the parked requests at once, and the role takes them only
    # once it is open. The entry that opens the term is in the log already.
    role.open()
    # Rules that an earlier leader has changed must hold for all that we take. Without rules nothing
    # is waited for: requests may join the first batches of the term.
    if isinstance(ctx.applier.service, RuledService) and ctx.applier.service.rules:
        await ctx.applier.applied(role.base)
    # A witness has no tables to answer from: requests wait for the member that takes over from it.
    if not ctx.state.witness:
        ctx.requests.lead(role)


async def leader_log_replication(ctx: ElectionContext, role: Leadership) -> Next:
    """Wait until a quorum has our whole log."""
    # That commits nothing: entries of earlier terms may still be replaced (Raft, figure 8).
    # F4: no timeout here, because the role itself ends after two heartbeat timeouts without a
    # quorum. A lone member has nobody whose report would end the wait.
    while role.commit.replication_position < role.base and not ctx.state.alone:
        await role.changed.wait()
    return Next(State.LEADER_REPLAY, f"a quorum has the log to {role.base}")


async def leader_replay(ctx: ElectionContext, _role: Leadership) -> Next:
    """Apply what is known to be committed, and no more."""
    # F9: what lies above is on a quorum, but may still be replaced (H16).
    await ctx.applier.applied(ctx.applier.commit_position)
    return Next(State.LEADER_INIT, f"applied to {ctx.applier.applied_position}")


async def leader_init(ctx: ElectionContext, role: Leadership) -> Next:
    """Make our term durable in our own term table."""
    # We count ourselves as ready next, so our own row must be durable first (I-13).
    await ctx.store.ensure_coherent(
        term=role.term, base=role.base, end=None, timestamp_ms=role.now_ms()
    )
    return Next(State.LEADER_READY, f"term {role.term} begins at {role.base}")


async def leader_ready(ctx: ElectionContext, role: Leadership) -> Next:
    """Wait until a quorum has our term in its term table; then open the term in the log."""
    # A follower with our term's row can prove where its log agrees with ours; with a quorum of
    # them, the next leader knows that our term was, and where it began.
    while not ctx.state.quorums.agree(role.ready_voters()):
        await role.changed.wait()
    seconds = trio.current_time() - ctx.began
    role.open_term(reason=ctx.cause, election_seconds=seconds)
    ready, voters = len(role.ready_voters()), len(ctx.state.quorums.voters)
    return Next(State.CLOSED, f"{ready} of {voters} members are ready")


LEADER_FUNCTIONS: dict[State, Callable[[ElectionContext, Leadership], Awaitable[Next]]] = {
    State.LEADER_LOG_REPLICATION: leader_log_replication,
    State.LEADER_REPLAY: leader_replay,
    State.LEADER_INIT: leader_init,
    State.LEADER_READY: leader_ready,
}
