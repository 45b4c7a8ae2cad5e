"""A request of a client on its way through a member.

A request is a plain object with a callback, not a task: a member handles tens of thousands of
them a second. What becomes of one:

- it never left this member (no leader in time): :class:`~quorate.errors.NoLeaderError`;
- it was appended or forwarded and then lost sight of:
  :class:`~quorate.errors.UnknownOutcomeError`;
- it was committed and applied, or read: its reply.
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
"""Of one that belongs to no session."""


class RequestKind(enum.IntEnum):
    """Where a request goes: into the log, to the applied state, or to the leader itself."""

    COMMAND = 0
    QUERY = 1
    CONTROL = 2


COMMAND: Final = RequestKind.COMMAND
QUERY: Final = RequestKind.QUERY
CONTROL: Final = RequestKind.CONTROL
"""Kinds, for where each request is looked at: members of an enumeration are slow to get at."""


class Request:
    """One command or query on its way.

    Args:
        kind: command (recorded, replicated, applied), query (linearizable read) or control (of
            an operator, see :mod:`.control`).
        payload: the bytes for the service.
        flags: one byte of the service's own.
        done: called at most once, on the trio thread, with the reply or the error. It must
            neither block nor raise.

    Attributes:
        deadline: when it is given up if it was not sent until then (trio's clock); 0 before it was
            submitted.
        losses: how often it was lost on its way to a leader.
        session: client session that a command belongs to, 0 for none.
        sequence: its number there; both are recorded with it, and the service's to heed.
        commands: about how many commands it has.
    """

    __slots__ = (
        "cancelled",
        "commands",
        "deadline",
        "done",
        "flags",
        "kind",
        "losses",
        "payload",
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
        self.deadline = 0.0
        self.losses = 0
        self.session = 0
        self.sequence = 0
        self.commands = 1

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer a query with what `query` makes of its payload and flags; not if nobody waits.

        Returns:
            Whether it is answered; else it is to be called again, now or later.
        """
        if not self.cancelled:
            self.done(query(self.payload, self.flags))
        return True

    def cancel(self) -> None:
        """The client is gone: if it was not sent yet it never will be, and `done` is not called."""
        self.cancelled = True
        self.done = _nobody

    def leave(self, _client: object) -> None:
        """A client is gone: it is not to be sent any more for this one."""
        self.cancel()

    def remaining(self) -> Sequence[Request]:
        """Return what is to be sent in place of this, once it is cancelled: nothing.

        A request that stands for several clients is cancelled as soon as one of them is gone. It
        returns one for each of the others, or itself with what they want.
        """
        return ()


def still_wanted(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield what is left to be sent of requests that were not sent yet: none that is cancelled.

    What becomes of one may cancel another, so each is looked at when its turn comes.
    """
    for request in requests:
        if not request.cancelled:
            yield request
        else:
            for each in request.remaining():
                if not each.cancelled:
                    yield each


def _nobody(_result: bytes | RequestError) -> None:
    """Take a result that nobody waits for any more."""
