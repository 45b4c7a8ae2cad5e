"""Messages that a member sends and hears, on their way into its flight recorder.

Those of elections are always recorded. They are rare, and with them the recordings of two members
show who asked whom, and by how much their clocks differ. All others, which come with every batch
and every heartbeat, are recorded while an operator wants it: for some seconds or minutes, and up to
a number of bytes, so that they never push an election out of the files.

What members forward for clients is never recorded. Nor is what is in a message: its class, its term
and its position are.

A member without a quorum repeats itself for as long as that lasts. So elections have an allowance,
too (`Allowance`): what exceeds it is left out, and the recorder says so.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any, Final

import trio

from ...errors import RefusedError
from ...log_events import log_event
from ...storage import decode_header_untrusted
from ...transport import (
    AppendPosition,
    CommitPosition,
    HeartbeatRequest,
    HeartbeatResponse,
    LogBatch,
)
from ...transport.outgoing import FORWARDED
from ...transport.wire import MESSAGE_TYPES, decode_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...transport import Message
    from ...transport.outgoing import Tap

log = logging.getLogger("quorate.node")

ALL: Final = frozenset(MESSAGE_TYPES.values()) - FORWARDED

ELECTIONS: Final = ALL - {
    AppendPosition,
    CommitPosition,
    HeartbeatRequest,
    HeartbeatResponse,
    LogBatch,
}
"""All that a member in order does not send again and again."""

MAX_SECONDS: Final = 600
"""For how long all messages may be recorded. Shorter: what happens rarely is missed. Longer: it is
forgotten that this is on, and costs."""

MAX_BYTES: Final = 16 << 20
"""Events of one order. Fewer: a busy member is recorded for less than a minute. More: they push
elections out of the files of the flight recorder, which have 64 MiB."""

BURST: Final = 1000
"""Messages of elections that are recorded at once. Fewer: an election of many members is not whole.
More: a member without a quorum fills its files sooner."""

PER_SECOND: Final = 1.0
"""And how many are recorded for ever. Fewer: of a long outage less is seen. More: as above."""

_TERMS: Final = (
    "candidate_term_id",
    "proposed_term_id",
    "leadership_term_id",
    "log_leadership_term_id",
)
"""Where messages have their term, the first that is there."""

_MILLISECONDS: Final = re.compile("[0-9]{1,9}")


class Allowance:
    """How many messages may be recorded: many at once, few for ever."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since = trio.current_time()
        self._exceeded = False

    def take(self) -> tuple[bool, bool]:
        """Use one; return whether it was there, and whether that has just become different."""
        now = trio.current_time()
        self._left = min(float(BURST), self._left + PER_SECOND * (now - self._since))
        self._since = now
        # Said once in each outage, since a message a second is recorded all the time.
        was, self._exceeded = self._exceeded, self._exceeded and self._left < BURST
        if self._left >= 1.0:
            self._left -= 1.0
            return True, False
        self._exceeded = True
        return False, not was


class MessageRecorder:
    """Has messages of one member recorded.

    Args:
        tap: of the member's links.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._put: Callable[[str, Mapping[str, Any]], int] | None = None
        self._until = -math.inf
        self._bytes_left = 0
        self._allowance = Allowance()

    @property
    def on(self) -> bool:
        """Whether all messages are recorded."""
        return self._until > -math.inf

    def begin(self, put: Callable[[str, Mapping[str, Any]], int]) -> None:
        """Record elections from now on.

        Args:
            put: takes kind and fields of an event, and returns its bytes in a file.
        """
        self._put = put
        self._tap.sent, self._tap.heard = self._on_sent, self._on_heard
        self._tap.show(ELECTIONS)

    def end(self) -> None:
        """Record nothing any more."""
        self._put = None
        self._until = -math.inf
        self._tap.show(())

    def order_untrusted(self, words: str) -> str:
        """Do what an operator wants: ``trace start messages MILLISECONDS``, or ``trace stop``.

        Returns:
            What was done, in words.

        Raises:
            RefusedError: it is neither, or there is no flight recorder.
        """
        match words.split():
            case ["trace", "start", "messages", text] if _MILLISECONDS.fullmatch(text):
                return self._start(int(text) / 1000)
            case ["trace", "stop"]:
                if not self.on:
                    return "only messages of elections are recorded, as before"
                self._stop("an operator has ended it")
                return "only messages of elections are recorded from now on"
            case _:
                raise RefusedError(
                    "expected trace start messages and a number of milliseconds, or trace stop"
                )

    def _start(self, seconds: float) -> str:
        if self._put is None:
            raise RefusedError("this member has no flight recorder")
        if not 0 < seconds <= MAX_SECONDS:
            raise RefusedError(f"{seconds:g} s: expected {MAX_SECONDS} at most, and more than 0")
        self._until = trio.current_time() + seconds
        self._bytes_left = MAX_BYTES
        self._tap.show(ALL)
        text = f"all messages are recorded, for {seconds:g} s"
        self._put("note", {"text": text})
        words = "all messages are recorded, for %(seconds)g s"
        log_event(log, logging.INFO, "messages_recorded", words, seconds=seconds)
        return text

    def _stop(self, why: str) -> None:
        self._until = -math.inf
        self._tap.show(ELECTIONS)
        if self._put is not None:
            self._put("note", {"text": f"only messages of elections are recorded: {why}"})
        words = "only messages of elections are recorded: %(why)s"
        log_event(log, logging.INFO, "messages_not_recorded", words, why=why)

    def stop_if_due(self) -> None:
        """End an order whose time is over; called twice a second or more often."""
        if self.on and trio.current_time() >= self._until:
            self._stop("the time is over")

    def _on_sent(self, to: int, link: int, n: int, frame: bytes) -> None:
        self._record("sends", {"to": to}, link, n, decode_untrusted(frame))

    def _on_heard(self, sender: int, link: int, n: int, message: Message) -> None:
        self._record("hears", {"sender": sender}, link, n, message)

    def _record(self, kind: str, peer: dict[str, Any], link: int, n: int, message: Message) -> None:
        put = self._put
        if put is None or not (self.on or self._is_allowed(put)):
            return
        # A member of an older version has given its link no number, so there is no arrow.
        numbers = {"link": link, "n": n} if link >= 0 else {}
        fields = peer | numbers | {"type": type(message).__name__} | contents_of(message)
        size = put(kind, fields)
        if self.on:
            self._bytes_left -= size
            if self._bytes_left < 0:
                self._stop(f"{MAX_BYTES >> 20} MiB were written")

    def _is_allowed(self, put: Callable[[str, Mapping[str, Any]], int]) -> bool:
        allowed, exceeded = self._allowance.take()
        if exceeded:
            text = f"too many messages of elections: {PER_SECOND:g} a second is recorded"
            put("note", {"text": text})
        return allowed


def contents_of(message: Message) -> dict[str, int]:
    """Return what a message says of term and position, as far as it does."""
    if isinstance(message, LogBatch):
        header = decode_header_untrusted(message.batch)
        return {"term": message.leadership_term_id, "position": header.position}
    found: dict[str, int] = {}
    for name in _TERMS:
        if (term := getattr(message, name, None)) is not None:
            found["term"] = term
            break
    if (position := getattr(message, "log_position", None)) is not None:
        found["position"] = position
    return found
