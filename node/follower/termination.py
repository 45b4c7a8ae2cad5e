"""The follower's side of an orderly termination (:mod:`.leader.termination`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...transport import TerminationAck

if TYPE_CHECKING:
    from .following import Following


async def terminate_follower(role: Following) -> None:
    """Wait until the leader names the position, get there, say so, and stop."""
    while role.termination is None:
        await role.terminates.wait()
    await role.applier.applied(role.termination)
    while role.applier.lagging:  # what the last batch asks for has not begun
        await role.applier.caught_up.wait()
    await role.snapshots.quiet()
    role.state.terminate()
    while True:  # as long as the role lasts: the leader may not have heard it
        ack = TerminationAck(role.term, role.termination, role.state.member_id)
        role.links.send(role.leader_id, ack)
        await trio.sleep(role.state.timeouts.leader_heartbeat_interval)
