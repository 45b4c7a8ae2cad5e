"""The follower's side of an orderly termination (:mod:`..leader.termination`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...transport import TerminationAck

if TYPE_CHECKING:
    from .following import Following


async def terminate_follower(role: Following) -> None:
    """Wait until the leader names a position, apply the log up to it, report that, and stop."""
    while role.termination is None:
        await role.terminates.wait()
    await role.applier.applied(role.termination)
    # The last batch may ask for a snapshot: it must have begun, and then be complete.
    while role.applier.lagging:
        await role.applier.caught_up.wait()
    await role.snapshots.quiet()
    role.state.terminate()
    # Again and again, as long as the role lasts: the leader may have missed it.
    while True:
        ack = TerminationAck(role.term, role.termination, role.state.member_id)
        role.links.send(role.leader_id, ack)
        await trio.sleep(role.state.timeouts.leader_heartbeat_interval)
