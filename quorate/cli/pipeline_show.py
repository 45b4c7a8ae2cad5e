"""How `quorate pipeline` prints the results of its jobs, and rows of Spark."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..keyvalue.slots.ranges import text_of
from ..local.show import make_console, print_table
from ..local.words import counted, size, utc
from ..storage.tools.describe import DumpedBatch
from .log import PREVIEW_BYTES, lines_of, plain_batch, preview

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..pipeline.jobs.audit import Audit, Divergent
    from ..pipeline.jobs.export import Exported
    from ..pipeline.jobs.partitions import GroupsAudit
    from ..pipeline.jobs.restorable import Written
    from ..pipeline.jobs.whole import Cut
    from ..pipeline.source.logs import Moment

__all__ = [
    "plain_audit",
    "show_audit",
    "show_export",
    "show_frame",
    "show_groups",
    "show_state",
    "show_whole_state",
    "show_written",
]

_SHOWN_ENTRIES: Final = 3
"""Entries that are shown of each batch, from the first difference on."""

_SHOWN_ROWS: Final = 20

_CELL: Final = 60
"""Letters that are shown of a value."""


def show_export(done: "Exported", to: Path, *, as_json: bool) -> None:
    """Print what an export has written."""
    if as_json:
        print(json.dumps(attrs.asdict(done)), flush=True)
        return
    show_rows(
        make_console(),
        {
            "positions": f"{done.begin:,} to {done.end:,}",
            "log": counted(done.commands, "row", "rows") + " added",
            "kv_history": counted(done.history, "version", "versions") + " ended",
            "kv_current": counted(done.current, "key", "keys"),
            "written to": str(to),
        },
    )


def show_state(console: Console, found: "DataFrame", moment: "Moment") -> None:
    """Print how many keys there are, and the first ones."""
    keys = counted(found.count(), "key", "keys")
    console.print(f"{keys} at position {moment.position:,}, {utc(moment.timestamp_ms)}")
    _show_keys(console, found)


def show_whole_state(console: Console, found: "DataFrame", cut: "Cut") -> None:
    """Print how many keys each partition has, the first ones, and which slots are missing."""
    keys = {row["partition"]: row["count"] for row in found.groupBy("partition").count().collect()}
    for number, part in cut.parts.items():
        console.print(
            f"partition {number}: {counted(keys.get(number, 0), 'key', 'keys')} at position "
            f"{part.at.position:,}, {utc(part.at.timestamp_ms)}"
        )
    _show_keys(console, found, "partition")
    if cut.missing:
        console.print(
            f"NOT THERE: slots {text_of(cut.missing)}: by these recordings no partition owned them "
            "then: give those of all partitions",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


def _show_keys(console: Console, found: "DataFrame", *more: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark's own name; an extra

    value = F.substring("value", 1, _CELL + 1).alias("value")  # sorting holds whole rows in memory
    shown = found.select("key", value, *more, "expires_at", "valid_from")
    show_frame(console, shown.orderBy("key"), spare=("valid_from", "expires_at"))


def show_written(done: "Written", directory: Path) -> None:
    """Print a snapshot that was written."""
    console, of = make_console(), done.summary
    console.print(
        f"{directory}: the snapshot at {of.head.position:,}, {size(of.raw_bytes)}, digest "
        f"{of.digest}; quorate restore --from {directory} --new-cluster NAME --to DIR",
        markup=False,
        soft_wrap=True,
    )
    if done.sessions:
        console.print(
            f"{counted(done.sessions, 'session is', 'sessions are')} left out: clients of the new "
            "cluster open their own",
            style="yellow",
        )


def plain_audit(found: "Audit") -> dict[str, object]:
    """Return an audit for programs, with the first entries in which batches differ."""
    records = [
        {"members": members, "from_entry": begin, **plain_batch(batch)}
        for members, batch, begin in _versions(found.records)
    ]
    return {**attrs.asdict(attrs.evolve(found, records=())), "records": records}


def show_audit(console: Console, found: "Audit") -> None:
    """Print an audit."""
    for one in found.members:
        console.print(f"member {one.member_id}: {one.start:,} to {one.committed:,}, committed")
    console.print(
        f"{counted(found.batches, 'batch', 'batches')} compared, "
        f"{counted(found.entries, 'entry', 'entries')} in the longest log"
    )
    for finding in found.findings:
        whose = f"member {finding.member}, " if finding.member >= 0 else ""
        place = f"{whose}term {finding.term}, position {finding.position}"
        console.print(
            f"{finding.kind.upper()}: {place}: {finding.text}",
            style="red",
            markup=False,
            soft_wrap=True,
        )
    if found.records:
        console.print("The first divergence, from the first entry on that differs:", style="bold")
    versions = [*_versions(found.records)]
    same = _alike([batch.entries[0].payload for _, batch, _ in versions if batch.entries])
    for members, batch, begin in versions:
        whose = f"member{'s' * (len(members) > 1)} {', '.join(map(str, members))}"
        header, *entries = lines_of(batch, batch.header.end)
        rest = batch.header.count - begin - len(entries)
        if entries and same >= PREVIEW_BYTES:  # the commands of many clients may be one entry
            entries.insert(1, f"    {preview(batch.entries[0].payload, same)}")
        text = "\n".join([f"{whose}: {header}", *entries])
        console.print(text, markup=False, soft_wrap=True)
        if rest:
            console.print(f"  and {counted(rest, 'entry', 'entries')} more")
    for writer in found.writers:
        written = f"{counted(writer.entries, 'entry', 'entries')}, {size(writer.bytes)}"
        console.print(f"written by {writer.name}: {written}", markup=False)
    for words in found.unchecked:
        console.print(f"NOT CHECKED: {words}", style="yellow", markup=False, soft_wrap=True)
    if found.findings:
        console.print(
            f"WRONG: {counted(len(found.findings), 'finding', 'findings')}.", style="bold red"
        )
    else:
        console.print("The logs agree, as far as each is committed.", style="green")


def show_groups(console: Console, found: "GroupsAudit", *, as_json: bool) -> None:
    """Print the audit of all groups of a cluster with partitions."""
    if as_json:
        groups = {name: plain_audit(each) for name, each in found.groups.items()}
        moves = [attrs.asdict(each) for each in found.moves]
        plain = {"groups": groups, "moves": moves, "unchecked": found.unchecked}
        print(json.dumps(plain, indent=2))
        return
    for name, each in found.groups.items():
        console.print(f"\n{escape(name)}", style="bold")
        show_audit(console, each)
    console.print("\nSlots", style="bold")
    for finding in found.moves:
        place = f"partition {finding.member}, position {finding.position}"
        text = f"{finding.kind.upper()}: {place}: {finding.text}"
        console.print(text, style="red", markup=False, soft_wrap=True)
    for words in found.unchecked:
        console.print(f"NOT CHECKED: {words}", style="yellow", markup=False, soft_wrap=True)
    if not found.moves:
        console.print("Each slot had one owner at a time, by all logs.", style="green")


def _alike(payloads: Sequence[bytes]) -> int:
    """Return how many bytes at the beginning are common to payloads; 0 if they are all equal."""
    if len({*payloads}) <= 1:
        return 0
    differ = (at for at, those in enumerate(zip(*payloads, strict=False)) if len({*those}) > 1)
    return next(differ, min(map(len, payloads)))


def _versions(
    records: "Sequence[Divergent]",
) -> Iterator[tuple[list[int], DumpedBatch, int]]:
    """Yield the members that have a batch, the batch cut to what is shown, and its first entry."""
    batches: list[DumpedBatch] = []
    owners: list[list[int]] = []
    for one in records:
        if one.batch not in batches:
            batches.append(one.batch)
            owners.append([])
        owners[batches.index(one.batch)].append(one.member)
    begin = next(
        (
            at
            for at, those in enumerate(zip(*(one.entries for one in batches), strict=False))
            if any(entry != those[0] for entry in those)
        ),
        min((len(one.entries) for one in batches), default=0),
    )
    for members, batch in zip(owners, batches, strict=True):
        yield (
            members,
            attrs.evolve(batch, entries=batch.entries[begin : begin + _SHOWN_ENTRIES]),
            begin,
        )


def show_rows(console: Console, rows: dict[str, str]) -> None:
    """Print names and values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)


def show_frame(console: Console, frame: "DataFrame", *, spare: Sequence[str] = ()) -> None:
    """Print the first rows. Columns of text may wrap, and those in `spare` may be left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in frame.dtypes:
        table.add_column(name, overflow="fold" if kind in {"string", "binary"} else "ellipsis")
    rows = frame.take(_SHOWN_ROWS + 1)
    for row in rows[:_SHOWN_ROWS]:
        table.add_row(*map(_cell, row))
    print_table(console, table, spare=spare)
    if len(rows) > _SHOWN_ROWS:
        console.print("...")


def _cell(value: object) -> str:
    match value:
        case None:
            text = ""
        case bytes() | bytearray():
            text = repr(bytes(value))[2:-1]
        case int():
            text = f"{value:,}"
        case float():
            text = f"{value:,.3f}"
        case datetime():
            text = utc(round(value.timestamp() * 1000))  # Spark returns local time
        case _:
            text = str(value)
    return escape(text if len(text) <= _CELL else f"{text[:_CELL]}...")
