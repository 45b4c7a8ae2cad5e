"""Where the events of a picture come from: members that are asked, or a recording."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio

from ...local.survey import ask, at, survey
from ...recordings import Event
from ...recordings.reading import open_recording_untrusted
from .model import Cluster

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from ...local.survey import Answer
    from ...node.requests.status import MemberAddress, NodeStatus
    from ...recordings.reading import Recording

LOOK_SECONDS: Final = 0.5
"""How often members are asked, and the picture is drawn. Shorter: more work for the members.
Longer: what has happened is seen later."""


FIGURES: Final = ("rates", "quantiles", "loop_delay")
"""What a status has in an event, and a member reports only if it is asked for it."""


class Members:
    """Asks members for their statuses, each by itself: one that is silent holds up no other.

    Args:
        addresses: the members to ask first; they name the other ones.

    Attributes:
        cluster: what they have reported.
    """

    def __init__(self, addresses: Sequence[MemberAddress]) -> None:
        self._first = addresses
        self._known: dict[int, MemberAddress] = {}
        self._version = 0
        # By member: which run of its process, and how many steps of elections it has reported.
        self._steps: dict[int, tuple[int, int]] = {}
        self._began = trio.current_time()
        self.cluster = Cluster(started_ms=time.time_ns() // 1_000_000)

    async def begin(self) -> list[str]:
        """Ask who the members are, and all of them; return why none answered, if so."""
        seen = await survey(self._first)
        if not seen.said:
            return seen.problems
        for answer in seen.answers:
            self._note(answer.address.member_id, answer)
        return []

    async def ask_all(self) -> None:
        """Ask all members at once."""
        async with trio.open_nursery() as nursery:
            for member in [*self._known]:
                nursery.start_soon(self._ask, member)

    async def run(self) -> None:
        """Ask each member again and again; until cancelled."""
        asked = set[int]()
        async with trio.open_nursery() as nursery:
            while True:
                for member in self._known.keys() - asked:
                    nursery.start_soon(self._keep_asking, member)
                asked = {*self._known}
                await trio.sleep(LOOK_SECONDS)

    def advance(self) -> bool:
        """Note that time goes on; return True, since members never come to an end."""
        self.cluster.now = self._now()
        return True

    async def _keep_asking(self, member: int) -> None:
        while member in self._known:
            began = trio.current_time()
            await self._ask(member)
            await trio.sleep(max(began + LOOK_SECONDS - trio.current_time(), 0.0))

    async def _ask(self, member: int) -> None:
        if (address := self._known.get(member)) is not None:
            _, since = self._steps.get(member, (0, 0))
            self._note(member, await ask(address, since))

    def _now(self) -> float:
        return trio.current_time() - self._began

    def _note(self, member: int, answer: Answer) -> None:
        said = answer.status
        if said is None:
            self._known.setdefault(member, answer.address)
            self.cluster.miss(member, self._now(), answer.error or "no answer")
            self.cluster.member(member).where = at(answer.address)
            return
        status = attrs.asdict(said, recurse=True)
        if answer.recent is not None:
            self._note_steps(said, answer.recent)
            status |= {name: answer.recent.get(name) for name in FIGURES}
        self.cluster.apply(Event(self._now(), said.member_id, "status", {"status": status}))
        # Those that are not in the newest configuration are gone: an old one must not bring them
        # back.
        if answer.version >= self._version:
            self._version = answer.version
            self._known = {one.member_id: one for one in answer.members}
        self._known.setdefault(said.member_id, answer.address)
        for gone in self.cluster.members.keys() - self._known.keys():
            del self.cluster.members[gone]
        for one in self._known.values():
            seen = self.cluster.member(one.member_id)
            seen.where, seen.votes = at(one), not one.standby

    def _note_steps(self, said: NodeStatus, recent: dict[str, Any]) -> None:
        """Note the steps of elections that a member has reported, each with its reason."""
        run, _ = self._steps.get(said.member_id, (said.incarnation, 0))
        if run != said.incarnation:
            # It has started again, and counts from 0: we asked for the wrong ones.
            self._steps[said.member_id] = (said.incarnation, 0)
            return
        count, steps = recent.get("step_count"), recent.get("steps")
        if not isinstance(count, int) or not isinstance(steps, list):
            return
        self._steps[said.member_id] = (run, count)
        for step in cast("list[object]", steps):
            fields = cast("dict[str, Any]", step) if isinstance(step, dict) else {}
            if isinstance(ago := fields.get("ago"), int | float):
                self.cluster.apply(Event(self._now() - ago, said.member_id, "enters", fields))


class Replay:
    """Plays a recording.

    Args:
        recording: is read as it is played.
        speed: seconds of the recording in one second.

    Attributes:
        cluster: what it says up to now.
    """

    def __init__(self, recording: Recording, speed: float = 1.0) -> None:
        self._events = recording.events
        self._next = next(self._events, None)
        self._speed = speed
        self._began: float | None = None
        self.start = self._next.at if self._next else 0.0
        head = recording.head
        self.cluster = Cluster(head.cluster, self.start, head.started_ms)
        for member in head.members:
            seen = self.cluster.member(member.member_id)
            seen.votes = member.role in {"voter", "witness"}

    def advance(self) -> bool:
        """Go on by the time that has passed; return whether there is more."""
        now = trio.current_time()
        self._began = now if self._began is None else self._began
        return self._play(self.start + (now - self._began) * self._speed)

    def pictures(self) -> Iterator[Cluster]:
        """Yield what is known each `LOOK_SECONDS` of the recording, and at its end."""
        until, more = self.start, True
        while more:
            until += LOOK_SECONDS
            more = self._play(until)
            self.cluster.sample()
            yield self.cluster

    def _play(self, until: float) -> bool:
        while self._next is not None and self._next.at <= until:
            self.cluster.apply(self._next)
            self._next = next(self._events, None)
        if self._next is not None:
            self.cluster.now = until
        return self._next is not None


@contextmanager
def open_replay(path: Path, speed: float) -> Generator[Replay]:
    """Open a recording to play it, for the length of the block.

    Raises:
        RecordingError: it is none.
        OSError: the file can't be read.
    """
    with open_recording_untrusted(path) as recording:
        yield Replay(recording, speed)
