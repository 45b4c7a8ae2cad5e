"""Where requests of clients wait, and how they reach the leader.

On the leader they go straight into its log. On a follower they are forwarded over the link to
the leader. While there is no leader, or too much waits for it already, they are parked, for a few
seconds at most; a parked request was never sent, or came back untouched, so it can always be
dropped or sent anew. Once a command has left for a leader that is then lost, nobody can say what
became of it, and its error says so. A query can be asked anew, but not of one leader after the
other: it might be what they were lost to.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Never

import trio

from ...errors import NoLeaderError, OversizedRequestError, UnknownOutcomeError
from ...transport import ForwardReply, ForwardRequest
from ..protocol.role import Signal
from .forwarding import SMALL_BYTES, Answer, ForwardedRequest, ForwardStatus, error_of
from .request import Request, RequestKind, still_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from ...errors import RequestError
    from ...transport import Links
    from ..leader.leadership import Leadership
    from ..state import MemberState

MAX_PARKED_BYTES = 256 << 20
MAX_FORWARDED = 65536
MAX_FORWARDED_BYTES = 256 << 20

# How often a query is asked anew after it was lost together with its leader or the link.
MAX_LOSSES = 1

# How many parked requests are sent for each reply that comes, and at each look; while a leader has
# no room for our replies it sends them all back.
SENT_PER_REPLY = 2
SENT_PER_LOOK = 64

_deadline = attrgetter("deadline")


class Requests:
    """The requests of one member's clients, and those that other members forward to it.

    Args:
        state: of the member.
        links: to the leader.
        rng: for the first number of a forwarded request.
        found: takes an operator's request to found the cluster; returns whether it is one.
    """

    def __init__(
        self,
        state: MemberState,
        links: Links,
        rng: Random,
        found: Callable[[bytes, Callable[[bytes | RequestError], None]], bool],
    ) -> None:
        self._state = state
        self._links = links
        self._found = found
        self._now = trio.lowlevel.current_clock().current_time  # each request asks
        self._leadership: Leadership | None = None
        self._leader: int | None = None
        self._parked: list[Request] = []  # by their deadlines, so those that wait longest first
        self._parked_bytes = 0
        self._closed = False
        # To whom, and what by its number.
        self._forwarded: dict[int, dict[int, Request]] = {peer: {} for peer in self._state.peers}
        self._forwarded_bytes = 0
        # Until when, from whom, and up to which number answers may come though we failed to follow.
        self._awaited: deque[tuple[float, int, int]] = deque()
        self._begun = Signal()  # something waits that may have to be ended, or sent again
        # Not from 0: a late reply to what an earlier process forwarded must not answer this one's.
        self._next_id = rng.getrandbits(62)

    @property
    def parked(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._parked)

    @property
    def forwarded(self) -> int:
        """Number of requests that wait for a leader's answer."""
        return sum(map(len, self._forwarded.values()))

    @property
    def leads(self) -> bool:
        """Whether this member leads and takes requests."""
        return self._leadership is not None

    def submit(self, request: Request) -> None:
        """Take a request: into the log, to the leader, or among the parked ones."""
        if not self._admitted([request]):
            return
        if self._leadership is not None:
            self._leadership.submit(request)
        elif isinstance(request, ForwardedRequest):
            request.done(NoLeaderError("not the leader"))
        elif self._leader is None or not self._forward(request, self._leader):
            self._park(request)

    def submit_all(self, requests: list[Request]) -> None:
        """Take what clients have sent in one turn of the loop."""
        if self._leadership is None:
            for request in requests:
                self.submit(request)
        else:
            self._leadership.submit_all(self._admitted(requests))

    def _admitted(self, requests: list[Request]) -> list[Request]:
        """Give each request its deadline; refuse those that are too large, and return the rest."""
        limits = self._state.config.limits
        deadline, most = self._now() + limits.park_seconds, limits.max_request_bytes
        admitted: list[Request] = []
        for request in requests:
            if not request.deadline:
                request.deadline = deadline
            if (size := len(request.payload)) > most:
                words = f"a request of {size} bytes; this cluster takes {most}"
                request.done(OversizedRequestError(words))
            else:
                admitted.append(request)
        return admitted

    def _forward(self, request: Request, leader: int) -> bool:
        size, forwarded = len(request.payload), self._forwarded[leader]
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
        )
        links = self._links
        if size <= SMALL_BYTES:
            sent = links.send(leader, message)
        else:
            sent = links.has_room(leader) and links.send_bulk(leader, message)
        if sent:
            forwarded[self._next_id] = request
            self._forwarded_bytes += size
            self._begun.notify()
        return sent

    def _park(self, request: Request) -> None:
        control = request.kind is RequestKind.CONTROL
        if control and self._found(request.payload, request.done):
            return
        if self._closed:
            request.done(NoLeaderError("this member stops; nothing was done"))
            return
        if self._parked_bytes + len(request.payload) > MAX_PARKED_BYTES:
            request.done(NoLeaderError("no leader, and too many requests wait for one already"))
            return
        insort(self._parked, request, key=_deadline)
        self._parked_bytes += len(request.payload)
        self._begun.notify()

    # --- who leads --------------------------------------------------------------------------------

    def lead(self, leadership: Leadership) -> None:
        """This member leads."""
        self._leadership, self._leader = leadership, None
        self._release(len(self._parked))

    def follow(self, leader: int) -> None:
        """Another member leads."""
        self._leadership, self._leader = None, leader
        self._release(len(self._parked))

    def cede(self) -> None:
        """We stop leading in order: what is not in the log goes back to where it came from.

        Who is asked twice to stop has done so already.
        """
        if self._leadership is not None:
            unsent, self._leadership = self._leadership.unsent(), None
            self._submit_again(unsent)

    def close(self) -> None:
        """The member stops: nothing that is parked will find a leader through it."""
        self._closed = True
        self._release(len(self._parked))

    def lost_leadership(self, leadership: Leadership) -> None:
        """This member does not lead any more: its clients learn it at once."""
        self._leadership = None
        self._submit_again(leadership.surrender())

    def lost_leader(self, *, answers: bool) -> None:
        """We do not follow our leader any more, and what was on its way is lost with it.

        Unless it answers: because it stopped in order, or because it lives and the failure is ours.
        """
        leader, self._leader = self._leader, None
        if leader is None:
            return
        if answers:
            until = trio.current_time() + self._state.config.limits.park_seconds
            self._awaited.append((until, leader, self._next_id))
        else:
            self._abandon(leader)

    def relinked(self, member: int) -> None:
        """Our link to a member is new: what was under way on the old one may never arrive."""
        self._abandon(member)

    def unlinked(self, member: int) -> None:
        """A member's link to us is over: nothing is answered any more."""
        if member == self._leader:
            self._leader = None  # nor asked, until its role has ended
        self._abandon(member)

    def _abandon(self, member: int, last: float = math.inf) -> None:
        """Give up what was forwarded, up to a number.

        A query is asked anew, all else has an unknown outcome.
        """
        forwarded = self._forwarded[member]
        lost = [forwarded.pop(number) for number in [*forwarded] if number <= last]
        self._forwarded_bytes -= sum(len(request.payload) for request in lost)
        for request in still_wanted(lost):
            request.losses += 1
            if request.kind is not RequestKind.QUERY:
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
                self.submit(request)

    # --- again ------------------------------------------------------------------------------------

    async def run(self) -> Never:
        """Again and again end what has waited too long, and try to send the rest."""
        while True:
            if not (self._parked or any(self._forwarded.values())):
                await self._begun.wait()
            await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
            for member in self._state.peers:
                if not self._links.connected(member):
                    self._abandon(member)  # it may still be heard, and our link not come back
            while self._awaited and self._awaited[0][0] <= trio.current_time():
                _, member, last = self._awaited.popleft()
                self._abandon(member, last)
            self._end_overdue()
            self._release(SENT_PER_LOOK)

    def _end_overdue(self) -> None:
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
        """Send so many of the parked ones, at most."""
        released, self._parked = self._parked[:most], self._parked[most:]
        self._parked_bytes -= sum(len(request.payload) for request in released)
        self._submit_again(released)

    def _submit_again(self, requests: Iterable[Request]) -> None:
        for request in still_wanted(requests):
            self.submit(request)

    # --- between members --------------------------------------------------------------------------

    def on_forward_request(self, sender: int, message: ForwardRequest) -> None:
        """Another member forwards a request of one of its clients."""
        links = self._links
        if message.kind in set(RequestKind):
            self.submit(ForwardedRequest(links, sender, message))
        else:  # of a newer version
            Answer(links, sender, message.request_id, RequestKind.QUERY).tell(
                ForwardStatus.REFUSED,
                b"the leader knows no requests of kind %d; nothing was done" % message.kind,
            )

    def on_forward_reply(self, sender: int, message: ForwardReply) -> None:
        """The leader answers a forwarded request."""
        request = self._forwarded[sender].pop(message.request_id, None)
        if request is None:
            return
        self._forwarded_bytes -= len(request.payload)
        if message.status == ForwardStatus.REPLY:
            if self._parked and (self.leads or self._leader is not None):
                self._release(SENT_PER_REPLY)  # before this client asks for more
            request.done(message.payload)
        elif message.status == ForwardStatus.RETRY:
            for each in still_wanted((request,)):
                self._park(each)
        else:
            request.done(error_of(message))
