"""The events of all members, seen from one of them.

While somebody watches this member, it watches the others: over a stream to each, which is open for
that long and no longer. So whoever watches one member sees all of them, and what this member can't
reach is seen as not reached. There is no second list of addresses, and no second way in.

Whose word it is
----------------
A member reports nothing but itself. Each event that is passed on says ``by`` which member, and a
keyframe says how long ago each was heard (``heard_ms``). Nothing is ever said in the name of a
member that is silent: its last status stays as old as it is.

Whose clock it is
-----------------
Times of events are seconds since a moment that each member has chosen by its own clock, and clocks
differ. So what another member sends is moved to our time: by the least difference between the time
when an event came and its own time. That errs by the shortest way of a message, and needs no clock
to be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ...recordings import Event
from .subscription import Feed

if TYPE_CHECKING:
    from .reporter import Reporter
    from .subscription import Subscription

LINGER_SECONDS: Final = 2.0
"""How long the streams stay open after the last one that watched has left. Shorter: a page that is
loaded again opens all of them anew. Longer: members report for longer to nobody."""


@attrs.define
class _Heard:
    """What a member said last.

    Args:
        status: of the member, as it reported it.
        at: when we heard it (trio's clock).
    """

    status: object
    at: float


class Relay:
    """Passes on the events of all members.

    Args:
        reporter: of this member.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._feed = Feed(self._keyframe)
        self._heard: dict[int, _Heard] = {}

    def head(self) -> dict[str, Any]:
        """Return the head of a recording that begins now."""
        return self._reporter.head()

    def subscribe(self) -> Subscription:
        """Return the events of all members from now on; the first is a keyframe."""
        return self._feed.subscribe()

    async def run(self) -> None:
        """Watch all members while somebody watches us, until cancelled."""
        while True:
            await self._feed.until(watched=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._own)
                await self._until_left()
                nursery.cancel_scope.cancel()
            self._heard.clear()

    async def _until_left(self) -> None:
        """Wait until nobody has watched for a while."""
        while True:
            await self._feed.until(watched=False)
            with trio.move_on_after(LINGER_SECONDS):
                await self._feed.until(watched=True)
            if not self._feed.watched:
                return

    async def _own(self) -> None:
        """Pass on what this member reports."""
        with self._reporter.subscribe() as events:
            async for event in events:
                self._take(event)

    def _take(self, event: Event) -> None:
        """Pass on an event of a member, as heard from it now."""
        member = event.member
        if event.kind == "keyframe":
            own = event.fields.get("members", {}).get(str(member), {})
            event = Event(event.at, member, "status", {"status": own.get("status")})
        if event.kind == "status":
            self._heard[member] = _Heard(event.fields.get("status"), trio.current_time())
        fields = {**event.fields, "by": member}
        self._feed.publish(attrs.evolve(event, fields=fields))

    def _keyframe(self) -> Event:
        own = self._reporter.member_id
        now = trio.current_time()
        self._heard[own] = _Heard(self._reporter.status_now(), now)
        members = {
            str(member): {
                "status": heard.status,
                "by": member,
                "heard_ms": round(1000 * (now - heard.at)),
            }
            for member, heard in sorted(self._heard.items())
        }
        return Event(self._reporter.now(), own, "keyframe", {"members": members, "by": own})
