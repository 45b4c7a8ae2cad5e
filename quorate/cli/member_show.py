"""The table of `quorate member list`, and what to do about each member that needs it."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..local.member_list import Listed, ListedMember, why_waiting
from ..local.show import print_table
from ..local.survey import at
from ..local.words import counted, size
from ..transport import Address
from .member_answers import command
from .params import Addresses

__all__ = ["advice", "render", "summary"]

_SPARE: Final = ("members", "behind")


def render(listed: Listed, connect: Addresses, console: Console) -> None:
    """Print the members, a summary, and what to do."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "state", "clients", "members", "live"):
        table.add_column(name)
    table.add_column("behind", justify="right")
    table.add_column("waits")
    for each in listed.members:
        table.add_row(*map(escape, _row(listed, each)), style=_style(listed, each))
    print_table(console, table, spare=_SPARE)
    console.print()
    console.print(summary(listed), style="green" if not listed.joint else "")
    for words in advice(listed, connect):
        console.print(escape(words), soft_wrap=True)


def _row(listed: Listed, each: ListedMember) -> tuple[str, ...]:
    # A member is what it is meant to be, except while it joins or leaves.
    changing = each.state in {"joining", "leaving"}
    state = each.state if changing else each.role.value
    state = f"joining as {each.role.value}" if each.state == "joining" else state
    waits = _waits(listed, each)
    if each.replaces is not None:
        waits = f"{waits}, replaces {each.replaces}".removeprefix(", ")
    return (
        str(each.member_id),
        f"{state}, leads" if each.member_id == listed.leader else state,
        at(each.address),
        str(Address(each.host, each.member_port)),
        "yes" if each.live else "no",
        size(each.behind) if each.behind else "-",
        waits or "-",
    )


def _waits(listed: Listed, each: ListedMember) -> str:
    """Return the word for what a member waits for, also for a standby that was never started."""
    # In version 0 no seat is claimed, and all members serve.
    absent = listed.version > 0 and each.state == "standby" and not (each.live or each.is_claimed)
    return "not-claimed" if absent else each.waits


def _style(listed: Listed, each: ListedMember) -> str:
    if not each.live:
        return "red"
    return "bold" if each.member_id == listed.leader else ""


def summary(listed: Listed) -> str:
    """Return in a sentence who leads, and how many members there are of each kind."""
    states = ["voter" if each.votes else each.state for each in listed.members]
    of = {state: [each for each in states if each == state] for state in _STATES}
    counts = [counted(len(those), *_STATES[state]) for state, those in of.items() if those]
    under_way = " The voters are changing now." if listed.joint else ""
    return (
        f"Version {listed.version}: member {listed.leader} leads term {listed.term}; "
        f"{', '.join(counts)}.{under_way}"
    )


_STATES: Final = {
    "voter": ("voter", "voters"),
    "standby": ("standby", "standbys"),
    "joining": ("member joins", "members join"),
    "leaving": ("member leaves", "members leave"),
}


def advice(listed: Listed, connect: Addresses) -> Iterator[str]:
    """Yield why members wait, and the command that replaces a member that is gone."""
    for each in listed.members:
        if word := _waits(listed, each):
            promote = f"promote {each.member_id}"
            why = why_waiting(word, each.member_id)
            why = why.replace(f"quorate member {promote}", command(promote, connect))
            yield f"Member {each.member_id} waits: {word}. {why}"
        elif not each.live and (each.votes or each.state == "standby"):
            yield from _of_gone(listed, each, connect)


def _of_gone(listed: Listed, gone: ListedMember, connect: Addresses) -> Iterator[str]:
    name = gone.member_id
    successor = listed.replacement_of(name)
    if successor is not None:
        yield f"Member {name} is not live; member {successor.member_id} is to replace it."
        return
    yield (
        f"Member {name} is not live. If it comes back, there is nothing to do. If it is gone for "
        "good, type, with the host of a new machine:"
    )
    if gone.votes:
        yield f"    {command(f'replace {name}', connect)} --host HOST"
    else:  # No write waits for a standby, so nothing is lost between these two.
        yield f"    {command(f'remove {name}', connect)}"
        ports = f"--port {gone.member_port} --client-port {gone.client_port}"
        if gone.tls_port:
            ports += f" --tls-port {gone.tls_port}"
        yield f"    {command('add', connect)} --role {gone.role.value} --host HOST {ports}"
