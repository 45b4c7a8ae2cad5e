"""The faults `certificates` and `ca`: what members prove themselves by is replaced while all runs.

`certificates` gives every member a new certificate. `ca` replaces the CA, in the three steps that
an operator takes: both CAs are trusted; every member gets a certificate of the new one; the old one
is trusted no more. Between two steps every member must have taken the new files into use.

Most of them come alone, and are measured: from the members' logs it is read how long each link was
down. A rotation may cost no link more than `LONGEST_SECONDS`. Others go on while further faults
come and go. They are not measured: members that are dead or cut off have no links.
"""

import random
import re
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

import attrs
import trio

from ..local.cluster import MemberProcess
from ..node.config.config import Security

__all__ = ["LONGEST_SECONDS", "SECURITY", "Certifier", "Rotation", "Rotations"]

Rotation = Literal["certificates", "ca"]

SECURITY: Final = Security("own.crt", "own.key", "ca.crt")
"""The files of `Certifier`, in the directory of a member."""

LONGEST_SECONDS: Final = 1.0
"""How long a rotation may keep a link down. It is dialled again at once, so it usually takes a few
milliseconds. If smaller, a busy machine makes violations. If larger, an election could come of
it."""

TAKEN_SECONDS: Final = 30.0
"""How long members may take to use new files: they look at them each five seconds, twice. If
smaller, a paused member counts as one that has missed them."""
DIALLED_SECONDS: Final = 20.0
"""How long they then may take to dial all links again, with a pause of a second between two."""
TOLD: Final = 0.7
"""How often members are told by a signal to look. If 1, nobody tests that they look by themselves.
If 0, each rotation takes ten seconds longer."""
_LOOK_SECONDS: Final = 0.05

_TAKEN: Final = b"a new certificate is in use"
_LINK: Final = re.compile(
    rb"^(\S+)Z \S+ +link: (?:no (link) to member (\d+) at |"
    rb"link to member (\d+) at \S+ is (up) )"
)


class Certifier(Protocol):
    """Makes the certificates of members; :mod:`.certifier`, which needs an extra, has the one."""

    def equip(self, directory: Path, member_id: int) -> None:
        """Write a new certificate of a member, and the CAs that are trusted, into its directory."""
        ...

    def trust(self, directory: Path) -> None:
        """Write the CAs that are trusted into the directory of a member."""
        ...

    def begin(self) -> None:
        """Make the next CA; from now on both are trusted, and the next one issues."""
        ...

    def finish(self) -> None:
        """Trust the former CA no more."""
        ...


@attrs.frozen
class _Mark:
    """How far the log of a member that serves was written at some moment."""

    process: MemberProcess
    pid: int
    offset: int

    @classmethod
    def of(cls, process: MemberProcess) -> "_Mark | None":
        """Return where the log of a process ends; None if it does not serve.

        A member that is starting reads its files after that moment. A signal would end it, too, as
        long as the interpreter has not come to our code.
        """
        pid, file = process.pid, process.config.directory / "pid"
        if pid is None or not file.exists() or file.read_text().strip() != str(pid):
            return None
        return cls(process, pid, process.log.stat().st_size)

    @property
    def is_same(self) -> bool:
        """Whether that process still runs."""
        return self.process.pid == self.pid

    def lines(self) -> list[bytes]:
        """Return the lines that were written since."""
        with self.process.log.open("rb") as log:
            log.seek(self.offset)
            return log.readlines()


