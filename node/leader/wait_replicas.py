"""Requests that wait until so many followers have all that was committed when they came (WAIT).

A write that was acknowledged is on a quorum already. Who wants it on more members says so, and for
how long it may take; the answer is how many followers have it then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import RefusedError

if TYPE_CHECKING:
    from ..requests.request import Request
    from .leadership import Leadership

MAX_WAITING: Final = 1024
_NUMBER: Final = re.compile("[0-9]{1,18}")


@attrs.frozen(eq=False)
class Waiting:
    """A request, the position that it waits for, on how many followers, and until when."""

    request: Request
    position: int
    count: int
    deadline: float


class Replicas:
    """The waiting requests of one leadership."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._waiting: list[Waiting] = []

    def submit(self, request: Request, arguments: list[str]) -> None:
        """Take a request: how many followers, and how many milliseconds, 0 for any number."""
        match arguments:
            case [count, timeout_ms] if all(map(_NUMBER.fullmatch, arguments)):
                timeout = int(timeout_ms) / 1000 or float("inf")
            case _:
                refused = "wait takes a number of followers and one of milliseconds"
                request.done(RefusedError(f"{refused}, found {' '.join(arguments)!r}"))
                return
        if len(self._waiting) >= MAX_WAITING:
            request.done(RefusedError(f"{MAX_WAITING} requests wait for followers already"))
            return
        position = self._leadership.applier.commit_position
        until = trio.current_time() + timeout
        self._waiting.append(Waiting(request, position, int(count), until))
        self.look()

    def look(self) -> None:
        """Answer those whose time has come, or whose followers have."""
        if not self._waiting:
            return
        now = trio.current_time()
        matches = [each.match for each in self._leadership.followers.values()]
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            reached = sum(match >= one.position for match in matches)
            if one.request.cancelled:
                continue
            if reached >= one.count or one.deadline <= now:
                one.request.done(b"%d" % reached)
            else:
                self._waiting.append(one)

    def surrender(self) -> list[Request]:
        """Give them all back; another leader may be asked."""
        waiting, self._waiting = self._waiting, []
        return [one.request for one in waiting]
