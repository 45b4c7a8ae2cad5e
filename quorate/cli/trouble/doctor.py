"""`quorate doctor`: what is wrong with a member's machine, files and network, and what to do."""

import json
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from ...doctor.examination import Examination, examine
from ...doctor.finding import Finding, Level, Verdict
from ...local.show import make_console
from ...local.words import counted
from ..params import Addresses, AsJson, parse_address

__all__ = ["doctor"]

_STYLES: Final = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
    Level.UNKNOWN: "magenta",
}
_WORDS: Final = {
    Level.OK: "ok",
    Level.WARNING: "WARNING",
    Level.PROBLEM: "PROBLEM",
    Level.UNKNOWN: "UNKNOWN",
}
_SHOWN_AS: Final = {
    Verdict.WELL: Level.OK,
    Verdict.PROBLEMS: Level.PROBLEM,
    Verdict.UNSEEN: Level.UNKNOWN,
}
_WIDTH: Final = max(len(word) for word in _WORDS.values())


async def doctor(
    file: Annotated[Path | None, Parameter(show_default=False)] = None,
    /,
    *,
    connect: Addresses = (),
    as_json: AsJson = False,
) -> int:
    """Check a member's machine, files and network, before its first start or in trouble.

    Nothing is changed. Only the measurement of the disk writes: 800 KiB into a file without a name,
    in the member's directory, for at most three seconds.

    Exit status: 0 - no problem, though there may be warnings; 1 - there is a problem; 2 - no
    problem, but something could not be looked at.

    Args:
        file: The member's configuration (TOML). Without it only the machine is looked at, and the
            cluster at --connect.
        connect: Client port of a member, HOST:PORT; it names the other members. May be given
            several times. The members of the file if left out.
        as_json: Print all findings with their figures, for programs.
    """
    found = await examine(file, [parse_address(text) for text in connect])
    if as_json:
        print(json.dumps(found.plain(), indent=2))
    else:
        _show(found, make_console())
    return int(found.verdict)


def _show(found: Examination, console: Console) -> None:
    """Print a line for each finding, and what to do about it below."""
    width = max(len(one.check) for one in found.findings)
    for one in found.findings:
        style = _STYLES[one.level]
        word = f"[{style}]{_WORDS[one.level]:<{_WIDTH}}[/{style}]"
        console.print(f"{word}  {one.check:<{width}}  {escape(one.found)}", soft_wrap=True)
        for line in _advice(one):
            console.print(f"{'':{_WIDTH + width + 4}}{escape(line)}", soft_wrap=True)
    console.print()
    count = {level: sum(one.level is level for one in found.findings) for level in Level}
    words = [
        counted(count[Level.PROBLEM], "problem", "problems"),
        counted(count[Level.WARNING], "warning", "warnings"),
    ]
    if unseen := count[Level.UNKNOWN]:
        words.append(f"{counted(unseen, 'check', 'checks')} could not be made")
    console.print(f"{', '.join(words)}.", style=_STYLES[_SHOWN_AS[found.verdict]])


def _advice(one: Finding) -> list[str]:
    """Return what was expected, and what to do, each in lines of its own."""
    lines = [f"expected: {one.expected}"] if one.expected else []
    first, *rest = one.remedy.splitlines() or [""]
    return [*lines, *([f"do: {first}"] if first else []), *rest]
