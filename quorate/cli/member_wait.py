"""`--wait` of `quorate member`: stays until a member is what it is to become."""

import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from ..client.resp import RespError
from ..local import survey
from ..local.member_list import (
    STANDBYS,
    Listed,
    ListedMember,
    decode_list_untrusted,
    why_waiting,
)
from ..local.words import age, size, span
from ..node.requests.status import MemberAddress
from .control import DONE, REFUSED, ask
from .params import Addresses, parse_address

__all__ = ["Waited", "wait_for"]

LOOK_SECONDS: Final = 1.0
"""Pause between two looks. If smaller, the leader answers more of them. If larger, a short change
takes longer to be noticed."""

ANSWER_SECONDS: Final = 6.0
"""How long a member has to answer. A member that finds no leader says so after four seconds. If
smaller, that answer is lost. If larger, a machine that is gone holds up each look for longer."""

REPEAT_SECONDS: Final = 10.0
"""How often progress is printed into a file or a pipe."""

_SAMPLES: Final = 10
_LONG_STANDBY: Final = 1 << 20


@attrs.frozen
class Waited:
    """How the waiting for a member has ended: exit status, words, version of the configuration."""

    status: int
    words: str
    version: int


async def wait_for(connect: Addresses, member_id: int, *, replaced: int | None = None) -> Waited:
    """Show a member's progress until it is a voter, or a standby that follows.

    Args:
        connect: client ports of members, HOST:PORT.
        member_id: the member.
        replaced: the member that has to be gone, too.

    Returns:
        How it ended: done, or refused if it has lost its seat.
    """
    began = trio.current_time()
    addresses = [parse_address(text) for text in connect]
    progress = _Progress(member_id)
    while True:
        listed = await _look(addresses)
        if listed is None:
            progress.no_leader()
        else:
            # The member that was asked first may be the one that leaves.
            more = [each.address for each in listed.members if each.live]
            addresses = list(dict.fromkeys([*addresses[: len(connect)], *more]))
            seen = listed.member(member_id)
            if seen is None:
                words = f"Member {member_id} has no seat any more: it was removed."
                return progress.end(Waited(REFUSED, words, listed.version))
            if (done := _done(listed, seen, replaced)) is not None:
                words = f"{done}, after {span(trio.current_time() - began)}."
                return progress.end(Waited(DONE, words, listed.version))
            progress.show(listed, seen, await _snapshot_of(seen, progress))
        await trio.sleep(LOOK_SECONDS)


async def _look(addresses: Sequence[MemberAddress]) -> Listed | None:
    """Ask one member after the other for the list; None if none has it."""
    for address in addresses:
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                return decode_list_untrusted(await ask(address, "member", "list"))
            except (OSError, RespError, ValueError):
                pass  # the next one may reach the leader
    return None


async def _snapshot_of(seen: ListedMember, progress: "_Progress") -> str:
    """Return what a member does with a snapshot, in words; empty if nothing."""
    # Only the member itself knows, and its client port may be out of our reach.
    said = (await survey.ask(seen.address)).status if progress.stands_still(seen) else None
    return said.snapshot_activity if said is not None else ""


def _done(listed: Listed, seen: ListedMember, replaced: int | None) -> str | None:
    """Return in words that a member is what it is to be; None if it is not yet."""
    name = f"Member {seen.member_id}"
    if seen.role in STANDBYS:
        near = seen.behind is not None and seen.behind <= _LONG_STANDBY
        follows = seen.live and seen.is_claimed and near
        return f"{name} follows as a {seen.role.value}" if follows else None
    if not seen.votes or listed.joint:
        return None
    if replaced is None:
        return f"{name} is a {seen.role.value}"
    gone = listed.member(replaced) is None
    return f"{name} is a {seen.role.value} in the place of member {replaced}" if gone else None


@attrs.frozen
class _Sample:
    seconds: float
    match: int
    behind: int


class _Progress:
    """Prints the progress of a member to standard error.

    A terminal has one line that changes. In a file each change of the reason has a line, and the
    rest one every `REPEAT_SECONDS`.
    """

    def __init__(self, member_id: int) -> None:
        self._name = f"Member {member_id}"
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)
        self._word: str | None = None
        self._printed = -REPEAT_SECONDS
        self._changing = sys.stderr.isatty()

    def no_leader(self) -> None:
        """Print that nobody knows; the change goes on once there is a leader."""
        self._explain("no-leader", "No leader answers. The change goes on once there is one.")

    def stands_still(self, seen: ListedMember) -> bool:
        """Say whether nothing has arrived at a member since the last look."""
        return (
            bool(self._samples)
            and bool(seen.behind)
            and self._samples[-1].match == (seen.match or 0)
        )

    def show(self, listed: Listed, seen: ListedMember, snapshot: str = "") -> None:
        """Print why a member is no voter yet, and how far it is.

        Args:
            listed: all members.
            seen: the member.
            snapshot: what it does with a snapshot, empty if nothing.
        """
        now = trio.current_time()
        word = seen.waits or ("the voters change now" if listed.joint else "it is ready")
        meaning = why_waiting(word, seen.member_id)
        self._explain(word, f"{self._name} waits: {word}. {meaning}" if meaning else "")
        self._samples.append(_Sample(now, seen.match or 0, seen.behind or 0))
        text = f"{self._name}: {word}" + (f", {snapshot}" if snapshot else self._distance())
        if self._changing:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif now >= self._printed + REPEAT_SECONDS:
            print(text, file=sys.stderr, flush=True)
            self._printed = now

    def end(self, waited: Waited) -> Waited:
        """Print how it ended, and return that."""
        self._print(waited.words)
        return waited

    def _explain(self, word: str, text: str) -> None:
        if word == self._word:
            return
        self._word = word
        self._samples.clear()  # the log is fetched otherwise now, and at another rate
        if text:
            self._print(text)

    def _print(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._changing else text, file=sys.stderr, flush=True)

    def _distance(self) -> str:
        """Return how far it is behind, how fast data arrives, and how long it will take."""
        first, last = self._samples[0], self._samples[-1]
        # Of one that has nothing yet, all of the log is missing, which says nothing.
        if not (last.behind and last.match):
            return ""
        text = f", {size(last.behind)} behind"
        seconds = last.seconds - first.seconds
        if not seconds:
            return text
        rate = max(last.match - first.match, 0) / seconds
        text += f", {size(int(rate))}/s"
        # The log grows at the same time, so what counts is by how much the distance shrinks.
        closing = (first.behind - last.behind) / seconds
        return f"{text}, about {age(last.behind / closing)} left" if closing > 0 else text
