"""How long a client's commands wait for a slot that is frozen.

A slot is frozen for some milliseconds while it moves. Then it is served here again, or elsewhere.
So the client's commands wait, and are tried again when slots change, and after pauses that double:
a follower may be asked, or the map may change. If it takes too long, the client gets an error, and
may try again by itself. Nothing was done then.
"""

from typing import Final

import attrs

from ..protocol import resp
from ..protocol.payload import FROZEN, PayloadParser, part
from .steps import Convert, Steps

__all__ = ["PARK_SECONDS", "TRY_AGAIN", "Parking", "hold_back", "rest_of"]

PARK_SECONDS: Final = 4.0
"""How long the commands that a client has sent together wait in all. Shorter, and clients get
errors when a move is held up for a moment; longer, and they time out before they get an answer."""

FIRST_PAUSE_S: Final = 0.002
"""Shorter, and the first tries come too early; longer, and a short move holds clients up."""

LONGEST_PAUSE_S: Final = 0.032
"""Shorter, and thousands of clients that wait cost too much; longer, and they go on late."""

TRY_AGAIN: Final = resp.error(
    "TRYAGAIN the slot of this command is moving to another partition; nothing was done"
)


class Parking:
    """The waits of the commands that a client has sent together.

    Args:
        now: time of the first wait, in seconds.
    """

    __slots__ = ("_pause", "_until")

    def __init__(self, now: float) -> None:
        self._until = now + PARK_SECONDS
        self._pause = FIRST_PAUSE_S

    def pause(self, now: float) -> float | None:
        """Return for how many seconds to wait now; None if it has been long enough."""
        if now >= self._until:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        return min(pause, self._until - now)


def hold_back(steps: Steps, reason: bytes) -> None:
    """Answer a command that is not to be sent, or let it wait.

    Args:
        steps: of its client.
        reason: the error, or `FROZEN`.
    """
    if reason != FROZEN:
        steps.reply(reason)
    elif not steps.park():
        steps.reply(TRY_AGAIN)


@attrs.frozen
class Rest:
    """What was not executed of a request whose replies are one reply: it makes that of its result.

    Args:
        payload: the commands.
        before: replies to the commands before them.
        make: makes the one reply of all replies.
    """

    payload: bytes
    before: bytes
    make: Convert | None

    def __call__(self, result: bytes) -> bytes:
        """Return the one reply."""
        replies = self.before + result
        return self.make(replies) if self.make else replies

    def given_up(self) -> bytes:
        """Return the one reply if nothing more is to be executed."""
        # If nothing was executed, that is the reply to the request as a whole.
        if not self.before:
            return TRY_AGAIN
        return self(TRY_AGAIN * len(PayloadParser().parse_untrusted(self.payload)))


def rest_of(payload: bytes, result: bytes, convert: Convert | None) -> Rest:
    """Return what is left of a request of which the first commands were executed, or none.

    Args:
        payload: of the request.
        result: the partial reply.
        convert: makes the reply of the result; it may be that of a rest.
    """
    done, replies = part(result, 0)
    if isinstance(convert, Rest):
        replies, convert = convert.before + replies, convert.make
    if done:
        commands = PayloadParser().parse_untrusted(payload)[done:]
        payload = b"".join(resp.pack(tuple(arguments)) for arguments in commands)
    return Rest(payload, replies, convert)
