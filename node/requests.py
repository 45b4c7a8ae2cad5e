"""Where requests of clients wait, and how they reach the leader.

On the leader they go straight into its log. On a follower they are forwarded over the link to
the leader. While there is no leader they are parked, for a few seconds at most; a parked request
was never sent, so it can always be dropped or sent anew. Once a command has left for a leader
that is then lost, nobody can say what became of it, and its error says so.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Never

import trio

from ..errors import (
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from ..transport import MAX_BATCH_BYTES, ForwardReply, ForwardRequest
from .gateway import Request, RequestKind
from .roles import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .core import Core
    from .leadership import Leadership

MAX_PARKED_BYTES = 256 << 20
MAX_FORWARDED = 65536


class ForwardStatus(IntEnum):
    """How a forwarded request ended at the other member."""

    REPLY = 0
    RETRY = 1
    NO_LEADER = 2
    UNKNOWN = 3
    OVERSIZED = 4
    REFUSED = 5


_ERRORS: dict[int, type[RequestError]] = {
    ForwardStatus.NO_LEADER: NoLeaderError,
    ForwardStatus.UNKNOWN: UnknownOutcomeError,
    ForwardStatus.OVERSIZED: OversizedRequestError,
    ForwardStatus.REFUSED: RefusedError,
}


class Requests:
    """The requests of one member's clients, and those that other members forward to it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._leadership: Leadership | None = None
        self._leader: int | None = None
        self._parked: deque[Request] = deque()
        self._parked_bytes = 0
        self._closed = False
        self._forwarded: dict[int, tuple[int, Request]] = {}  # by id: to whom, and what
        # Not from 0: a late reply to what an earlier process forwarded must not answer this one's.
        self._next_id = core.rng.getrandbits(62)
        self._changed = Signal()

    @property
    def parked(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._parked)

    @property
    def leads(self) -> bool:
        """Whether this member leads and takes requests."""
        return self._leadership is not None

    def submit(self, request: Request) -> None:
        """Take a request: into the log, to the leader, or among the parked ones."""
        if not request.deadline:
            request.deadline = trio.current_time() + self._core.config.limits.park_seconds
        if self._leadership is not None:
            self._leadership.submit(request)
        elif request.forwarded:
            request.done(NoLeaderError("not the leader"))
        elif self._leader is None or not self._forward(request, self._leader):
            self._park(request)

    def _forward(self, request: Request, leader: int) -> bool:
        if len(self._forwarded) >= MAX_FORWARDED:
            return False
        self._next_id += 1
        message = ForwardRequest(self._next_id, request.kind, request.flags, request.payload)
        if not self._core.send(leader, message):
            return False
        self._forwarded[self._next_id] = leader, request
        return True

    def _park(self, request: Request) -> None:
        if self._closed:
            request.done(NoLeaderError("this member stops; nothing was done"))
            return
        if self._parked_bytes + len(request.payload) > MAX_PARKED_BYTES:
            request.done(NoLeaderError("no leader, and too many requests wait for one already"))
            return
        self._parked.append(request)
        self._parked_bytes += len(request.payload)
        self._changed.notify()

    # --- who leads --------------------------------------------------------------------------------

    def lead(self, leadership: Leadership) -> None:
        """This member leads."""
        self._leadership, self._leader = leadership, None
        self._release()

    def follow(self, leader: int) -> None:
        """Another member leads."""
        self._leadership, self._leader = None, leader
        self._release()

    def cede(self) -> None:
        """We stop leading in order: what is not in the log goes back to where it came from."""
        assert self._leadership is not None
        unsent, self._leadership = self._leadership.unsent(), None
        self._submit_again(unsent)

    def close(self) -> None:
        """The member stops: nothing that is parked will find a leader through it."""
        self._closed = True
        parked, self._parked, self._parked_bytes = self._parked, deque(), 0
        self._submit_again(parked)

    def lost_leadership(self, leadership: Leadership) -> None:
        """This member does not lead any more: its clients learn it at once."""
        self._leadership = None
        self._submit_again(leadership.surrender())

    def _submit_again(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if not request.cancelled:
                self.submit(request)

    def lost_leader(self, *, in_order: bool) -> None:
        """The leader is lost, and with it what was on its way.

        One that stopped in order answers before it goes.
        """
        leader, self._leader = self._leader, None
        if leader is not None and not in_order:
            self._abandon(leader)

    def relinked(self, member: int) -> None:
        """Our link to a member is new: what was under way on the old one may never arrive."""
        self._abandon(member)

    def unlinked(self, member: int) -> None:
        """A member's link to us is over: nothing is answered any more."""
        if member != self._leader:  # else its role ends, and we hear of that
            self._abandon(member)

    def _abandon(self, member: int) -> None:
        """Give up what was forwarded: reads are asked anew, commands have an unknown outcome."""
        lost = [key for key, (to, _) in self._forwarded.items() if to == member]
        for key in lost:
            _, request = self._forwarded.pop(key)
            if request.kind is RequestKind.QUERY:
                self.submit(request)
            else:
                request.done(
                    UnknownOutcomeError(
                        "the link to the leader was lost with this write on its way; it may or "
                        "may not take effect"
                    )
                )

    def _release(self) -> None:
        """Send what was parked."""
        parked, self._parked, self._parked_bytes = self._parked, deque(), 0
        self._submit_again(parked)

    async def run(self) -> Never:
        """End parked requests whose time is over, and try again to send the others."""
        while True:
            if not self._parked:
                await self._changed.wait()
            await trio.sleep(self._core.timeouts.leader_heartbeat_interval)
            now = trio.current_time()
            overdue = [each for each in self._parked if each.deadline <= now]
            for request in overdue:
                request.done(
                    NoLeaderError(
                        f"no leader within {self._core.config.limits.park_seconds:g} s; "
                        "nothing was done"
                    )
                )
                request.cancel()
            self._release()

    # --- between members --------------------------------------------------------------------------

    def on_forward_request(self, sender: int, message: ForwardRequest) -> None:
        """Another member forwards a request of one of its clients."""
        if message.kind not in set(RequestKind):
            return  # of a newer version; its sender will give up by itself

        def done(result: bytes | RequestError) -> None:
            status, payload = ForwardStatus.REPLY, b""
            if isinstance(result, bytes):
                payload = result
            else:
                status, payload = _status_of(result), str(result).encode()
            if len(payload) > MAX_BATCH_BYTES:  # what a frame carries; a command has taken effect
                status, payload = ForwardStatus.UNKNOWN, b"the reply is too large to be forwarded"
            self._core.send(sender, ForwardReply(message.request_id, status, payload))

        self.submit(
            Request(RequestKind(message.kind), message.payload, message.flags, done, forwarded=True)
        )

    def on_forward_reply(self, sender: int, message: ForwardReply) -> None:
        """The leader answers a forwarded request."""
        _, request = self._forwarded.pop(message.request_id, (sender, None))
        if request is None or request.cancelled:
            return
        if message.status == ForwardStatus.REPLY:
            request.done(message.payload)
        elif message.status == ForwardStatus.RETRY:
            self._park(request)
        else:
            kind = _ERRORS.get(message.status, UnknownOutcomeError)
            request.done(kind(message.payload.decode(errors="replace")))


def _status_of(error: RequestError) -> ForwardStatus:
    """The status by which an error travels; an unsent one is tried again where it came from."""
    if isinstance(error, NoLeaderError):
        return ForwardStatus.RETRY
    if isinstance(error, OversizedRequestError):
        return ForwardStatus.OVERSIZED
    if isinstance(error, RefusedError):
        return ForwardStatus.REFUSED
    return ForwardStatus.UNKNOWN
