"""`quorate trace`: recordings are merged, converted and checked."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from ...recordings import Event
from ...recordings.head import Head
from ...recordings.merging import ONE_MACHINE
from ...recordings.merging import check as check_messages
from ...recordings.perfetto import perfetto_lines
from ...recordings.shiviz import shiviz_lines
from ...recordings.writing import open_to_write
from .paths import Merged, opened, other_than, tell_cut

__all__ = ["check", "convert", "merge"]

_MOST_TOLD = 10

_NO_ARROWS = (
    "no message that was sent and heard is in this recording, so the members are not connected by "
    "arrows: merge the recordings of several members"
)

# `-` is no option.
Input = Annotated[Path, Parameter(allow_leading_hyphen=True)]
Out = Annotated[Path | None, Parameter(show_default=False)]


def merge(
    paths: Annotated[Sequence[Path], Parameter(negative="", name="PATH")],
    /,
    *,
    out: Out = None,
    one_machine: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Join the recordings of several members into one, in the order of time.

    The clocks of members differ. If messages between them were recorded, these say by how much;
    else each member's wall clock is taken as it is. What was done is printed.

    Args:
        paths: Recordings, and directories of members, which have the files of their flight
            recorders.
        out: Write it into this file, compressed if its name ends in .zst; else to standard output.
        one_machine: All were written on one machine, so the clocks are the same.
    """
    merged = Merged.of(paths, one_clock=one_machine)
    tell_cut(merged.files)
    _tell_clocks(merged.head)
    if out is not None:
        merged.write(out)
    else:
        sys.stdout.writelines(merged.lines())
    merged.tell_repeated()
    return 0


def _tell_clocks(head: Head) -> None:
    """Say how the clocks were brought to one, and how wrong that may be."""
    console = Console(highlight=False, stderr=True)
    for member, clock in head.clocks.items():
        if clock.uncertainty is None:
            words = "its wall clock, and no recorded message says how wrong that is"
        elif not clock.offset and clock.uncertainty <= (ONE_MACHINE.uncertainty or 0.0):
            words = "the clock of all"
        else:
            words = f"moved by {clock.offset:+.6f} s, which is right to {clock.uncertainty:.6f} s"
        console.print(f"member {member}: {words}", soft_wrap=True)
    if any(clock.uncertainty is None for clock in head.clocks.values()):
        console.print("If all were written on one machine, say so: --one-machine", soft_wrap=True)


def convert(
    file: Input,
    /,
    *,
    to: Literal["shiviz", "perfetto"],
    out: Out = None,
) -> int:
    """Write a recording in the form of another tool.

    Args:
        file: The recording; - is standard input.
        to: shiviz draws who knew what, at https://bestchai.bitbucket.io/shiviz; perfetto draws
            time lines, at https://ui.perfetto.dev. Neither sends the file anywhere.
        out: Write it into this file; else to standard output.
    """
    if out is not None:
        other_than(out, [file])
    with opened(file) as recording:
        tell_cut([file])
        seen = Counter[str]()
        events = _counted(recording.events, seen)
        shiviz = to == "shiviz"
        lines = shiviz_lines(events) if shiviz else perfetto_lines(recording.head, events)
        if out is None:
            sys.stdout.writelines(f"{line}\n" for line in lines)
        else:
            with open_to_write(out) as written:
                written.writelines(f"{line}\n" for line in lines)
    if not (seen["sends"] and seen["hears"]):
        print(f"{file}: {_NO_ARROWS}", file=sys.stderr)
    return 0


def _counted(events: Iterator[Event], seen: Counter[str]) -> Iterator[Event]:
    for event in events:
        seen[event.kind] += 1
        yield event


def check(file: Input, /) -> int:
    """Check that no message was heard before it was sent, by more than the clocks may be wrong.

    Exit status: 0 - none was, or there are no messages; 1 - one was.

    Args:
        file: The recording; - is standard input.
    """
    with opened(file) as recording:
        tell_cut([file])
        found = check_messages(recording)
    console = Console(highlight=False)
    if not found.sent and not found.heard:
        words = "no message is in this recording, so nothing was checked"
        console.print(words, soft_wrap=True)
        return 0
    console.print(
        f"{found.sent:,} messages sent, {found.heard:,} heard, {found.matched:,} of them both",
        soft_wrap=True,
    )
    if found.unbounded:
        console.print(
            f"{found.unbounded:,} not judged: nothing says how wrong the clocks are",
            soft_wrap=True,
        )
    for words in found.early[:_MOST_TOLD]:
        console.print(words, soft_wrap=True, markup=False)
    if len(found.early) > _MOST_TOLD:
        console.print(f"{len(found.early) - _MOST_TOLD:,} more like these")
    return 1 if found.early else 0
