"""`quorate log`: look into the recording of a member, whether it runs or not."""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import attrs
from cyclopts import Parameter, Token
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import WireError
from ..etcd.messages.requested import in_words_untrusted
from ..keyvalue.access.principals import shown
from ..keyvalue.protocol.payload import ETCD
from ..local import configurations
from ..local.principals import Principals
from ..local.show import make_console, print_table
from ..local.slots_words import slots_in_words_untrusted
from ..local.stores import store_of, whose
from ..local.words import counted, parse_position, size, utc
from ..node.leader.term_event import TermEvent, decode_term_event_untrusted
from ..storage.lmdb.file_check import DATA_FILE
from ..storage.log.batch import Entry, EntryKind
from ..storage.log.readonly import open_readonly
from ..storage.rows.term_table import ForcedRow
from ..storage.rows.voting_status import VotingRight
from ..storage.tools.describe import Description, DumpedBatch, dump_from, openings
from ..storage.tools.describe import describe as describe_store
from ..storage.tools.recovery_plan import LookedAt, RecoveryPlan, plan_recovery
from ..storage.tools.verify import VerifyReport
from ..storage.tools.verify import verify as verify_store
from ..storage.tools.verify_tables import TablesReport, verify_tables
from .params import AsJson

__all__ = [
    "PREVIEW_BYTES",
    "describe",
    "dump",
    "lines_of",
    "plain_batch",
    "preview",
    "recovery_plan",
    "verify",
]

PREVIEW_BYTES: Final = 60
"""Bytes that are shown of an entry's payload."""


def describe(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Show what a member's recording holds: its owner, its terms, how far it is committed.

    Each term shows its leader, why there was an election, and how long that took. This is missing
    for a term whose first entry is no longer kept.

    Args:
        directory: The member's directory.
        as_json: For programs.
    """
    store = store_of(directory)
    found, events = describe_store(store), _events(store)
    if as_json:
        plain = attrs.asdict(found)
        for row in plain["terms"]:
            event = events.get(row["term"])
            row["opened"] = None if event is None else attrs.asdict(event)
        print(json.dumps(plain, indent=2))
        return 0
    console = make_console()
    _show_description(found, console)
    _show_terms(found, events, console)
    _show_forced(found.forced, console)
    for snapshot in found.snapshots:
        console.print(
            f"Snapshot at {snapshot.position:,}, term {snapshot.term}, "
            f"{utc(snapshot.timestamp_ms)}: {snapshot.name}"
        )
    for line in configurations.lines_of(found.configurations, found.standing.floor.position):
        console.print(escape(line), soft_wrap=True)
    return 0


def _events(store: Path) -> dict[int, TermEvent]:
    """Return the first entry of each term, by term; malformed ones are left out."""
    found: dict[int, TermEvent] = {}
    for term, entry in openings(store).items():
        if entry.kind is EntryKind.NEW_LEADERSHIP_TERM:
            with suppress(WireError):
                found[term] = decode_term_event_untrusted(entry.payload)
    return found


def _show_description(found: Description, console: Console) -> None:
    state = found.node_state
    vote = f", voted for member {state.voted_for}" if state.voted_for >= 0 else ""
    rows = {
        "belongs to": whose(found.identity),
        "instance": f"{found.identity.instance_id:016x}, format {found.identity.format_version}",
        "standing": _standing(found),
        "candidate term": f"{state.candidate_term}{vote}" if state.candidate_term >= 0 else "none",
        "recorded": f"{found.start_position:,} to {found.append_position:,}, "
        f"{counted(found.batches, 'batch', 'batches')}, {size(found.bytes)}",
        "known committed": f"up to {found.commit_position:,}",
        "last batch": utc(found.timestamp_ms),
        "file": f"{size(found.file_bytes)}, "
        f"{counted(found.free_pages, 'free page', 'free pages')} of {size(found.page_bytes)}: "
        f"{size(found.free_pages * found.page_bytes)} to be used again",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)


def _show_terms(found: Description, events: Mapping[int, TermEvent], console: Console) -> None:
    """Print the terms, and how each began."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="\nTerms", title_justify="left"
    )
    for name in ("term", "from", "to", "length"):
        table.add_column(name, justify="right")
    table.add_column("began")
    for name in ("leader", "election"):
        table.add_column(name, justify="right")
    table.add_column("because", overflow="fold")
    for row in found.terms:
        end = found.append_position if row.end is None else row.end
        to = "open" if row.end is None else f"{row.end:,}"
        event = events.get(row.term)
        how = ("", "", "")
        if event is not None:
            how = str(event.leader_member_id), f"{event.election_ms:,} ms", escape(event.reason)
        began = size(end - row.base), utc(row.timestamp_ms)
        table.add_row(str(row.term), f"{row.base:,}", to, *began, *how)
    print_table(console, table, spare=("length", "began", "election"))


