"""`quorate status`: every member's own words, one row each, and a verdict."""

from collections.abc import Sequence
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from ..local.survey import SETTLED, Answer, Survey, Verdict, survey
from ..node.requests.status import MemberAddress, NodeStatus
from .show import make_console, print_table
from .words import age, counted, size

__all__ = ["AsJson", "render", "status"]

Addresses = Annotated[Sequence[str], Parameter(negative="", show_default=False)]
Address = Annotated[str, Parameter(show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]

_SPARE: Final = ("applied", "appended", "last heard", "election", "committed", "lag")


async def status(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Ask every member how it stands, and show what each says.

    Exit status: 0 - every member answers, one leads and all agree on it; 1 - otherwise; 2 - no
    member can be reached.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT; it names the others. May be given several
        times: the first one that answers is asked. 127.0.0.1:7000 if left out.
    as_json
        Print everything that the members said, for programs.
    """
    seen = await survey([parse_address(text) for text in connect])
    if as_json:
        print(seen.as_json())
    else:
        render(seen, make_console())
    return int(seen.verdict)


def parse_address(text: str) -> MemberAddress:
    """Read ``HOST:PORT``; IPv6 in brackets.

    Raises:
        UsageError: it is not that.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):  # noqa: PLR2004
        raise UsageError(f'--connect "{text}": expected HOST:PORT, as 127.0.0.1:7000')
    return MemberAddress(-1, host.removeprefix("[").removesuffix("]"), int(port))


def render(seen: Survey, console: Console) -> None:
    """Print the rows and the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", "listens at", "role", "election", "term"):
        table.add_column(name)
    for name in ("appended", "committed", "applied"):
        table.add_column(name, justify="right")
    for name in ("lag", "last heard"):
        table.add_column(name)
    for answer in seen.answers:
        table.add_row(*_row(seen, answer), style=_style(seen, answer))
    print_table(console, table, spare=_SPARE)
    console.print()
    if seen.verdict is Verdict.AGREED:
        console.print(_summary(seen), style="green")
    for problem in seen.problems:
        console.print(problem, style="red")


def _row(seen: Survey, answer: Answer) -> list[str]:
    at, said = answer.address, answer.status
    name = str(at.member_id) if at.member_id >= 0 else "?"
    where = f"{at.host}:{at.client_port}"
    if said is None:
        return [
            name,
            where,
            "no answer",
            answer.error or "",
            *"-----",
            _heard(seen, at.member_id),
        ]
    positions = (said.append_position, said.commit_position, said.applied_position)
    return [
        name,
        where,
        said.role,
        f"{said.state} for {age(said.state_age_s)}",
        str(said.term),
        *(f"{position:,}" for position in positions),
        _lag(seen, said),
        "itself" if said is seen.leader else _heard(seen, at.member_id),
    ]


def _style(seen: Survey, answer: Answer) -> str:
    if answer.status is None:
        return "red"
    return "bold" if answer.status is seen.leader else ""


def _lag(seen: Survey, said: NodeStatus) -> str:
    """How far a member is behind, in words. The members are not asked at one moment."""
    behind = seen.head - said.append_position
    words = [f"{size(behind)} behind" if behind > 0 else f"{size(-behind)} ahead"] if behind else []
    if said.commit_position > said.applied_position:
        words.append(f"{size(said.commit_position - said.applied_position)} to apply")
    if said.snapshot_activity:
        words.append(said.snapshot_activity)
    if not words and seen.leader is None:
        words.append("longest log")
    elif not words and said.state != SETTLED:
        words.append("not known yet")  # a log as long as the leader's may be another one
    return ", ".join(words) or "up to date"


def _heard(seen: Survey, member_id: int) -> str:
    """When the leader last heard a member; without a leader, when anyone did."""
    seconds = seen.heard(member_id)
    if seconds is not None:
        return f"{age(seconds)} ago"
    return "not yet" if seen.leader else "-"  # a leader counts from the beginning of its term


def _summary(seen: Survey) -> str:
    leader = seen.leader
    assert leader is not None
    spare = f"{seen.spare} more can be lost" if seen.spare else "none can be lost"
    count = len(seen.answers) - len(seen.voters)
    standbys = f" and {counted(count, 'standby', 'standbys')}" if count else ""
    return (
        f'Cluster "{leader.cluster}": member {leader.member_id} leads term {leader.term}; all '
        f"{len(seen.voters)} members{standbys} agree, {spare}."
    )
