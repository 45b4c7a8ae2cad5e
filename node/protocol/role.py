"""The role of a member: what receives its messages at a moment.

There is exactly one: the election's inbox while a leader is being found,
:class:`~..follower.following.Following` from the adoption of a leader on, and
:class:`~..leader.leadership.Leadership` from a won ballot on. A role ends once, with a reason, and
the election begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from .causes import Cause
from .signal import Signal

if TYPE_CHECKING:
    from ...transport import Message, TimeoutNow


SLOWEST_DISK = 8 << 20
"""The slowest disk that does not count as stalled, in bytes a second. Smaller: a stalled disk is
noticed later. Larger: a slow disk that is busy with a large batch costs an election."""


@attrs.frozen
class Ended:
    """Why a role ended.

    Args:
        reason: in words, for the log.
        message: a message, with its sender, that the next election handles first.
        gone: a leader that has closed; nobody needs to wait for it.
        in_order: the old leader stepped down knowingly, so it will answer requests already
            forwarded to it.
        mandate: the message by which the leader has asked us to take over.
        cause: the label of the reason, for figures.
    """

    reason: str
    message: tuple[int, Message] | None = None
    gone: int | None = None
    in_order: bool = False
    mandate: TimeoutNow | None = None
    cause: Cause = Cause.OTHER


class Role:
    """Base of the roles. The callbacks below do nothing here.

    Attributes:
        ended: why it ended; None while it lasts.
        changed: notified whenever a state of the election may have something to look at.
    """

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self.changed = Signal()
        self._end = trio.Event()

    def end(
        self,
        reason: str,
        cause: Cause = Cause.OTHER,
        *,
        message: tuple[int, Message] | None = None,
    ) -> None:
        """End the role, which has failed or been deposed; only the first call counts."""
        self._finish(Ended(reason, message, cause=cause))

    def _finish(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended
            self._end.set()
            self.changed.notify()

    async def wait_ended(self) -> Ended:
        """Wait until the role has ended, and return why."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    def on_message(self, sender: int, message: Message) -> None:
        """Handle a message. Those of one member come in the order in which it sent them."""

    def on_other_store(self, member: int) -> None:
        """Note that a member speaks with another store than before; its messages follow."""

    def on_membership(self) -> None:
        """Note that another configuration of the cluster is in force."""

    def on_receiving(self, member: int) -> None:
        """Note that a part of a message has come, the rest of which may take long."""

    def on_durable(self, position: int) -> None:
        """Note that our log is durable up to `position`."""

    def on_link_up(self, member: int) -> None:
        """Note that our link to a member is ready."""

    def on_link_lost(self, member: int) -> None:
        """Note that a member's link to us has ended; nothing more comes on it."""