def _standing(found: Description) -> str:
    """Return in words whether a store has a vote."""
    match found.standing.kind:
        case VotingRight.VOTER:
            return "it has a vote"
        case VotingRight.REMOVED:
            return "no vote: its member was removed from the cluster"
        case VotingRight.RECOVERING:
            return "no vote: the others have not admitted it yet"
        case VotingRight.NEW if found.identity.member_id < 0:
            return "a backup has no vote"
        case VotingRight.NEW:
            return "no vote: a standby, or the cluster has not begun yet"


def _show_forced(rows: Sequence[ForcedRow], console: Console) -> None:
    """Print where a quorum was forced."""
    for row in rows:
        console.print(
            f"A quorum was FORCED here at {utc(row.timestamp_ms)}: the cluster was founded again "
            f"with store {row.instance_id:016x}, up to {row.position:,} in term {row.term}. "
            "What other members had behind that is lost.",
            style="yellow",
            soft_wrap=True,
        )


def verify(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Check every record of a member's recording and tables: checksums, order, terms, no gap.

    Exit status: 0 - every record is sound; 1 - damage was found, and is listed.

    Args:
        directory: The member's directory.
        as_json: For programs.
    """
    store = store_of(directory)
    report, tables = verify_store(store), None
    place = store.parent / "tables"
    if store.name == "log" and (place / DATA_FILE).exists():
        tables = verify_tables(place)
    ok = report.ok and (tables is None or not tables.findings)
    if as_json:
        found = attrs.asdict(report) | {"tables": tables and attrs.asdict(tables), "ok": ok}
        print(json.dumps(found, indent=2))
    else:
        _show_report(report, tables, make_console())
    return 0 if ok else 1


def _show_report(report: VerifyReport, tables: TablesReport | None, console: Console) -> None:
    held = (
        counted(report.batches, "batch", "batches"),
        counted(report.entries, "entry", "entries"),
        size(report.bytes),
        counted(report.terms, "term", "terms"),
    )
    console.print(f"{escape(whose(report.identity))}: {', '.join(held)}")
    _show_forced(report.forced, console)
    for finding in report.findings:
        console.print(escape(str(finding)), style="red", soft_wrap=True)
    if report.count > len(report.findings):
        console.print(f"and {report.count - len(report.findings):,} more", style="red")
    count = report.count
    if tables is not None:
        console.print(f"tables: {counted(tables.records, 'record', 'records')}")
        for words in tables.findings:
            console.print(escape(words), style="red", soft_wrap=True)
        count += len(tables.findings)
    if not count:
        console.print("Every record is sound.", style="green")
        return
    console.print(f"DAMAGED: {counted(count, 'finding', 'findings')}.", style="bold red")
    if report.ok:
        console.print("Only the tables are damaged. Delete their directory: they are rebuilt.")


def _position(_kind: object, tokens: Sequence[Token]) -> int:
    """Read a position of the command line."""
    if (position := parse_position(tokens[0].value)) is None:
        raise ValueError("expected a log position, such as 3264 or 3,264")
    return position


From = Annotated[int | None, Parameter(name="--from", show_default=False, converter=_position)]
To = Annotated[int | None, Parameter(name="--to", show_default=False, converter=_position)]


def dump(
    directory: Path,
    /,
    *,
    from_position: From = None,
    to_position: To = None,
    as_json: AsJson = False,
) -> int:
    """Print the recorded batches and their entries, also those not yet known to be committed.

    Args:
        directory: The member's directory.
        from_position: Log position of the first batch to print; the first one kept if left out.
        to_position: Log position to stop at.
        as_json: One JSON object a batch and line, with payloads in base64.
    """
    place = store_of(directory)
    with open_readonly(place) as store:
        committed, who = store.last_commit_position, Principals(store, place.parent)
        for batch in dump_from(store, from_position, to_position):
            if as_json:
                print(json.dumps(plain_batch(batch, who.name)))
            else:
                print("\n".join(lines_of(batch, committed, who.name)))
    return 0


def _number_of(entry: Entry) -> str:
    """Name a principal by its number alone."""
    return shown(entry.principal, None)


def plain_batch(batch: DumpedBatch, name: Callable[[Entry], str] = _number_of) -> dict[str, object]:
    """Return a batch for programs, payloads in base64."""
    entries = [
        {
            "kind": entry.kind.name,
            "flags": entry.flags,
            "session": entry.session,
            "sequence": entry.sequence,
            "principal": entry.principal,
            "user": name(entry),
            "payload": base64.b64encode(entry.payload).decode("ascii"),
        }
        for entry in batch.entries
    ]
    return {**attrs.asdict(batch.header), "entries": entries}


def lines_of(
    batch: DumpedBatch, committed: int, name: Callable[[Entry], str] = _number_of
) -> Iterator[str]:
    """Yield a line for a batch, and one for each of its entries."""
    header = batch.header
    known = "" if header.end <= committed else "  not known to be committed"
    yield (
        f"term {header.term}  {header.position:,} to {header.end:,}  {utc(header.timestamp_ms)}  "
        f"{counted(header.count, 'entry', 'entries')}{known}"
    )
    for entry in batch.entries:
        yield f"  {entry.kind.name:<20} {_by(entry, name)}{_preview(entry)}"


def _by(entry: Entry, name: Callable[[Entry], str]) -> str:
    # Without users everything is by `default`; saying so in each line would help nobody.
    return f"by {name(entry)} " if entry.principal else ""


def _preview(entry: Entry) -> str:
    session = f"session {entry.session}#{entry.sequence} " if entry.session else ""
    is_command = entry.kind is EntryKind.COMMAND
    words = None
    if is_command:
        etcd = entry.flags & ETCD
        words = (in_words_untrusted if etcd else slots_in_words_untrusted)(entry.payload)
    return session + (preview(entry.payload) if words is None else words)


def preview(payload: bytes, begin: int = 0) -> str:
    """Return the bytes of a payload from `begin` on, as printable text, cut short."""
    shown = repr(payload[begin : begin + PREVIEW_BYTES])[2:-1]
    rest = len(payload) - begin - PREVIEW_BYTES
    before = f"from byte {begin:,} on: " if begin else ""
    return f"{before}{shown}{f'... and {rest:,} B' if rest > 0 else ''}"


def recovery_plan(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Show which snapshot the next start of a member loads, and what it replays; change nothing.

    Every snapshot is read and checked. A witness has none, and notes only their positions.

    Exit status: 0 - it can start, and all snapshots are whole; 1 - a snapshot is damaged, or it
    cannot start.

    Args:
        directory: The member's directory.
        as_json: For programs.
    """
    store = store_of(directory)
    found = describe_store(store)
    witness = configurations.is_witness(
        store.parent, found.configurations, found.identity.member_id
    )
    plan = plan_recovery(store.parent, witness=witness)
    if as_json:
        print(json.dumps(attrs.asdict(plan), indent=2))
    elif witness:
        _show_witness(plan, make_console())
    else:
        _show_plan(plan, make_console())
    return int(bool(plan.trouble or plan.tables_damage or any(s.damage for s in plan.snapshots)))


def _show_witness(plan: RecoveryPlan, console: Console) -> None:
    """Print what a witness keeps, and what its next start does."""
    _show_log(plan, console, tables="none, it is a witness")
    kept = size(plan.append_position - plan.start_position)
    console.print(
        f"A witness keeps the log, and no keys: {kept} of log, and the positions at which the "
        "members with tables took snapshots. It starts at once."
    )


def _show_log(plan: RecoveryPlan, console: Console, *, tables: str) -> None:
    """Print what a member has: its log, its tables, its snapshots."""
    rows = {
        "belongs to": whose(plan.identity),
        "log": f"{plan.start_position:,} to {plan.append_position:,}, "
        f"term {plan.log_term}, known committed up to {plan.commit_position:,}",
        "tables": tables,
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    if plan.snapshots:
        print_table(
            console, _snapshots_table(plan.snapshots), spare=("digest", "unpacked", "log time")
        )
    console.print()


def _show_plan(plan: RecoveryPlan, console: Console) -> None:
    complete = f"complete up to {plan.tables_position:,}"
    _show_log(plan, console, tables=plan.tables_damage or complete)
    if plan.trouble:
        console.print(f"It cannot start: {escape(plan.trouble)}.", style="red")
        return
    first = (
        f"It loads the snapshot at {plan.load.position:,}"
        if plan.load
        else f"It starts with its tables at {plan.tables_position:,}"
    )
    left = plan.append_position - plan.replay_from
    rest = f"replays up to {size(left)} of log" if left else "has nothing to replay"
    console.print(f"{first} and {rest}.", style="green")


def _snapshots_table(snapshots: tuple[LookedAt, ...]) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="\nSnapshots", title_justify="left"
    )
    for name in ("position", "term", "size", "unpacked"):
        table.add_column(name, justify="right")
    for name in ("log time", "digest", ""):
        table.add_column(name)
    for each in snapshots:
        moment = time.gmtime(each.row.timestamp_ms / 1000)
        table.add_row(
            f"{each.row.position:,}",
            str(each.row.term),
            size(each.file_bytes),
            size(each.raw_bytes),
            time.strftime("%Y-%m-%d %H:%M:%SZ", moment),
            each.digest,
            escape(each.damage) or ("without state" if each.of_witness else "whole"),
            style="red" if each.damage else "",
        )
    return table
