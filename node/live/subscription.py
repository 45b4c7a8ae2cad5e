"""Events on their way to all that watch, and what happens to those that are slow.

A subscription holds few events. A newer status of a member takes the place of one that waits, since
only the newest is of use. If events are not taken for so long that they do not fit, all of them are
dropped, and the next is a keyframe: the picture of everything, made when it is taken. So somebody
who does not read costs the same as somebody who reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import trio

from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ...recordings import Event

MOST_WAITING: Final = 256
"""Events that one subscription holds. Smaller: a browser that stalls for a moment misses the steps
of an election. Larger: each that does not read costs more memory."""


class Subscription:
    """Events for one that watches, as an asynchronous iterator; the first is a keyframe.

    Close it, or use it as a context manager.

    Args:
        feed: where they come from.
        recorder: it is for a recorder, which needs few statuses.
    """

    def __init__(self, feed: Feed, *, recorder: bool = False) -> None:
        self.recorder = recorder
        self._feed = feed
        self._waiting: dict[object, Event] = {}  # in order; statuses by member, others by number
        self._number = 0
        self._lost = True  # a keyframe is next
        self._arrived = Signal()

    def put(self, event: Event, *, hurried: bool = True) -> None:
        """Take an event; without a hurry it may wait for the next one."""
        if self._lost:
            return  # it is in the keyframe
        key: object = ("status", event.member)
        if event.kind != "status":
            self._number += 1
            key = self._number
        self._waiting.pop(key, None)
        self._waiting[key] = event
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            self._lost = hurried = True
        if hurried:
            self._arrived.notify()

    def take(self) -> list[Event]:
        """Return all that waits; nothing if nothing does."""
        if self._lost:
            self._lost = False
            return [self._feed.keyframe()]
        events = list(self._waiting.values())
        self._waiting.clear()
        return events

    async def batch(self) -> list[Event]:
        """Wait until something has happened, and return all that has."""
        await trio.lowlevel.checkpoint()
        while not (self._lost or self._waiting):
            await self._arrived.wait()
        return self.take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        await trio.lowlevel.checkpoint()
        while not (self._lost or self._waiting):
            await self._arrived.wait()
        if self._lost:
            return self.take()[0]
        return self._waiting.pop(next(iter(self._waiting)))

    def close(self) -> None:
        """Take no more events."""
        self._feed.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Feed:
    """Passes events to all that watch.

    Args:
        keyframe: returns the picture of everything as of now.

    Attributes:
        keyframe: see above.
        changed: notified when the first one watches, and when the last one has left.
    """

    def __init__(self, keyframe: Callable[[], Event]) -> None:
        self.keyframe = keyframe
        self.changed = Signal()
        self._subscriptions: list[Subscription] = []

    @property
    def only_recorders(self) -> bool:
        """Whether all that watch are recorders."""
        return all(each.recorder for each in self._subscriptions)

    @property
    def watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._subscriptions)

    def subscribe(self, *, recorder: bool = False) -> Subscription:
        """Return a new subscription, for a recorder or for somebody who looks."""
        subscription = Subscription(self, recorder=recorder)
        self._subscriptions.append(subscription)
        self.changed.notify()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Pass no more events to a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self.changed.notify()

    def publish(self, event: Event, *, hurried: bool = True) -> None:
        """Pass an event to all that watch; without a hurry it may wait for the next one."""
        for subscription in self._subscriptions:
            subscription.put(event, hurried=hurried)

    async def until(self, *, watched: bool) -> None:
        """Wait until somebody watches, or until nobody does."""
        while self.watched is not watched:
            await self.changed.wait()
