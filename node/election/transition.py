"""One step of an election, as observers and the log get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from ..protocol.log_matching import LogEnd
    from ..protocol.states import State


@attrs.frozen
class Transition:
    """One step of an election.

    Args:
        at: when it was made (trio's clock, seconds).
        member_id: of the member.
        election: how many elections there were since its start, this one included.
        before: the state that it left.
        after: the state that it entered.
        reason: in words.
        term: the term that the member lives in; in a ballot the one that it has promised.
        log_end: where its durable log ended.
        commit_position: bytes of the log known to be committed.
    """

    at: float
    member_id: int
    election: int
    before: State
    after: State
    reason: str
    term: int
    log_end: LogEnd
    commit_position: int
