"""The messages that wait for a state of the election to look at them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from ..protocol.role import Role

if TYPE_CHECKING:
    from ...transport import Message

MAX_INBOX: Final = 1024


class Inbox(Role):
    """The role while no leader is known: messages wait for the state to look at them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[tuple[int, Message]] = deque()

    def on_message(self, sender: int, message: Message) -> None:
        """Keep a message; when far too many wait the sender repeats itself anyway."""
        if len(self._messages) < MAX_INBOX:
            self._messages.append((sender, message))
            self.changed.notify()

    def on_link_lost(self, member: int) -> None:
        """What a member sent on a link that is over may be out of date by now."""
        self._messages = deque(each for each in self._messages if each[0] != member)

    def clear(self) -> None:
        """Forget what waits: it is from before a term, and out of date when that is over."""
        self._messages.clear()

    async def receive(self, until: float) -> tuple[int, Message] | None:
        """Return the next message and its sender; None once `until` has come."""
        await trio.lowlevel.checkpoint()
        while not self._messages:
            if trio.current_time() >= until:
                return None
            await self.changed.wait(until)
        return self._messages.popleft()
