"""The list of the members that an operator is shown, as JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import trio

from ...protocol.membership import MemberRole
from ...protocol.quorum import is_active

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.membership import Membership, Seat
    from ...state import MemberState
    from ..follower_progress import Follower, Followers


def member_list(
    state: MemberState, followers: Followers, end: int, why_waiting: Callable[[Seat], str]
) -> str:
    """Describe the configuration in force, and how far each member is.

    Args:
        state: of the leader.
        followers: the other members.
        end: where the log ends.
        why_waiting: returns the word for why a member that joins is no voter yet.
    """
    now = state.membership

    def describe(seat: Seat) -> dict[str, Any]:
        own = seat.member_id == state.member_id
        follower = None if own else followers.get(seat.member_id)
        # A member that was not heard yet may have all of the log, or nothing.
        heard = follower is not None and follower.heard_at > -math.inf
        match = end if own else follower.match if follower and heard else None
        return {
            "member_id": seat.member_id,
            "role": seat.role.value,
            "state": _state(now, seat),
            "instance": f"{seat.instance:016x}",
            "host": seat.host,
            "member_port": seat.member_port,
            "client_port": seat.client_port,
            "redirect_port": seat.redirect_port,
            "tls_port": seat.tls_port,
            "priority": seat.priority,
            "replaces": seat.replaces,
            "live": own or (follower is not None and _is_live(state, follower)),
            "match": match,
            "behind": None if match is None else end - match,
            "waits": why_waiting(seat) if _joins(now, seat) else "",
        }

    description = {
        "version": now.version,
        "joint": now.joint,
        "next_id": now.next_id,
        "leader": state.member_id,
        "term": state.leadership_term,
        "members": [describe(seat) for seat in now.seats],
    }
    return json.dumps(description)


def _is_live(state: MemberState, follower: Follower) -> bool:
    # It follows until something is sent to it that it does not get, which may be never.
    timeout = state.timeouts.leader_heartbeat_timeout
    return follower.follows and is_active(follower.heard_at, trio.current_time(), timeout)


def _joins(now: Membership, seat: Seat) -> bool:
    # Before the first change no seat has a store, and the founders need not join.
    return now.version > 0 and seat in now.joining


def _state(now: Membership, seat: Seat) -> str:
    if seat.role is MemberRole.LEAVING:
        return "leaving"
    if _joins(now, seat):
        return "joining"
    return seat.role.value if seat.is_to_vote else "standby"
