"""The members' wall clocks: which of them is believed, and so by which the log's time goes.

The log's time decides when keys expire, timers are due and sessions end, and it never goes back. So
one wrong reading, stamped on one batch, does harm for as long as it is ahead. Two rules keep such a
reading out. Both compare clocks with the monotonic one, so message delays hardly matter.

A jump of our own clock is not believed at once
===============================================
The monotonic clock predicts what our wall clock shows. A reading that is off by more than
`MAX_SKEW_MS` is ignored, and time goes on by the monotonic clock, until the new reading has lasted
for `JUMP_SECONDS`. A cluster of one member has nothing else to go by, nor have members that share a
machine. After a suspension, in which its monotonic clock stood still, a machine is late once.

A clock that is far from other members' clocks is not followed
==============================================================
Members send their readings with votes and reports. The time *reached* is the latest time that a
quorum of clocks shows, at least. One clock that is ahead does not move it, nor does one that is
behind, as long as a quorum is right. A leader follows its own clock while that is within
`MAX_SKEW_MS` of the time reached, and the time reached otherwise. It need not step down, and clocks
that all differ stop nobody.

What we do not do: measure how long messages take. A late message makes its sender's clock look
slow, never fast, and the next one corrects that.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import trio

from ..log_events import log_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from .state import MemberState

log = logging.getLogger("quorate.node")

MAX_SKEW_MS: Final = 5000
"""How far clocks may differ. Smaller: members that were held up for a moment look wrong. Larger:
keys live longer or shorter by that much after a change of leader."""

JUMP_SECONDS: Final = 60.0
"""How long a jump of our clock must last before it is believed. Shorter: a clock that is wrong for
a moment is followed. Longer: a clock that was corrected, or that of a suspended machine, is late
for longer, unless other members have the right time."""

MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; nobody's clock shows more."""


class Clocks:
    """The clocks of all members, as one of them knows them.

    Args:
        wall_ms: our clock, milliseconds since the epoch.
        state: of the member; knows the voters, whose clocks count.
    """

    def __init__(self, wall_ms: Callable[[], int], state: MemberState) -> None:
        self._wall_ms = wall_ms
        self._state = state
        self._now = trio.lowlevel.current_clock().current_time  # each batch and each report asks
        self._offset = wall_ms() - self._now() * 1000  # of our clock from the monotonic one
        self._jump = 0.0  # by which a reading was off that we do not believe yet, 0 without one
        self._jumped_at = 0.0
        self._others: dict[
            int, float
        ] = {}  # offsets of other members' clocks from our monotonic one
        self._leader_offset: float | None = None
        self._far = False

    # --- hearing others

    def heard(self, member: int, timestamp_ms: int) -> None:
        """Note what the clock of another member shows, if it says so."""
        # Also of one without a vote. Once it has one it counts at once, and before its next report
        # no quorum would be known: a leader would follow its own clock, however wrong.
        if 0 <= timestamp_ms <= MAX_MS:
            self._others[member] = timestamp_ms - self._now() * 1000

    def heard_leader(self, timestamp_ms: int) -> None:
        """Note the log's time, as our leader reports it."""
        if 0 <= timestamp_ms <= MAX_MS:
            self._leader_offset = timestamp_ms - self._now() * 1000

    # --- telling the time

    def own_ms(self) -> int:
        """Our own clock, without a jump that has not lasted."""
        at, shown = self._now(), self._wall_ms()
        jump = shown - at * 1000 - self._offset
        if abs(jump) > MAX_SKEW_MS and not self._has_lasted(jump, at):
            return int(self._offset + at * 1000)
        if self._jump:
            what = "is followed" if abs(jump) > MAX_SKEW_MS else "is over"
            words = "the jump of the wall clock, by %(seconds).3f s, %(what)s"
            seconds = self._jump / 1000
            log_event(log, logging.WARNING, "clock_jump", words, seconds=seconds, what=what)
            self._jump = 0.0
        self._offset = shown - at * 1000
        return shown

    def _has_lasted(self, jump: float, at: float) -> bool:
        if not self._jump or abs(jump - self._jump) > MAX_SKEW_MS:
            self._jump, self._jumped_at = jump, at
            log_event(
                log,
                logging.WARNING,
                "clock_jump",
                "the wall clock jumped by %(seconds).3f s against the monotonic one; it is not "
                f"followed unless that lasts for {JUMP_SECONDS:g} s",
                seconds=jump / 1000,
                what="begins",
            )
        return at - self._jumped_at >= JUMP_SECONDS

    def now_ms(self) -> int:
        """The time to stamp on the log: our clock's, unless a quorum's clocks are far from it."""
        own = self.own_ms()
        if not self._others:
            return own
        at = self._now() * 1000
        # A standby believes the voters, and its own clock only where those have no quorum. Voters
        # are looked up by their member: a machine that lost its disk still has its clock. If it did
        # not count, no quorum might be known, and a leader would follow its own clock, however
        # wrong.
        quorums = self._state.quorums
        known = {**self._others, self._state.member_id: own - at}
        offsets = {
            each: known[each.member_id] for each in quorums.voters if each.member_id in known
        }
        reached = quorums.time(offsets)
        skew = own - at - reached
        far = skew != math.inf and abs(skew) > MAX_SKEW_MS
        if far != self._far:
            self._far = far
            not_followed = "is not followed, but the time that a quorum has"
            log_event(
                log,
                logging.WARNING,
                "clock_skew",
                "our clock, ahead of a quorum's by %(seconds).3f s, %(what)s",
                seconds=skew / 1000,
                what=not_followed if far else "is followed again",
            )
        return int(reached + at) if far else own

    def log_ms(self) -> int:
        """The log's time, as the leader that we heard last would report it."""
        if self._leader_offset is None:
            return self.now_ms()
        return int(self._leader_offset + self._now() * 1000)

    def wall_ms(self) -> int:
        """What our own clock shows, right or wrong, as other programs of this machine see it."""
        return self._wall_ms()

    def skew_ms(self, log_ms: int) -> int:
        """How far our clock, as it shows now, is ahead of the log's time."""
        return self._wall_ms() - log_ms
