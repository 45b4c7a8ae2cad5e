"""The messages that wait for a state of the election to look at them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from ..protocol.role import Role

if TYPE_CHECKING:
    from ...transport import Message

MAX_INBOX: Final = 1024
"""Messages that may wait. Fewer: some are dropped whenever a state waits for the disk. More: a
state that was held up for long works through messages that are out of date."""


class Inbox(Role):
    """The role while no leader is known: messages wait until a state takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[tuple[int, Message]] = deque()

    def on_message(self, sender: int, message: Message) -> None:
        """Keep a message, if not too many wait; senders repeat what is not answered."""
        # The newest is dropped, not the oldest: a flood of messages cannot push out a vote that
        # came before it.
        if len(self._messages) < MAX_INBOX:
            self._messages.append((sender, message))
            self.changed.notify()

    def on_link_lost(self, member: int) -> None:
        """Forget what a member sent on a link that has ended; it may be out of date by now."""
        # Otherwise we could adopt a leader whose link to us is gone, and its live log with it.
        self._messages = deque(each for each in self._messages if each[0] != member)

    def clear(self) -> None:
        """Forget all messages: those from before a term are out of date when it is over."""
        self._messages.clear()

    async def receive(self, until: float) -> tuple[int, Message] | None:
        """Return the next message and its sender; None once `until` has come."""
        # Also if a message waits: a member that floods us must not keep other tasks from running.
        await trio.lowlevel.checkpoint()
        while not self._messages:
            if trio.current_time() >= until:
                return None
            await self.changed.wait(until)
        return self._messages.popleft()
