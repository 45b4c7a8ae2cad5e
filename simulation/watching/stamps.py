"""Observes the times with which leaders stamp their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...node.leader.leadership import Leadership
from ..machines.clock import EPOCH_MS
from .facts import Timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...node import Member
    from ...storage import BatchHeader
    from ..machines.clock import Clock
    from .facts import Fact


def watch_stamps(
    member: Member, clocks: Callable[[], Mapping[int, Clock]], tell: Callable[[Fact], None]
) -> None:
    """Have `tell` called with each batch that a member makes while it leads.

    Args:
        member: that may lead.
        clocks: gives the clock of each member.
        tell: receives the facts.
    """
    append = member.store.append

    def watched(
        batch: bytes,
        *,
        header: BatchHeader | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        if header is not None and isinstance(member.state.role, Leadership):
            ahead_ms = header.timestamp_ms - EPOCH_MS - int(trio.current_time() * 1000)
            possible = tuple((i, clock.ahead_ms()) for i, clock in clocks().items())
            tell(Timed(member.config.member_id, ahead_ms, possible))
        append(batch, header=header, done=done)

    setattr(member.store, "append", watched)  # noqa: B010 - of this one store
