"""`quorate status`, `quorate is-leader`: what each member reports, and a verdict."""

import json
import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from ..local.member_list import ListedMember
from ..local.show import make_console, print_table
from ..local.survey import SETTLED, Answer, Survey, Verdict, ask, at, survey, with_list
from ..local.words import age, counted, etcd_line, size
from ..node.requests.status import NodeStatus
from .member_answers import command
from .params import Address, Addresses, AsJson, parse_address

__all__ = ["is_leader", "render", "status"]

_SPARE: Final = ("applied", "appended", "last heard", "election", "committed", "lag")


async def status(
    place: Annotated[Path | None, Parameter(show_default=False)] = None,
    /,
    *,
    connect: Addresses = ("127.0.0.1:7000",),
    as_json: AsJson = False,
) -> int:
    """Ask every member for its status, and show the answers side by side.

    Members that join are named below, with the word for what they wait for.

    Exit status: 0 - every member answers, one leads, and all agree on it; 1 - otherwise; 2 - no
    member can be reached.

    Args:
        place: Of a cluster with partitions: machine.toml, or the folder of a machine, or the
            directory of `quorate cluster`. Then each partition has a line.
        connect: Client port of a member, HOST:PORT; it names the other members. May be given
            several times: the first one that answers is asked. 127.0.0.1:7000 if left out.
        as_json: Print the whole answers, for programs.
    """
    if place is not None:
        from .partition_status import show_groups  # noqa: PLC0415 - it imports much

        return await show_groups(place, as_json=as_json)
    seen = await with_list(await survey([parse_address(text) for text in connect]))
    if as_json:
        print(seen.as_json())
    else:
        render(seen, make_console(), connect)
    return int(seen.verdict)


def render(seen: Survey, console: Console, connect: Addresses = ()) -> None:
    """Print the rows, the verdict, and where to read more.

    Args:
        seen: all answers.
        console: prints it.
        connect: where the operator asks, for the command that is shown.
    """
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
    elif seen.leader is not None and seen.spare >= 0:
        console.print(_summary(seen))
    said = [answer.status for answer in seen.answers if answer.status is not None]
    if line := etcd_line([each.etcd for each in said if each.etcd is not None]):
        console.print(line)
    _print_lines(seen, console)
    gone = any(answer.status is None for answer in seen.answers)
    if seen.leader is not None and (gone or seen.joining):
        words = command("list", connect)
        console.print(f"What each of them waits for, and what to do: {words}", soft_wrap=True)


def _print_lines(seen: Survey, console: Console) -> None:
    """Print what has to be done, and which members join."""
    for style, lines in (("red", seen.problems), ("yellow", seen.warnings)):
        for line in lines:
            console.print(line, style=style)
    for one in seen.joining:
        console.print(_joins(one))


def _row(seen: Survey, answer: Answer) -> list[str]:
    member_id, said = answer.address.member_id, answer.status
    name = str(member_id) if member_id >= 0 else "?"
    where = at(answer.address)
    if said is None:
        return [
            name,
            where,
            "refused" if answer.refused else "no answer",
            answer.error or "",
            *"-----",
            _heard(seen, member_id),
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
        "itself" if said is seen.leader else _heard(seen, member_id) + _answered(said),
    ]


def _style(seen: Survey, answer: Answer) -> str:
    if answer.status is None:
        return "red"
    return "bold" if answer.status is seen.leader else ""


def _lag(seen: Survey, said: NodeStatus) -> str:
    """How far a member lags, in words. The members answer at slightly different moments."""
    behind = seen.head - said.append_position
    words = [f"{size(behind)} behind" if behind > 0 else f"{size(-behind)} ahead"] if behind else []
    if said.commit_position > said.applied_position:
        words.append(f"{size(said.commit_position - said.applied_position)} to apply")
    if said.snapshot_activity:
        words.append(said.snapshot_activity)
    if not words and seen.is_unfounded:
        words.append("empty" if not said.append_position else "not known yet")
    elif not words and seen.leader is None:
        words.append("longest log")
    elif not words and said.state != SETTLED:
        words.append("not known yet")  # a log of equal length may have other contents
    return ", ".join(words) or "up to date"


def _heard(seen: Survey, member_id: int) -> str:
    """When the leader last heard a member; without a leader, when anyone did."""
    seconds = seen.heard(member_id)
    if seconds is not None:
        return f"{age(seconds)} ago"
    return "not yet" if seen.leader else "-"  # a leader counts from the start of its term


def _answered(said: NodeStatus) -> str:
    """How long the leader takes to answer a standby; empty for other members."""
    if said.leader_round_trip_ms < 0:
        return ""
    return f", answers it in {said.leader_round_trip_ms:.1f} ms"


def _joins(one: ListedMember) -> str:
    """Say that a member joins, and what it waits for."""
    place = "" if one.replaces is None else f" in the place of member {one.replaces}"
    waits = f": {one.waits}" if one.waits else ""
    behind = f", {size(one.behind)} behind" if one.behind else ""
    return f"Member {one.member_id} joins as a {one.role.value}{place}{waits}{behind}."


def _summary(seen: Survey) -> str:
    leader = seen.leader
    assert leader is not None
    spare = f"{seen.spare} more can be lost" if seen.spare else "none can be lost"
    count = len(seen.answers) - len(seen.voters)
    standbys = f" and {counted(count, 'standby', 'standbys')}" if count else ""
    voters = seen.electorate
    everyone = f"all {voters} members{standbys} agree"
    if voters == 1:
        everyone = f"it is the only voter{standbys}"
    elif seen.verdict is not Verdict.AGREED:
        everyone = f"{len(seen.voting)} of {voters} voters answer"
    return (
        f'Cluster "{leader.cluster}": member {leader.member_id} leads term {leader.term}; '
        f"{everyone}, {spare}."
    )


async def is_leader(*, connect: Address = "127.0.0.1:7000", as_json: AsJson = False) -> int:
    """Report whether this member leads, for scripts and load balancers.

    The exit status is that of Aeron's ClusterTool, except for a member that does not answer.

    Exit status: 0 - it leads; 1 - it does not; 2 - it does not answer.

    Args:
        connect: Client port of the member, HOST:PORT. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    answer = await ask(parse_address(connect))
    said = answer.status
    if said is None:
        print(f"{connect}: {answer.error}", file=sys.stderr)
        return int(Verdict.UNREACHABLE)
    leads = said.role == "leader" and said.state == SETTLED
    if as_json:
        found = {"member_id": said.member_id, "leads": leads, "leader_id": said.leader_id}
        print(json.dumps(found | {"role": said.role, "state": said.state, "term": said.term}))
    else:
        print(f"member {said.member_id} is {said.role}, {said.state}, term {said.term}")
    return int(not leads)
