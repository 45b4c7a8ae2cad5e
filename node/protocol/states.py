"""The states of an election, and which may follow which.

The names and codes are those of Aeron Cluster's election. :data:`EDGES` has all legal transitions.
Each transition is checked against it, ``docs/election.md`` draws it, and a named test takes every
edge.
"""

from __future__ import annotations

import enum


class State(enum.IntEnum):
    """The states of an election; CLOSED means that the member leads or follows.

    The names are Aeron's. In LEADER_REPLAY and FOLLOWER_REPLAY, "replay" means: apply what is known
    to be committed. On a stream, a replay is the recorded log itself.
    """

    INIT = 0
    CANVASS = 1
    NOMINATE = 2
    CANDIDATE_BALLOT = 3
    FOLLOWER_BALLOT = 4
    LEADER_LOG_REPLICATION = 5
    LEADER_REPLAY = 6
    LEADER_INIT = 7
    LEADER_READY = 8
    FOLLOWER_LOG_REPLICATION = 9
    FOLLOWER_REPLAY = 10
    FOLLOWER_CATCHUP_INIT = 11
    FOLLOWER_CATCHUP_AWAIT = 12
    FOLLOWER_CATCHUP = 13
    FOLLOWER_LOG_INIT = 14
    FOLLOWER_LOG_AWAIT = 15
    FOLLOWER_READY = 16
    CLOSED = 17


LEADER_STATES = frozenset(
    {State.LEADER_LOG_REPLICATION, State.LEADER_REPLAY, State.LEADER_INIT, State.LEADER_READY}
)
BALLOT_STATES = frozenset(
    {State.CANVASS, State.NOMINATE, State.CANDIDATE_BALLOT, State.FOLLOWER_BALLOT}
)

_FOLLOW = (State.FOLLOWER_LOG_REPLICATION, State.FOLLOWER_REPLAY)

# Every state except INIT and CLOSED may also go to INIT: on a timeout, a truncation, or a newer
# term seen while leading or joining (Aeron: Election.handleError).
_FORWARD: dict[State, tuple[State, ...]] = {
    State.INIT: (State.CANVASS, State.LEADER_LOG_REPLICATION),
    State.CANVASS: (State.NOMINATE, State.FOLLOWER_BALLOT, *_FOLLOW),
    State.NOMINATE: (State.CANVASS, State.CANDIDATE_BALLOT, State.FOLLOWER_BALLOT, *_FOLLOW),
    State.CANDIDATE_BALLOT: (
        State.CANVASS,
        State.FOLLOWER_BALLOT,
        State.LEADER_LOG_REPLICATION,
        *_FOLLOW,
    ),
    State.FOLLOWER_BALLOT: (State.CANVASS, *_FOLLOW),
    State.LEADER_LOG_REPLICATION: (State.LEADER_REPLAY,),
    State.LEADER_REPLAY: (State.LEADER_INIT,),
    State.LEADER_INIT: (State.LEADER_READY,),
    State.LEADER_READY: (State.CLOSED,),
    State.FOLLOWER_LOG_REPLICATION: (State.CANVASS,),
    State.FOLLOWER_REPLAY: (State.FOLLOWER_CATCHUP_INIT, State.FOLLOWER_LOG_INIT),
    State.FOLLOWER_CATCHUP_INIT: (State.FOLLOWER_CATCHUP_AWAIT,),
    State.FOLLOWER_CATCHUP_AWAIT: (State.FOLLOWER_CATCHUP,),
    State.FOLLOWER_CATCHUP: (State.FOLLOWER_LOG_INIT,),
    State.FOLLOWER_LOG_INIT: (State.FOLLOWER_LOG_AWAIT, State.FOLLOWER_READY),
    State.FOLLOWER_LOG_AWAIT: (State.FOLLOWER_READY,),
    State.FOLLOWER_READY: (State.CLOSED,),
    State.CLOSED: (),
}

EDGES: dict[State, frozenset[State]] = {
    state: frozenset(following) | ({State.INIT} - {state, State.CLOSED} if following else set())
    for state, following in _FORWARD.items()
}


def diagram() -> str:
    """Draw :data:`EDGES` as a Mermaid state diagram (the edges to INIT on failure left out)."""
    lines = ["stateDiagram-v2", "    [*] --> INIT"]
    lines += [
        f"    {state.name} --> {following.name}"
        for state, targets in _FORWARD.items()
        for following in targets
    ]
    return "\n".join([*lines, "    CLOSED --> [*]"])
