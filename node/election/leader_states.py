"""The leader's half of the election: from a won ballot to CLOSED, and the reign itself.

Before CLOSED the leader commits nothing, publishes no commit position that it did not know when
the election began, and applies nothing above that. It first makes sure that a quorum has its
whole log, then that a quorum has its term in the recording log (READY), and then writes the
entry that opens the term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...errors import SafetyViolationError
from ..protocol.states import State
from .adopt_voter_log import draw_level

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..leader.leadership import Leadership
    from .context import Election


async def leading(e: Election) -> State:
    """Run the role of the leader until it ends, one announcement task around its election."""
    assert e.state.promised.voted_for == e.state.member_id, f"{e.state.promised}: won by another"
    if e.ahead is not None:
        await draw_level(e, e.ahead)
    _check_term(e, e.promised_term)
    e.state.leadership_term = e.promised_term
    e.state.leader_id = e.state.member_id
    role = e.lead(e.promised_term)
    role.is_startup = e.count == 1
    e.state.role = role
    e.inbox.clear()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(role.run)
            nursery.start_soon(_announce, e, role)
            nursery.start_soon(_elect, e, role)
            if not e.chosen:
                nursery.start_soon(role.prefer)
            ended = await role.wait_ended()
            nursery.cancel_scope.cancel()
    finally:
        role.end("cancelled")
        e.state.role = e.inbox
        e.requests.lost_leadership(role)
    if not e.state.closing:
        e.canvass_once()  # all hear that we lead no more, however long INIT waits for our disk
    return e.reopen(ended)


def _check_term(e: Election, term: int) -> None:
    """Refuse to begin a term that our log has already, or that is below its last one.

    Raises:
        SafetyViolationError: it is such a term: its batches would stand under two openings.
    """
    if term <= e.store.log_term:
        raise SafetyViolationError(
            f"member {e.state.member_id}: won term {term}, but its log holds term "
            f"{e.store.log_term}; expected a term above all in the log"
        )


async def _announce(e: Election, role: Leadership) -> None:
    """Tell everybody of the new term until the election is closed."""
    # Not until `accepting`: a handover sets that to False again, and the member that is to take
    # over would follow us once more.
    while e.current is not State.CLOSED:
        e.links.broadcast(role.new_leadership_term(e.store.log_term))
        await trio.sleep(e.state.timeouts.leader_heartbeat_interval)


async def _elect(e: Election, role: Leadership) -> None:
    """Go through the leader's states to CLOSED, and take requests from then on."""
    while e.current is not State.CLOSED:
        e.enter(await LEADER_FUNCTIONS[e.current](e, role))
    e.close()
    role.open()
    e.requests.lead(role)


async def leader_log_replication(e: Election, role: Leadership) -> State:
    """Wait until a quorum has our whole log; that commits nothing."""
    while role.commit.replication_position < role.base and e.state.size > 1:
        await role.changed.wait()
    e.because(f"a quorum has the log to {role.base}")
    return State.LEADER_REPLAY


async def leader_replay(e: Election, _role: Leadership) -> State:
    """Apply what is known to be committed, and no more."""
    await e.applier.applied(e.applier.commit_position)
    e.because(f"applied to {e.applier.applied_position}")
    return State.LEADER_INIT


async def leader_init(e: Election, role: Leadership) -> State:
    """Make our term durable in our own recording log."""
    await e.store.ensure_coherent(
        term=role.term, base=role.base, end=None, timestamp_ms=role.now_ms()
    )
    e.because(f"term {role.term} begins at {role.base}")
    return State.LEADER_READY


async def leader_ready(e: Election, role: Leadership) -> State:
    """Wait until a quorum has our term in its recording log; then open the term in the log."""
    while role.ready_members() < e.state.quorum:
        await role.changed.wait()
    seconds = trio.current_time() - e.began
    role.open_term(reason=e.cause, election_seconds=seconds)
    e.because(f"{role.ready_members()} of {e.state.size} members are ready")
    return State.CLOSED


LEADER_FUNCTIONS: dict[State, Callable[[Election, Leadership], Awaitable[State]]] = {
    State.LEADER_LOG_REPLICATION: leader_log_replication,
    State.LEADER_REPLAY: leader_replay,
    State.LEADER_INIT: leader_init,
    State.LEADER_READY: leader_ready,
}
