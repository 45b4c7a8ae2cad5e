"""WAIT: requests that wait until a number of followers have everything that was committed.

An acknowledged write is already on a quorum. A client that wants it on more members sends WAIT with
their number and a timeout, and gets the number of followers that have it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import RefusedError

if TYPE_CHECKING:
    from ..requests.request import Request
    from ..state_machine.applier import Applier
    from .follower_progress import Followers

MAX_WAITING: Final = 1024
"""Requests that wait at once. If smaller, many clients are refused. If larger, each heartbeat and
each report of a follower takes longer."""


@attrs.frozen(eq=False)
class WaitRequest:
    """A request that waits.

    Args:
        request: gets the number of followers as its reply.
        position: they must have everything below it.
        count: of followers that are enough.
        deadline: when it is answered at the latest (trio's clock).
        names: it waits for all, and its reply names those that do not have everything.
    """

    request: Request
    position: int
    count: int
    deadline: float
    names: bool = False


class ReplicaWaits:
    """The waiting requests of one leadership.

    Args:
        applier: knows what is committed.
        followers: the other members, with their positions.
    """

    def __init__(self, applier: Applier, followers: Followers) -> None:
        self._applier = applier
        self._followers = followers
        self._waiting: list[WaitRequest] = []

    def submit(self, request: Request, count: int | None, seconds: float) -> None:
        """Take a request.

        Args:
            request: to answer.
            count: how many followers it waits for; None for all, and the reply is the ids of those
                that are missing then, with blanks between them.
            seconds: how long at most; infinity for no limit.
        """
        if len(self._waiting) >= MAX_WAITING:
            request.done(RefusedError(f"{MAX_WAITING} requests wait for followers already"))
            return
        deadline = trio.current_time() + seconds
        # The commit position of now covers every write that this client has seen acknowledged.
        position, names = self._applier.commit_position, count is None
        one = WaitRequest(request, position, count or 0, deadline, names)
        self._waiting.append(one)
        self.look()

    def look(self) -> None:
        """Answer the requests whose followers have enough, or whose time is over."""
        if not self._waiting:
            return
        now = trio.current_time()
        # Standbys count, too: the client asks for copies, not for a quorum.
        matches = {each.member_id: each.match for each in self._followers.values()}
        # Swapped before anything is answered: a client may send the next WAIT at once, from the
        # callback.
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            missing = [who for who, match in matches.items() if match < one.position]
            reached = len(matches) - len(missing)
            # Its client is gone; if kept, it would count against the limit.
            if one.request.cancelled:
                continue
            enough = not missing if one.names else reached >= one.count
            if enough or one.deadline <= now:
                names = " ".join(map(str, sorted(missing))).encode()
                one.request.done(names if one.names else b"%d" % reached)
            else:
                self._waiting.append(one)

    def surrender(self) -> list[Request]:
        """Return all waiting requests; another leader may answer them."""
        waiting, self._waiting = self._waiting, []
        return [one.request for one in waiting]
