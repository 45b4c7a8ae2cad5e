"""What a member is at a moment, as seen from its links and its disk.

Exactly one role hears the member's messages: the election's inbox while a leader is being
found, :class:`~.following.Following` from the moment a leader is adopted, and
:class:`~.leadership.Leadership` from the moment a ballot is won. A role ends once, with a reason,
and the election begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from .signal import Signal

if TYPE_CHECKING:
    from ...transport import Message, TimeoutNow


# Bytes a second that a disk may need for what waits to be written before it counts as stalled.
SLOWEST_DISK = 8 << 20


@attrs.frozen
class Ended:
    """Why a role ended.

    Args:
        reason: in words, for the log.
        message: a message with its sender that the next election should see first.
        gone: a member that closed in order, which nobody needs to wait for.
        in_order: the leader knows that it leads no more, and answers what it was asked.
        mandate: by which the leader has asked us to take over from it.
    """

    reason: str
    message: tuple[int, Message] | None = None
    gone: int | None = None
    in_order: bool = False
    mandate: TimeoutNow | None = None


class Role:
    """Base of the roles."""

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self.changed = Signal()
        self._end = trio.Event()

    def end(self, reason: str, *, message: tuple[int, Message] | None = None) -> None:
        """End the role; only the first call counts."""
        self._finish(Ended(reason, message))

    def _finish(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended
            self._end.set()
            self.changed.notify()

    async def wait_ended(self) -> Ended:
        """Wait until the role has ended, and say why."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    def on_message(self, sender: int, message: Message) -> None:
        """Hear a message; in the order of the sender's stream."""

    def on_receiving(self, member: int) -> None:
        """A part of a message has come from a member, which may take long to come whole."""

    def on_durable(self, position: int) -> None:
        """The recording is durable up to `position`."""

    def on_link_up(self, member: int) -> None:
        """Our link to a member is ready."""

    def on_link_lost(self, member: int) -> None:
        """A member's link to us ended: what it sent on it is over."""