class Rotations:
    """Replaces certificates and CAs.

    Args:
        certifier: makes them.
        members: returns the processes of all members.
        rng: random numbers for this alone.
        tell: called with a line about each rotation.
        violations: takes a line for each link that was down for too long.

    Attributes:
        longest: the longest time that a measured rotation has kept a link down, in seconds.
        measured: number of links that were measured.
    """

    def __init__(
        self,
        certifier: Certifier,
        members: Callable[[], Sequence[MemberProcess]],
        rng: random.Random,
        tell: Callable[[str], None],
        violations: list[str],
    ) -> None:
        self.longest = 0.0
        self.measured = 0
        self._certifier = certifier
        self._members = members
        self._rng = rng
        self._tell = tell
        self._violations = violations
        self._one = trio.Lock()

    async def strike(self, kind: Rotation, nursery: trio.Nursery, *, alone: bool) -> bool:
        """Replace certificates or the CA; False if that is under way already.

        Args:
            kind: which of them.
            nursery: for a task that goes on while other faults come.
            alone: no other fault comes until this is over, so it is measured.
        """
        if alone:
            async with self._one:
                await self._rotate(kind, alone=True)
        elif self._one.locked():
            return False
        else:
            nursery.start_soon(self._in_background, kind)
        return True

    async def settle(self) -> None:
        """Wait for the end of a rotation in the background."""
        async with self._one:
            pass

    async def _in_background(self, kind: Rotation) -> None:
        async with self._one:
            await self._rotate(kind, alone=False)

    async def _rotate(self, kind: Rotation, *, alone: bool) -> None:
        self._tell(f"{kind}: new ones, {'alone' if alone else 'while other faults come'}")
        for name, step in self._steps(kind):
            marks = [mark for each in self._members() if (mark := _Mark.of(each)) is not None]
            step()
            if self._rng.random() < TOLD:
                for mark in marks:
                    mark.process.send_signal(signal.SIGHUP)
            await self._until(partial(_have_taken, marks), TAKEN_SECONDS)
            late = [mark.process.member_id for mark in marks if not _has_taken(mark)]
            if late and alone:
                words = f"did not take new files in {TAKEN_SECONDS:g} s: {name}"
                self._violations.append(f"member {', '.join(map(str, late))} {words}")
            if alone:
                await self._measure(name, marks)
            # A member that is paused takes them when it goes on, which is soon.
            await self._until(partial(_have_taken, marks), TAKEN_SECONDS)

    def _steps(self, kind: Rotation) -> list[tuple[str, Callable[[], None]]]:
        def equip() -> None:
            for each in self._members():
                self._certifier.equip(each.config.directory, each.member_id)

        def trust() -> None:
            for each in self._members():
                self._certifier.trust(each.config.directory)

        def begin() -> None:
            self._certifier.begin()
            trust()

        def finish() -> None:
            self._certifier.finish()
            trust()

        if kind == "certificates":
            return [("new certificates", equip)]
        return [
            ("both CAs", begin),
            ("certificates of the new CA", equip),
            ("the new CA alone", finish),
        ]

    async def _measure(self, name: str, marks: Sequence[_Mark]) -> None:
        """Wait until all links were dialled again, and note how long each was down."""
        links = [(one, other.process.member_id) for one in marks for other in marks if one != other]
        await self._until(
            lambda: all(_down(one, peer) not in (None, float("inf")) for one, peer in links),
            DIALLED_SECONDS,
        )
        # Another task may have killed one, or it is not linked: a member that was just added.
        if not all(mark.is_same for mark in marks):
            return
        longest, slowest = 0.0, ""
        for one, peer in links:
            down = _down(one, peer)
            link = f"the link from member {one.process.member_id} to member {peer}"
            if down is None:
                self._violations.append(f"{link} was not dialled again for {name}")
                continue
            self.measured += 1
            if down > LONGEST_SECONDS:
                self._violations.append(f"{link} was down for {down:.3f} s by {name}")
            if down > longest:
                longest, slowest = down, link
        self.longest = max(self.longest, longest)
        self._tell(f"{name}: {slowest} was down for longest, {longest:.3f} s")

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not condition():  # noqa: ASYNC110 - of other processes
                await trio.sleep(_LOOK_SECONDS)


def _have_taken(marks: Sequence[_Mark]) -> bool:
    return all(map(_has_taken, marks))


def _has_taken(mark: _Mark) -> bool:
    """Whether a member uses new files; one that was started since has read them."""
    return not mark.is_same or any(_TAKEN in line for line in mark.lines())


def _down(mark: _Mark, peer: int) -> float | None:
    """Return the longest time that a member's link to a peer was down since a mark.

    None if it never was; infinite if it still is.
    """
    longest, since = None, None
    for line in mark.lines():
        found = _LINK.match(line)
        if found is None or int(found[3] or found[4]) != peer:
            continue
        at = datetime.fromisoformat(found[1].decode()).timestamp()
        if found[2]:
            since = at if since is None else since
        elif since is not None:
            longest, since = max(longest or 0.0, at - since), None
    return float("inf") if since is not None else longest
