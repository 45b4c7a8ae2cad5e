"""Warns an operator if two processes say that they are the same member.

A file that was copied to another machine, or a directory, makes a second process with the id of a
member. Both dial all others, and each new link of the one ends that of the other. If only the file
was copied, the second process has a store of its own, without a vote: the member comes and goes,
and nothing unsafe happens. A copied directory is worse. Its store has the same vote, so in a
partition both copies may vote for two leaders. That can't be noticed by a member that sees only one
of them; these warnings are all that is done about it.

Two signs are looked for. A member speaks with another store, although its link with the store
before was up until just now. Or two processes, each with an incarnation of its own, take turns: a
process that was started again never goes back to the incarnation before.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...log_events import log_event
from ...transport import Address

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...transport import Hello

log = logging.getLogger("quorate.node")

REPEAT_SECONDS: Final = 60.0
"""Pause between two warnings about one member. Smaller: they fill the log, since two such processes
take the link from each other several times a second. Larger: an operator who looks at the end of
the log does not see it."""


@attrs.define
class _Last:
    """What was last heard of a member: its hello, the process before, and when its link ended."""

    hello: Hello
    before: int = 0
    ended_at: float = math.inf
    warned_at: float = -math.inf


class TwoProcesses:
    """Looks at all hellos for signs of a second process of a member.

    Args:
        own: our id.
        within: how recently, in seconds, the link with another store must have been up.
    """

    def __init__(self, own: int, within: float) -> None:
        self._own = own
        self._within = within
        self._last: dict[int, _Last] = {}

    def on_hello(self, hello: Hello) -> None:
        """Compare a hello with the last one of the same member; warn at most once a minute."""
        member, now = hello.member_id, trio.current_time()
        last = self._last.get(member)
        if last is None:
            self._last[member] = _Last(hello)
            return
        recent = now - last.ended_at <= self._within
        other = recent and hello.instance != last.hello.instance
        back = hello.incarnation == last.before != last.hello.incarnation
        if (other or back) and now - last.warned_at >= REPEAT_SECONDS:
            last.warned_at = now
            log_event(
                log,
                logging.WARNING,
                "two_processes",
                "member %(member)d: two processes say that they are member %(peer)d: stores "
                "%(before)s and %(after)s, at %(address)s. Stop the one that is wrong: at the "
                'level DEBUG, lines "link from member %(peer)d" have the addresses from which '
                "they call",
                member=self._own,
                peer=member,
                before=f"{last.hello.instance:016x}",
                after=f"{hello.instance:016x}",
                address=str(Address(hello.host, hello.port)),
            )
        if hello.incarnation != last.hello.incarnation:
            last.before = last.hello.incarnation
        last.hello, last.ended_at = hello, math.inf

    def on_link_lost(self, member: int) -> None:
        """Note that a member's link has ended."""
        if (last := self._last.get(member)) is not None:
            last.ended_at = trio.current_time()

    def keep(self, members: Collection[int]) -> None:
        """Forget all members except these."""
        # Ids that come and go would pile up otherwise.
        self._last = {member: last for member, last in self._last.items() if member in members}
