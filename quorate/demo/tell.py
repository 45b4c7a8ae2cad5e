"""Prints the progress of the load, and the members' log lines about elections."""

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

__all__ = ["LogPrinter", "show_progress"]

LOOK_SECONDS: Final = 0.05
PLAIN_STEPS: Final = 4
"""Lines of progress if the output is no terminal."""


@attrs.frozen
class LogLine:
    """One line of a member's log, parsed.

    Args:
        at: Unix time in seconds.
        logger: name of the logger.
        text: the message.
    """

    at: float
    logger: str
    text: str

    @classmethod
    def parse(cls, line: str) -> "LogLine | None":
        """Parse a line; None if it is not a log line (a traceback, half a line)."""
        try:
            at, _level, logger, text = line.split(maxsplit=3)
            moment = datetime.fromisoformat(at)
        except ValueError:
            return None
        return cls(moment.timestamp(), logger, text)


class LogPrinter:
    """Prints what the members log about elections, from now on.

    Args:
        console: the console to print to.
        members: the members whose logs are read.
    """

    def __init__(self, console: Console, members: Sequence[MemberProcess]) -> None:
        self._console = console
        self._members = members
        self._began = time.time()
        self._ends = {member.member_id: _length(member) for member in members}

    async def run(self) -> None:
        """Print new lines as they appear, until cancelled."""
        while True:
            self.print_new()
            await trio.sleep(LOOK_SECONDS)

    def print_new(self) -> None:
        """Print the new lines in the order of their times."""
        news = [(line.at, member, line) for member in self._members for line in self._new(member)]
        for at, member, line in sorted(news, key=lambda one: one[0]):
            text = line.text.removeprefix(f"member {member.member_id}: ").partition(" (election")[0]
            since = f"{at - self._began:+7.3f} s"
            self._console.print(f"{since}  member {member.member_id}  {escape(text)}", style="dim")

    def _new(self, member: MemberProcess) -> list[LogLine]:
        with member.log.open("rb") as file:
            file.seek(self._ends[member.member_id])
            whole, newline, _half = file.read().rpartition(b"\n")
        self._ends[member.member_id] += len(whole) + len(newline)
        lines = map(LogLine.parse, whole.decode(errors="replace").splitlines())
        return [line for line in lines if line and line.logger == "quorate.node"]


def _length(member: MemberProcess) -> int:
    return member.log.stat().st_size if member.log.exists() else 0


async def show_progress(console: Console, loader: Loader) -> None:
    """Show the number of acknowledged files until all are acknowledged."""
    if not console.is_terminal:
        for step in range(1, PLAIN_STEPS + 1):
            await loader.reached(loader.files * step // PLAIN_STEPS)
            _print_progress(console, loader)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # this task refreshes the display, which would otherwise start a thread
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("files acknowledged", total=loader.files)
        while len(loader.acknowledged) < loader.files:
            progress.update(task, completed=len(loader.acknowledged), refresh=True)
            await trio.sleep(LOOK_SECONDS)
    _print_progress(console, loader)


def _print_progress(console: Console, loader: Loader) -> None:
    count = len(loader.acknowledged)
    console.print(f"{count:,} of {loader.files:,} files acknowledged, {size(loader.bytes)}.")
