"""What the demo shows: the progress of the load, and what members log about elections."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..local.cluster import MemberProcess
from ..local.words import size
from .load import Loader

__all__ = ["LogTeller", "show_progress"]

LOOK_SECONDS: Final = 0.05
PLAIN_STEPS: Final = 4
"""Lines of progress where there is no terminal."""


@attrs.frozen
class Told:
    """One line of a member's log, taken apart.

    Args:
        at: when; Unix time in seconds.
        logger: who told it.
        text: what.
    """

    at: float
    logger: str
    text: str

    @classmethod
    def parse(cls, line: str) -> "Told | None":
        """Take a line apart; None if it is no log line (a traceback, half a line)."""
        try:
            at, _level, logger, text = line.split(maxsplit=3)
            moment = datetime.fromisoformat(at)
        except ValueError:
            return None
        return cls(moment.timestamp(), logger, text)


class LogTeller:
    """Prints what the members tell about elections, from now on.

    Args:
        console: where to.
        members: whose logs.
    """

    def __init__(self, console: Console, members: Sequence[MemberProcess]) -> None:
        self._console = console
        self._members = members
        self._began = time.time()
        self._ends = {member.member_id: _length(member) for member in members}

    async def run(self) -> None:
        """Print as it comes, until cancelled."""
        while True:
            self.tell()
            await trio.sleep(LOOK_SECONDS)

    def tell(self) -> None:
        """Print what is new, in the order of its time."""
        news = [(told.at, member, told) for member in self._members for told in self._new(member)]
        for at, member, told in sorted(news, key=lambda one: one[0]):
            text = told.text.removeprefix(f"member {member.member_id}: ").partition(" (election")[0]
            since = f"{at - self._began:+7.3f} s"
            self._console.print(f"{since}  member {member.member_id}  {escape(text)}", style="dim")

    def _new(self, member: MemberProcess) -> list[Told]:
        with member.log.open("rb") as file:
            file.seek(self._ends[member.member_id])
            whole, newline, _half = file.read().rpartition(b"\n")
        self._ends[member.member_id] += len(whole) + len(newline)
        lines = map(Told.parse, whole.decode(errors="replace").splitlines())
        return [told for told in lines if told and told.logger == "quorate.node"]


def _length(member: MemberProcess) -> int:
    return member.log.stat().st_size if member.log.exists() else 0


async def show_progress(console: Console, loader: Loader) -> None:
    """Show how many files are acknowledged, until all are."""
    if not console.is_terminal:
        for step in range(1, PLAIN_STEPS + 1):
            await loader.reached(loader.files * step // PLAIN_STEPS)
            _tell_progress(console, loader)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # refreshed by this task: the display's own way would be a thread
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("files acknowledged", total=loader.files)
        while len(loader.acknowledged) < loader.files:
            progress.update(task, completed=len(loader.acknowledged), refresh=True)
            await trio.sleep(LOOK_SECONDS)
    _tell_progress(console, loader)


def _tell_progress(console: Console, loader: Loader) -> None:
    count = len(loader.acknowledged)
    console.print(f"{count:,} of {loader.files:,} files acknowledged, {size(loader.bytes)}.")
