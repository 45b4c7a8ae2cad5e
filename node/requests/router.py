"""Routes requests of clients: into our own log, to the leader, or into the parking lot.

While we lead, a request goes straight into the log. While we follow, it is forwarded over the link
to the leader. Without a leader, or if too much waits for it, the request is parked for a few
seconds.

What is safe to repeat decides everything else:

- A parked request was never sent, or came back untouched, so it can be dropped or sent at any time.
- A command that was sent to a leader which is then lost has an unknown outcome; its error says so.
- A query has no effect and can be sent again, but only once: it may be the cause of the loss.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Never, Protocol

import trio

from ...errors import NoLeaderError, OversizedRequestError, UnknownOutcomeError
from ...transport import ForwardReply, ForwardRequest
from ..protocol.signal import Signal
from .forwarding import SMALL_BYTES, ForwardedRequest, ForwardStatus, ReplySender, error_of
from .request import CONFIRM, QUERY, Request, RequestKind, still_allowed, still_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from ...errors import RequestError
    from ...transport import Links
    from ..state import MemberState

    class TakesRequests(Protocol):
        """The role of a leader, as far as requests are concerned; see `Leadership`."""

        def submit(self, request: Request) -> None:
            """Take a request."""
            ...

        def submit_all(self, requests: list[Request]) -> None:
            """Take the requests of one turn of the event loop."""
            ...

        def withdraw_unsent(self) -> list[Request]:
            """Remove and return the requests that are not in the log."""
            ...

        def surrender(self) -> list[Request]:
            """End all requests in flight; return those that are not in the log."""
            ...


MAX_PARKED_BYTES = 256 << 20
"""Payload bytes of parked requests. If smaller, an election refuses large requests. If larger, an
election takes more memory."""

MAX_FORWARDED = 65536
"""Requests that wait for a leader's reply. If smaller, many clients of a follower wait for each
other. If larger, small replies may overflow the queue of a link."""

MAX_FORWARDED_BYTES = 256 << 20
"""Payload bytes of those requests; bounds memory as `MAX_PARKED_BYTES` does."""

MAX_LOSSES = 1
"""How often a query is sent again after its leader was lost. If 0, each change of leader fails
queries. If larger, a query that kills a leader kills more of them."""

SENT_PER_REPLY = 2
"""Parked requests that are sent for each reply. If 1, the parking lot never gets shorter while
clients go on. If larger, a leader without room for our replies sends more of them back."""

SENT_PER_LOOK = 64
"""Parked requests that are sent at each heartbeat interval; the same trade-off."""

_deadline = attrgetter("deadline")


class Requests:
    """The requests of one member's clients, and those that other members forward to it.

    Args:
        state: of the member.
        links: to the other members.
        rng: draws the first request id.
        found: takes an operator's "found" while this member waits for a new cluster; returns
            whether it did.
        rules: returns the version of the service's rules, as they are applied here; 0 for none.
    """

    def __init__(
        self,
        state: MemberState,
        links: Links,
        rng: Random,
        found: Callable[[bytes, Callable[[bytes | RequestError], None]], bool],
        rules: Callable[[], int],
    ) -> None:
        self._state = state
        self._links = links
        self._found = found
        self._rules = rules
        self._now = trio.lowlevel.current_clock().current_time  # each request asks
        self._leadership: TakesRequests | None = None
        self._is_elected = False
        self._leader: int | None = None
        self._parked: list[Request] = []  # ascending by deadline
        self._parked_bytes = 0
        self._closed = False
        # By leader, then by request id.
        self._forwarded = defaultdict[int, dict[int, Request]](dict)
        self._forwarded_bytes = 0
        # (deadline, former leader, last request id): leaders that we left, and that will answer.
        self._awaited: deque[tuple[float, int, int]] = deque()
        self._begun = Signal()  # something waits that may time out or be sent again
        # Random, not 0: a late reply to a request of an earlier process must not answer one of
        # ours.
        self._next_id = rng.getrandbits(62)

    @property
    def parked(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._parked)

    @property
    def forwarded(self) -> int:
        """Number of requests that wait for a leader's reply."""
        return sum(map(len, self._forwarded.values()))

    @property
    def leads(self) -> bool:
        """Whether this member leads and takes requests."""
        return self._leadership is not None

    def submit(self, request: Request) -> None:
        """Take a request: put it into the log, send it to the leader, or park it."""
        if not self._admitted([request]):
            return
        if self._leadership is not None:
            if isinstance(request, ForwardedRequest) and request.rules:
                self._take_if_allowed(request, self._leadership)
            else:
                self._leadership.submit(request)
        elif isinstance(request, ForwardedRequest):
            if self._is_elected:
                # Followers are ready before we lead. If they had to try again, their clients would
                # wait for a whole heartbeat interval.
                self._park(request)
            else:
                # Its sender parks it and tries again; to forward it further could be endless.
                request.done(NoLeaderError("not the leader"))
        elif self._leader is None or not self._forward(request, self._leader):
            self._park(request)

    def _take_if_allowed(self, request: ForwardedRequest, leadership: TakesRequests) -> None:
        """Take a request, unless rules have changed since the other member has allowed it."""
        # The other member may be cut off from the log, and this request may have been on its way
        # for long. It is told to try again, and checks first.
        if request.rules < self._rules():
            request.done(NoLeaderError("the rules have changed since it was allowed"))
        else:
            leadership.submit(request)

    def submit_all(self, requests: list[Request]) -> None:
        """Take all requests that clients have sent in one turn of the event loop."""
        if self._leadership is None:
            for request in requests:
                self.submit(request)
        else:
            self._leadership.submit_all(self._admitted(requests))

    def _admitted(self, requests: list[Request]) -> list[Request]:
        """Set deadlines, and refuse requests that can never be taken; return the rest."""
        if self._state.terminated.is_set():
            # The leader appends nothing any more, so they would wait for as long as it runs.
            for request in requests:
                request.done(NoLeaderError("the cluster has been stopped; nothing was done"))
            return []
        limits = self._state.config.limits
        deadline, most = self._now() + limits.park_seconds, limits.max_request_bytes
        admitted: list[Request] = []
        for request in requests:
            # A request that returns to be sent again keeps its first deadline.
            if not request.deadline:
                request.deadline = deadline
            if (size := len(request.payload)) > most:
                words = (
                    f"a request of {size} bytes: expected at most {most}; "
                    "raise limits.max_request_bytes on all members"
                )
                request.done(OversizedRequestError(words))
            else:
                admitted.append(request)
        return admitted

    def _forward(self, request: Request, leader: int) -> bool:
        """Send a request to the leader; False if it or its link has no room."""
        size, forwarded = len(request.payload), self._forwarded[leader]
        # Beyond this we park: the queue of the link would only take memory on both sides.
        if len(forwarded) >= MAX_FORWARDED or self._forwarded_bytes + size > MAX_FORWARDED_BYTES:
            return False
        self._next_id += 1
        message = ForwardRequest(
            self._next_id,
            request.kind,
            request.flags,
            request.payload,
            request.session,
            request.sequence,
            request.principal,
            request.rules,
        )
        links = self._links
        # Large requests go behind all other messages of the link: heartbeats must not wait for
        # them.
        if size <= SMALL_BYTES:
            sent = links.send(leader, message)
        else:
            sent = links.has_room(leader) and links.send_bulk(leader, message)
        # Noted only if it has left: a request that was not sent may be parked, and is never in
        # doubt.
        if sent:
            counts = self._state.counts
            counts.forwarded += 1
            counts.reads["forwarded"] += request.kind is RequestKind.QUERY
            forwarded[self._next_id] = request
            self._forwarded_bytes += size
            self._begun.notify()
        return sent

    def _park(self, request: Request) -> None:
        """Keep a request until there is a leader, or until its deadline."""
        control = request.kind is RequestKind.CONTROL
        if control and self._found(request.payload, request.done):
            return
        if self._closed:
            request.done(NoLeaderError("this member is stopping; nothing was done"))
            return
        if self._parked_bytes + len(request.payload) > MAX_PARKED_BYTES:
            request.done(
                NoLeaderError(
                    f"no leader, and parked requests fill {MAX_PARKED_BYTES} bytes already; "
                    "nothing was done"
                )
            )
            return
        # By deadline: a request that comes back keeps its first one, and must not wait behind newer
        # ones.
        insort(self._parked, request, key=_deadline)
        self._parked_bytes += len(request.payload)
        self._begun.notify()

    # --- the leader -------------------------------------------------------------------------------

    def elected(self) -> None:
        """Note that this member begins its term, and is about to lead."""
        self._is_elected = True

    def lead(self, leadership: TakesRequests) -> None:
        """Note that this member leads (called by `election.leader_states`)."""
        # Before the release, which submits to whatever is noted here.
        self._leadership, self._leader, self._is_elected = leadership, None, False
        self._release(len(self._parked))

    def follow(self, leader: int) -> None:
        """Note that another member leads (called by `election.follower_states`)."""
        self._leadership, self._leader = None, leader
        self._release(len(self._parked))

    def cede(self) -> None:
        """Stop taking requests into our log, in order; submit again what is not in the log.

        Calling it twice is harmless.
        """
        if self._leadership is not None:
            # Forgotten before they are submitted again, or they would come straight back.
            unsent, self._leadership = self._leadership.withdraw_unsent(), None
            self._submit_again(unsent)

    def close(self) -> None:
        """Note that the member stops: parked requests will find no leader through it."""
        self._closed = True
        # Submitted once more, each would be parked again, and `_park` fails it from now on.
        self._release(len(self._parked))

    def lost_leadership(self, leadership: TakesRequests) -> None:
        """Note that this member leads no more; end what is in flight, and submit the rest again."""
        # Before `surrender`: its replies let clients send more, which must not go to an ended
        # leadership.
        self._leadership, self._is_elected = None, False
        self._submit_again(leadership.surrender())
        # Those that were forwarded to us go back to their members, if we never came to lead.
        self._release(len(self._parked))

    def lost_leader(self, *, answers: bool) -> None:
        """Note that we follow our leader no more.

        Args:
            answers: the leader still answers what was forwarded to it, because it stopped in order
                or because only we failed. Otherwise those requests are lost.
        """
        leader, self._leader = self._leader, None
        if leader is None:
            return
        if answers:
            until = trio.current_time() + self._state.config.limits.park_seconds
            # Not for ever: the old leader may crash before it answers. Later ids belong to a later
            # role, even under the same leader.
            self._awaited.append((until, leader, self._next_id))
        else:
            self._abandon(leader)

    def relinked(self, member: int) -> None:
        """Note that our link to a member is new: requests on the old one may never arrive."""
        self._abandon(member)

    def unlinked(self, member: int) -> None:
        """Note that a member's link to us has ended: no replies come from it any more."""
        if member == self._leader:
            # Forward nothing to it either, until our role has ended.
            self._leader = None
        self._abandon(member)

    def _abandon(self, member: int, last: float = math.inf) -> None:
        """Give up requests forwarded to a member, with ids up to `last`.

        A query is sent again; everything else has an unknown outcome.
        """
        forwarded = self._forwarded.get(member, {})
        # Taken out before any callback runs: a client may submit again from it, and change this
        # table.
        lost = [forwarded.pop(number) for number in [*forwarded] if number <= last]
        if not forwarded:
            # Members come and go, and each of their ids would leave a table here.
            self._forwarded.pop(member, None)
        self._forwarded_bytes -= sum(len(request.payload) for request in lost)
        for request in still_wanted(lost):
            # A query that makes leaders crash must not be carried from one to the next.
            request.losses += 1
            # I-33, I-34: the leader may have logged it. To send it again could apply it twice.
            if request.kind not in {QUERY, CONFIRM}:
                self._state.counts.unknown_outcomes += 1
                request.done(
                    UnknownOutcomeError(
                        "the link to the leader was lost with this request on its way; it may or "
                        "may not take effect"
                    )
                )
            elif request.losses > MAX_LOSSES:
                request.done(
                    NoLeaderError(
                        f"the leader was lost {request.losses} times with this query on its way; "
                        "nothing was done"
                    )
                )
            else:
                self._submit_again((request,))

    # --- again ------------------------------------------------------------------------------------

    async def run(self) -> Never:
        """End requests that are overdue, and retry the rest; until cancelled."""
        while True:
            if not (self._parked or any(self._forwarded.values())):
                await self._begun.wait()
            await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
            for member in [*self._forwarded]:
                if not self._links.connected(member):
                    # Its link to us may be up although ours to it does not come back.
                    self._abandon(member)
            while self._awaited and self._awaited[0][0] <= trio.current_time():
                _, member, last = self._awaited.popleft()
                self._abandon(member, last)
            # Before the release: a request whose client has given up must not be sent any more.
            self._end_overdue()
            self._release(SENT_PER_LOOK)

    def _end_overdue(self) -> None:
        """Fail the parked requests whose deadline has passed."""
        parked = [*still_wanted(self._parked)]
        count = bisect_right(parked, trio.current_time(), key=_deadline)
        overdue, self._parked = parked[:count], parked[count:]
        self._parked_bytes = sum(len(request.payload) for request in self._parked)
        for request in overdue:
            request.done(
                NoLeaderError(
                    f"no leader took it within {self._state.config.limits.park_seconds:g} s; "
                    "nothing was done"
                )
            )

    def _release(self, most: int) -> None:
        """Send up to `most` parked requests, the earliest deadlines first."""
        # Cut off first: what finds no room is parked again, and a loop over the list would not end.
        released, self._parked = self._parked[:most], self._parked[most:]
        self._parked_bytes -= sum(len(request.payload) for request in released)
        self._submit_again(released)

    def _submit_again(self, requests: Iterable[Request]) -> None:
        for request in still_allowed(requests):
            self.submit(request)

    # --- between members --------------------------------------------------------------------------

    def on_forward_request(self, sender: int, message: ForwardRequest) -> None:
        """Take a request that another member forwards for one of its clients."""
        links = self._links
        if self._state.membership.is_removed(sender):
            # Its link to us ends once that is applied, and an answer that is due then would be
            # lost: its client could not know whether the command took effect.
            ReplySender(links, sender, message.request_id, RequestKind.QUERY).send_small(
                ForwardStatus.RETRY
            )
        elif message.kind in set(RequestKind):
            self.submit(ForwardedRequest(links, sender, message))
        else:
            # A kind of a newer version. `QUERY` only fills the argument: `send_small` ignores it.
            ReplySender(links, sender, message.request_id, RequestKind.QUERY).send_small(
                ForwardStatus.REFUSED,
                b"the leader knows no requests of kind %d; nothing was done" % message.kind,
            )

    def on_forward_reply(self, sender: int, message: ForwardReply) -> None:
        """Handle the leader's reply to a forwarded request."""
        # By sender: a member answers only what was forwarded to it, whatever id it names.
        request = self._forwarded.get(sender, {}).pop(message.request_id, None)
        # It was abandoned before: its client has an error, or it was sent again.
        if request is None:
            return
        self._forwarded_bytes -= len(request.payload)
        if message.status == ForwardStatus.REPLY:
            if self._parked and (self.leads or self._leader is not None):
                # Before the callback: its client at once sends another one, which would overtake.
                self._release(SENT_PER_REPLY)
            request.done(message.payload)
        elif message.status == ForwardStatus.RETRY:
            # Parked, not sent: the member that answered does not lead, or has no room, and would
            # say so again.
            for each in still_wanted((request,)):
                self._park(each)
        else:
            request.done(error_of(message))
