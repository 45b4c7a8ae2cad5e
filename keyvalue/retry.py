"""When a client sends a request again: one policy for every client of the cluster.

A request whose outcome is unknown is sent until it is answered: to one member after another, with a
pause that doubles, until a deadline. Only requests that may be done twice are repeated this way. A
write becomes one by the number that it carries in a session (`QUORATE.ONCE`): members keep the
replies to the last numbers of each session, and answer a repeat with the first reply.

What may be repeated follows from what became of an attempt, its :class:`Fate`. An error reply names
it by its code: :func:`fate_of_code` is the one place that knows these codes.

This module does no I/O, and waits for nothing. Its users run on threads or on event loops, and
sleep in their own ways.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..errors import ConfigurationError
from .limits import KEPT_REPLY_BYTES, LONGEST_KEPT_REPLY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

__all__ = [
    "FIRST_PAUSE_S",
    "LONGEST_PAUSE_S",
    "REFUSALS",
    "SESSION_WINDOW",
    "Fate",
    "Retry",
    "SessionWindow",
    "Turns",
    "check_seconds",
    "fate_of_code",
    "has_no_answer",
]

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.02
"""Smaller, and clients flood the members during an election. Larger, and a lost connection delays a
request for longer than a new one takes."""

LONGEST_PAUSE_S: Final = 1.0
"""Smaller, and many clients together load a cluster that just comes back. Larger, and a client
notices the new leader late."""

SESSION_WINDOW: Final = 100
"""How far apart the unanswered numbers of a session may be. Smaller, and threads wait more often.
It must stay below `KEPT_REPLIES` of the store (128), or the repeat of a slow command is refused."""

_ANSWERED_BYTES: Final = KEPT_REPLY_BYTES // 4
"""Of replies that came after the oldest unanswered number. Smaller, and one lost reply holds up the
others sooner. The rest is for the replies that are still to come, two full batches of errors
together: with less, the oldest number falls out of what its session keeps."""


class Fate(enum.Enum):
    """What became of one attempt."""

    ANSWERED = "answered"
    """The error is the reply of the command. Another attempt would get the same."""
    NOT_DONE = "not done"
    """This attempt did nothing, and never will. Earlier attempts may have."""
    UNKNOWN = "unknown"
    """The command may be done, now or later."""


REFUSALS: Final = frozenset({"WRONGPASS", "NOAUTH"})
"""Codes of refused logins. Nothing was done, and every member will say the same."""

_FATES: Final = {
    "UNKNOWN": Fate.UNKNOWN,
    "CLUSTERDOWN": Fate.NOT_DONE,
    "MOVED": Fate.NOT_DONE,
    "REFUSED": Fate.NOT_DONE,
    "TRYAGAIN": Fate.NOT_DONE,
    **dict.fromkeys(REFUSALS, Fate.NOT_DONE),
}


def fate_of_code(code: str) -> Fate:
    """Return what became of an attempt whose error reply begins with this word."""
    return _FATES.get(code, Fate.ANSWERED)


def has_no_answer(code: str) -> bool:
    """Whether the same request may be answered later: there was no leader, or its reply is lost."""
    return code in {"UNKNOWN", "CLUSTERDOWN", "MOVED"}


class Retry:
    """The attempts of one request.

    Args:
        clock: returns the time in seconds.
        deadline: no attempt begins later; on that clock.
        first_pause_s: pause before the second attempt.
        longest_pause_s: the pause doubles up to this.
        rng: draws each pause, from half of it up to all of it: clients that lost the same member
            would return in step. None for all of it.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        deadline: float,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        rng: Random | None = None,
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._rng = rng

    def pause_s(self) -> float | None:
        """Return how long to wait before the next attempt; None if the deadline comes first."""
        pause = self._pause_s
        if self._clock() + pause > self._deadline:
            return None
        self._pause_s = min(2 * pause, self._longest_pause_s)
        return pause if self._rng is None else self._rng.uniform(pause / 2, pause)


class Turns(Generic[T]):
    """The members of a cluster, which a client asks one after another.

    Args:
        members: addresses, or connections; at least one.
    """

    def __init__(self, members: Sequence[T]) -> None:
        self._members = members
        self._at = 0

    @property
    def current(self) -> T:
        """The member whose turn it is."""
        return self._members[self._at]

    def advance(self) -> None:
        """Turn to the next member."""
        self._at = (self._at + 1) % len(self._members)


class SessionWindow:
    """A session of a client, and its numbers that are not answered yet.

    It has no lock: callers on several threads hold one around each call.

    Args:
        session_id: given by the cluster.
    """

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self._last = 0
        self._unanswered: set[int] = set()
        self._answered: dict[int, int] = {}  # bytes of the replies after the oldest unanswered one

    @property
    def is_full(self) -> bool:
        """Whether the oldest unanswered number is too old for another one to begin."""
        # Members drop the replies to the lowest numbers first, by their count and by their bytes.
        if not self._unanswered:
            return False
        distance = self._last - min(self._unanswered)
        return distance >= SESSION_WINDOW or sum(self._answered.values()) > _ANSWERED_BYTES

    def begin(self) -> int:
        """Return the number of the next command."""
        self._last += 1
        self._unanswered.add(self._last)
        return self._last

    def end(self, number: int, reply_bytes: int = 0) -> None:
        """Take the number of a command that is answered, or given up.

        Args:
            number: of the command.
            reply_bytes: length of its reply; 0 if it is unknown.
        """
        self._unanswered.remove(number)
        if 0 < reply_bytes <= LONGEST_KEPT_REPLY_BYTES:  # of a longer one, only a note is kept
            self._answered[number] = reply_bytes
        oldest = min(self._unanswered, default=self._last + 1)
        for above in [above for above in self._answered if above < oldest]:
            del self._answered[above]


def check_seconds(name: str, value: Any, least: float, most: float) -> None:
    """Refuse what is not a number of seconds in a range.

    Raises:
        ConfigurationError: it names the argument, its value and the range.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and least <= value <= most):
        raise ConfigurationError(f"{name} = {value!r:.60}: expected seconds, {least:g} to {most:g}")
