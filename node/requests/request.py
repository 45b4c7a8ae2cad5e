"""A request of a client on its way through a member.

A request is a plain object with a callback, not a task, because a member handles tens of thousands
of them a second. It ends in one of three ways:

- It never left this member, because no leader was found in time:
  :class:`~quorate.errors.NoLeaderError`.
- It was appended or forwarded, and then lost: :class:`~quorate.errors.UnknownOutcomeError`.
- It was committed and applied, or read: the reply.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ...errors import RequestError


Stamp: TypeAlias = tuple[int, int]
"""Client session and sequence number of a command."""

UNSTAMPED: Final[Stamp] = (0, 0)
"""The stamp of a command without a session."""


class RequestKind(enum.IntEnum):
    """Where a request goes: into the log, to the applied state, or to the leader itself."""

    COMMAND = 0
    QUERY = 1
    CONTROL = 2
    CONFIRM = 3
    """A read of nothing: the leader makes sure that it leads, and asks no state machine."""


# Plain names for the hot path: looking up a member of an enumeration costs more than a global.
COMMAND: Final = RequestKind.COMMAND
QUERY: Final = RequestKind.QUERY
CONTROL: Final = RequestKind.CONTROL
CONFIRM: Final = RequestKind.CONFIRM


class Request:
    """One command, query or control request on its way.

    Args:
        kind: a command is recorded, replicated and applied; a query is a linearizable read; a
            control request is an operator's (:mod:`..leader.operator`); see `RequestKind`.
        payload: the bytes for the service.
        flags: one byte whose meaning is the service's.
        done: callback, called at most once, on the trio thread, with the reply or the error. It
            must neither block nor raise.

    Attributes:
        deadline: when it fails unless it was sent by then (trio's clock); 0 before it was
            submitted.
        losses: how often it was lost on its way to a leader.
        session: client session that a command belongs to, 0 for none.
        sequence: its number within the session. Both are recorded with it; the service uses them.
        principal: number of the user that sent it, recorded with it; 0 for the user `default`, or
            for a program that embeds the member.
        rules: version of the service's rules by which its sender has allowed it; 0 for none. A
            leader that has applied newer ones has it checked again.
        cancelled: nobody waits for it any more.
        carrier: the request that carries the content of this one with that of others, if any; it
            learns from `leave` that this one is cancelled.
        recheck: called once with this request in place of sending it, if it is not sent yet;
            returns what may be sent. Its sender sets it when the rules have changed by which it
            was allowed, or to look at them itself. Then it sets it to itself again, many requests
            may share it, and it is called once for all of them that wait in one place.
    """

    __slots__ = (
        "cancelled",
        "carrier",
        "deadline",
        "done",
        "flags",
        "kind",
        "losses",
        "payload",
        "principal",
        "recheck",
        "rules",
        "sequence",
        "session",
    )

    def __init__(
        self,
        kind: RequestKind,
        payload: bytes,
        flags: int,
        done: Callable[[bytes | RequestError], None],
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.flags = flags
        self.done = done
        self.cancelled = False
        self.carrier: Request | None = None
        self.rules = 0
        self.recheck: Callable[[Request], Sequence[Request]] | None = None
        self.deadline = 0.0
        self.losses = 0
        self.session = 0
        self.sequence = 0
        self.principal = 0

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer a query with the result of `query(payload, flags)`; do nothing if it is cancelled.

        Returns:
            Whether it is finished. If not, the caller must call again, now or later.
        """
        if not self.cancelled:
            # No state machine takes the payload of another one, and this one may be a program's.
            reply = b"" if self.kind is CONFIRM else query(self.payload, self.flags)
            self.done(reply)
        return True

    def cancel(self) -> None:
        """Cancel it: it will not be sent unless it was already, and `done` is not called."""
        self.cancelled = True
        self.done = _nobody
        if self.carrier is not None:
            self.carrier.leave(self)

    def leave(self, _client: object) -> None:
        """Note that a client is gone, for which it shall not be sent any more."""
        self.cancel()

    def remaining(self) -> Sequence[Request]:
        """Return what must be sent in place of this request once it is cancelled: nothing.

        A request that joins those of several clients is cancelled as soon as one of them is gone.
        It then returns one request for each remaining client, or itself with the rest of its
        content.
        """
        return ()


def still_wanted(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests that must still be sent, of requests that were not sent yet.

    A cancelled one is replaced by its :meth:`Request.remaining`.
    """
    for request in requests:
        # Handling one request may cancel a later one, so each is checked in its turn.
        if not request.cancelled:
            yield request
        else:
            for each in request.remaining():
                if not each.cancelled:
                    yield each


def still_allowed(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests that may be sent now, of requests that are wanted and were not sent yet.

    Each place where a request waits asks this before it sends it on. So the rules of its user may
    change in the meantime.
    """
    passed = None
    for request in still_wanted(requests):
        # Rules change rarely, so the usual case must cost no more than this look.
        recheck = request.recheck
        if recheck is None or recheck is passed:
            yield request
        else:
            request.recheck = None
            allowed = recheck(request)
            # One that stays looks at the rules alone, which do not change within this turn.
            passed = recheck if request.recheck is recheck else None
            yield from allowed


def _nobody(_result: bytes | RequestError) -> None:
    """Take a result that nobody waits for."""
