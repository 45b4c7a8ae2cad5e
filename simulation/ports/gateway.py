"""The gateway of a simulated port: numbers commands, and takes the places off the replies.

The members' services are watched (:mod:`..watching.watched`): they expect a number in front of each
command, and put the place in the log in front of each reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import NoLeaderError, RefusedError
from ...node.requests.request import Request, RequestKind
from ..watching.facts import Answered, Asked, Refused
from ..watching.watched import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...errors import RequestError
    from ...node import Member
    from ...node.requests.journey import Latencies
    from ...node.requests.status import NodeStatus, Topology
    from ..door import Serials
    from ..watching.facts import Fact


class _Numbered(Request):
    """A request of a port as its member sees it.

    Args:
        own: the port's; whether it is wanted, and may be sent, is decided there.
        serial: its number.
        gateway: has numbered it.
    """

    __slots__ = ("_gateway", "_own", "_serial")

    def __init__(self, own: Request, serial: int, gateway: NumberingGateway) -> None:
        self._own, self._serial, self._gateway = own, serial, gateway
        deadline = own.deadline
        command = own.kind is RequestKind.COMMAND
        payload = seal(serial, own.payload) if command else own.payload
        super().__init__(own.kind, payload, own.flags, self._finish)
        self.deadline = deadline
        self.session, self.sequence = own.session, own.sequence
        self.principal, self.rules = own.principal, own.rules

    # These three belong to the port's request, which a client may cancel or have checked again. The
    # constructor of the base class sets them, which must change nothing.

    @property
    def cancelled(self) -> bool:
        """See `Request`."""
        return self._own.cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._own.cancelled = self._own.cancelled or value

    @property
    def deadline(self) -> float:
        """See `Request`."""
        return self._own.deadline

    @deadline.setter
    def deadline(self, value: float) -> None:
        self._own.deadline = value

    @property
    def recheck(self) -> Callable[[Request], Sequence[Request]] | None:
        """See `Request`."""
        own = self._own
        if (recheck := own.recheck) is None:
            return None

        def again(_request: Request) -> Sequence[Request]:
            own.recheck = None
            if allowed := recheck(own):
                self.rules = own.rules
                return [self for _ in allowed]
            # Denied now, or sent later under another number.
            self._gateway.tell(Refused(self._serial))
            return ()

        return again

    @recheck.setter
    def recheck(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, value: Callable[[Request], Sequence[Request]] | None
    ) -> None:
        """Ignore that: `again` does it."""

    def _finish(self, result: bytes | RequestError) -> None:
        if self.kind in {RequestKind.CONTROL, RequestKind.CONFIRM}:
            self._own.done(result)
        elif isinstance(result, bytes):
            point, reply = unseal(result)
            fact = Answered(self._serial, point, self.kind is RequestKind.QUERY)
            # The client is not there yet, and nor is the observer: we are called by the applier.
            self._gateway.later(lambda: self._gateway.tell(fact))
            self._own.done(reply)
        else:
            if isinstance(result, NoLeaderError | RefusedError):
                self._gateway.tell(Refused(self._serial))
            self._own.done(result)


class NumberingGateway:
    """A member, as its port uses it.

    Args:
        member: the member.
        serials: gives the numbers.
        tell: receives the facts.

    Attributes:
        later: calls something in a later turn of the port.
    """

    def __init__(self, member: Member, serials: Serials, tell: Callable[[Fact], None]) -> None:
        self._member = member
        self._serials = serials
        self.tell = tell
        self.later: Callable[[Callable[[], None]], None] = lambda call: call()

    def submit(self, request: Request) -> None:
        """See `Gateway`."""
        self._member.submit(self._numbered(request))

    def submit_all(self, requests: list[Request]) -> None:
        """See `Gateway`."""
        self._member.submit_all([self._numbered(request) for request in requests])

    def _numbered(self, request: Request) -> Request:
        serial = self._serials.next()
        if request.kind not in {RequestKind.CONTROL, RequestKind.CONFIRM}:
            command = request.kind is RequestKind.COMMAND
            self.tell(Asked(serial, request.principal if command else 0))
        return _Numbered(request, serial, self)

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """See `Gateway`."""
        return unseal(self._member.stale_query(payload, flags))[1]

    def now_ms(self) -> int:
        """See `Gateway`."""
        return self._member.now_ms()

    @property
    def topology(self) -> Topology:
        """See `Gateway`."""
        return self._member.topology

    def own_order(self, words: bytes) -> bytes:
        """See `Gateway`."""
        return self._member.own_order(words)

    def recent(self, since: int) -> dict[str, Any]:
        """See `Gateway`."""
        return self._member.recent(since)

    def latencies(self) -> Latencies:
        """See `Gateway`."""
        return self._member.latencies()

    def status(self) -> NodeStatus:
        """See `Gateway`."""
        return self._member.status()
