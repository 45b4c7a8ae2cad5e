"""Messages under a script's control: it can drop them, or hold them back and deliver them later."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..transport import Message

    Rule: TypeAlias = Callable[[int, int, Message], bool]


@attrs.frozen
class Held:
    """A message that was held back."""

    sender: int
    receiver: int
    message: Message


class Messages:
    """The rules by which messages reach members; rules get sender, receiver and message.

    Attributes:
        held: what :meth:`hold` has caught, oldest first.
    """

    def __init__(self) -> None:
        self.held: list[Held] = []
        self._drops: list[Rule] = []
        self._holds: list[Rule] = []
        self._deliver: dict[int, Callable[[int, Message], None]] = {}

    def attend(self, receiver: int, deliver: Callable[[int, Message], None]) -> None:
        """Register how messages are delivered to a member."""
        self._deliver[receiver] = deliver

    def passes(self, sender: int, receiver: int, message: Message) -> bool:
        """Return whether a message arrives now; a rule may hold it back."""
        if any(rule(sender, receiver, message) for rule in self._drops):
            return False
        if any(rule(sender, receiver, message) for rule in self._holds):
            self.held.append(Held(sender, receiver, message))
            return False
        return True

    def drop(self, rule: Rule) -> Callable[[], None]:
        """Drop messages from now on; return a function that ends the rule."""
        self._drops.append(rule)
        return lambda: self._drops.remove(rule)

    def hold(self, rule: Rule) -> Callable[[], None]:
        """Hold messages back from now on; return a function that ends this without deliveries."""
        self._holds.append(rule)
        return lambda: self._holds.remove(rule)

    def deliver(self, held: Held) -> None:
        """Deliver a held message."""
        self._deliver[held.receiver](held.sender, held.message)
