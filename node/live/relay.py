"""The events of all members, seen from one of them.

While somebody watches this member, it watches the others: over a stream to each, which is open for
that long and no longer. So the page of one member shows all of them, and what this member can't
reach is seen as not reached. There is no second list of addresses, and no second way in.

Whose word it is
----------------
A member reports nothing but itself. Each event that is passed on says ``by`` which member, and a
keyframe says how long ago each was heard (``heard_ms``). Nothing is ever said in the name of a
member that is silent: its last status stays as old as it is.

Whose clock it is
-----------------
Times of events are seconds since a moment that each member has chosen by its own clock, and clocks
differ. So what another member sends is moved to our time: by the least difference, in the last one
or two minutes, between the time when an event came and its own time. That errs by the shortest way
of a message, and needs no clock to be right, nor two clocks that run equally fast.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ...errors import WireError
from ...log_events import log_event
from ...recordings import Event
from ...transport import (
    CONNECTION_ERRORS,
    EVENTS_VERSION,
    EventsQuery,
    EventsReport,
    LinkLimits,
    StreamPurpose,
)
from .reporter import KEPT_STEPS
from .reports import events_untrusted
from .subscription import Feed

if TYPE_CHECKING:
    from random import Random

    from ...transport import Links
    from ..state import MemberState
    from .reporter import Reporter
    from .subscription import Subscription

log = logging.getLogger("quorate.node")

LINGER_SECONDS: Final = 2.0
"""How long the streams stay open after the last one that watched has left. Shorter: a page that is
loaded again opens all of them anew. Longer: members report for longer to nobody."""


PEERS_SECONDS: Final = 0.5
"""How often it is looked whether members have come or gone. Shorter: more work for nothing. Longer:
a new member is seen later."""

SILENCE_SECONDS: Final = 5.0
"""How long a member may report nothing before its stream is opened anew; it reports five times a
second. Shorter: a pause breaks a stream that would go on. Longer: a member whose machine was lost
without a word, and which is back, is seen later."""


SHIFT_SECONDS: Final = 60.0
"""For one or two times as long the least difference of two clocks counts. Shorter: a minute of slow
messages shifts what a member says. Longer: two clocks that drift are apart for longer."""


@attrs.define
class _Heard:
    """What a member said last.

    Args:
        status: of the member, as it reported it.
        at: when we heard it (trio's clock).
        steps: its last steps of elections, at our times.
    """

    status: object
    at: float
    steps: deque[Event] = attrs.field(factory=lambda: deque[Event](maxlen=KEPT_STEPS))

    def steps_as_of(self, now: float) -> list[dict[str, Any]]:
        """Return the steps, each with how many seconds ago it was; `now` is our time."""
        return [{**each.fields, "ago": now - each.at} for each in self.steps]


class Shift:
    """What to add to the times of another clock: the least difference lately."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._before = self._least = float("inf")

    def found(self, theirs: float, ours: float) -> float:
        """Return the shift.

        Args:
            theirs: when an event happened, by the other clock.
            ours: when it came, by our clock.
        """
        if ours >= self._since + SHIFT_SECONDS:
            self._since, self._before, self._least = ours, self._least, float("inf")
        # What comes can't have happened later than now.
        self._least = min(self._least, ours - theirs)
        return min(self._least, self._before)


class Relay:
    """Passes on the events of all members.

    Args:
        reporter: of this member.
        state: of this member; which others there are.
        links: to the other members.
        rng: for the pauses between attempts.
    """

    def __init__(self, reporter: Reporter, state: MemberState, links: Links, rng: Random) -> None:
        self._reporter = reporter
        self._state = state
        self._links = links
        self._rng = rng
        self._watched = set[int]()
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
                nursery.start_soon(self._others, nursery)
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
                if event.kind == "keyframe":
                    # What was missed: to those that watch it is a new status like any other.
                    status = {"status": self._reporter.status_now()}
                    self._take(Event(event.at, event.member, "status", status))
                else:
                    self._take(event)

    async def _others(self, nursery: trio.Nursery) -> None:
        """Watch each other member that there is a link to."""
        self._watched.clear()
        while True:
            for member in set(self._links.peers) - self._watched:
                self._watched.add(member)
                nursery.start_soon(self._other, member)
            await trio.sleep(PEERS_SECONDS)

    async def _other(self, member: int) -> None:
        """Watch another member for as long as there is a link to it."""
        limits, failures = LinkLimits(), 0
        while member in self._links.peers:
            try:
                # A member that was never heard may be of this version as well as of another one.
                if self._state.versions.get(member, EVENTS_VERSION) >= EVENTS_VERSION:
                    failures += 1
                    if await self._listen(member):
                        failures = 1
            except CONNECTION_ERRORS as error:
                words, why = "no events of member %(peer)d: %(why)s", str(error)
                log_event(log, logging.DEBUG, "events_ended", words, peer=member, why=why)
            await trio.sleep(limits.pause(max(failures, 1), self._rng))
        self._watched.discard(member)
        self._heard.pop(member, None)

    async def _listen(self, member: int) -> bool:
        """Pass on what a member reports, until the stream ends; return whether anything came.

        Raises:
            CONNECTION_ERRORS: there is no stream, or it broke.
        """
        heard = False
        shift = Shift()
        async with await self._links.open_stream(member, purpose=StreamPurpose.EVENTS) as stream:
            await stream.send(EventsQuery())
            while True:
                with trio.fail_after(SILENCE_SECONDS):
                    message = await stream.receive()
                if message is None:
                    return heard
                if not isinstance(message, EventsReport):
                    raise WireError(f"expected an EventsReport, found {type(message).__name__}")
                heard = True
                for event in events_untrusted(message.lines, member):
                    moved = event.at + shift.found(event.at, self._reporter.now())
                    self._take(attrs.evolve(event, at=moved))

    def _take(self, event: Event) -> None:
        """Pass on an event of a member, as heard from it now."""
        member = event.member
        self._note(event)
        # A message that has come is not written anew: that would cost as much as reading it.
        body = f'{event.body[:-1]},"by":{member}}}' if len(event.body) > len("{}") else ""
        fields = {**event.fields, "by": member}
        # Our own status sends on what waits: five packets a second to each that watches, not five
        # for each member, and one for each batch that a slow disk holds up.
        own_status = event.kind == "status" and member == self._reporter.member_id
        hurried = own_status or event.kind not in {"status", "batch"}
        self._feed.publish(attrs.evolve(event, fields=fields, body=body), hurried=hurried)

    def _note(self, event: Event) -> None:
        """Keep what a keyframe needs: the last status of a member, and its last steps."""
        heard = self._heard.setdefault(event.member, _Heard(None, -math.inf))
        match event.kind:
            case "keyframe":
                picture = event.fields["members"][str(event.member)]
                heard.status, heard.at = picture["status"], trio.current_time()
                heard.steps.clear()
                for step in picture["steps"]:
                    at = event.at - step["ago"]
                    heard.steps.append(Event(at, event.member, "enters", step))
            case "status":
                heard.status, heard.at = event.fields.get("status"), trio.current_time()
            case "enters":
                heard.steps.append(event)
            case _:
                pass

    def _keyframe(self) -> Event:
        own, now = self._reporter.member_id, trio.current_time()
        members = {
            str(member): {
                "status": heard.status,
                "by": member,
                "heard_ms": round(1000 * (now - heard.at)),
                "steps": heard.steps_as_of(self._reporter.now()),
            }
            for member, heard in sorted(self._heard.items())
            if heard.status is not None
        }
        members[str(own)] = {
            "status": self._reporter.status_now(),
            "by": own,
            "heard_ms": 0,
            "steps": self._reporter.kept_steps(),
        }
        return Event(self._reporter.now(), own, "keyframe", {"members": members, "by": own})
