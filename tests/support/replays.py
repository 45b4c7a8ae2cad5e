"""A leader that replays its log to the member under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.transport import CatchupPosition, LogSubscribe, TermSpan

if TYPE_CHECKING:
    from quorate.transport import FrameStream
    from tests.support.peers import Peer
    from tests.support.script import Script


async def replaying(s: Script, *, joined: int, commit: int) -> tuple[Peer, FrameStream]:
    """Let peer 1 lead term 0, and open the catch-up that the member requests.

    Args:
        s: the script; the member's log is of term 0.
        joined: where the live log begins, and the leader's log ends.
        commit: the leader's commit position.
    """
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=joined, commit=commit)
    request = await leader.hears(CatchupPosition)
    stream = await leader.open_catchup(request.log_position)
    await leader.hears(LogSubscribe)
    leader.join(0, joined)
    return leader, stream
