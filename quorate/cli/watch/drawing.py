"""A picture of a cluster, in words, bars and a line: it needs no colour, and 80 columns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...local.show import fitted
from ...local.words import age, etcd_line, size
from .model import SETTLED, STALE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from .model import Cluster, Seen, Step

BAR_WIDTH: Final = 12
LINE_WIDTH: Final = 24
LEAST_AXIS_BYTES: Final = 64 << 10
"""Smaller: a batch that is on its way looks like a lag. Larger: a small lag is not seen."""

STEPS: Final = 8
"""Steps of elections that are shown. More: the picture is higher than a small terminal."""

_BLOCKS: Final = ("█", "▓", "░", "·")
_SIGNS: Final = ("#", "=", "-", ".")
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_SIGN_LEVELS: Final = "_.-=+*%#"
_WIDE: Final = 110
_SPARE: Final = ("applied", "committed", "appended", "heard", "log")


def draw(cluster: Cluster, console: Console, *, keys: str = "") -> RenderableType:
    """Return the picture.

    Args:
        cluster: all that is known.
        console: says how wide the terminal is, and which characters it has.
        keys: which keys do what; empty if none does.
    """
    plain = not console.encoding.lower().startswith("utf")
    parts: list[RenderableType] = [*_header(cluster, plain=plain), Text()]
    table, narrow = _table(cluster, console, plain=plain)
    parts += [table, *narrow, Text()]
    parts += [Text(line, style="red") for line in _problems(cluster)]
    parts += [Text(line, style="dim") for line in _legend(cluster, plain=plain)]
    # A screen does not scroll: the line with the keys would be outside of it.
    used = sum(isinstance(part, Text) for part in parts) + len(cluster.members) + 4
    room = max(min(console.height - used, STEPS), 1) if keys else STEPS
    parts += [Text(), *_steps(cluster, room, plain=plain, cut=bool(keys))]
    if keys:
        parts += [Text(), Text(keys, style="dim")]
    return Group(*parts)


def _header(cluster: Cluster, *, plain: bool) -> list[Text]:
    name = f'Cluster "{cluster.name}"' if cluster.name else "Cluster"
    what = "entries/s" if cluster.counts_entries else "bytes/s"
    rate = cluster.rates[-1] if cluster.rates else None
    words = "rate unknown" if rate is None else f"{rate:,.0f} {what}"
    if cluster.counts_entries and rate is not None:
        words += f", {size(round(cluster.bytes_rate))}/s of log"
    line = _sparkline(list(cluster.rates)[-LINE_WIDTH:], plain=plain)
    first = Text(f"{name}: {_leads(cluster)}; {_margin(cluster)}.", style=_style(cluster))
    second = Text(f"{_clock(cluster, cluster.now)}  {words}  {line}".rstrip())
    # Of those that report now: what a silent member said would be counted for ever.
    etcd = etcd_line([each.etcd for each in cluster.fresh if each.etcd is not None])
    return [first, second, *(Text(words) for words in (_clients(cluster), etcd) if words)]


def _clients(cluster: Cluster) -> str:
    """Say how much clients do, and how long it takes; nothing if no member reports that."""
    if (rate := cluster.commands) is None:
        return ""
    words = f"Clients: {rate:,.0f} commands/s at all members"
    busiest = cluster.busiest
    if busiest is None or busiest.half is None or busiest.most is None:
        return f"{words}."
    durations = f"p50 {_ms(busiest.half)}, p99 {_ms(busiest.most)}"
    return f"{words}; {durations} at member {busiest.member_id}."


def _ms(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _leads(cluster: Cluster) -> str:
    leaders = cluster.leaders
    if not cluster.fresh:
        return "no member answers, the leader is unknown"
    if not leaders:
        return "no member leads"
    if len(leaders) > 1:
        names = " and ".join(f"member {one.member_id} in term {one.term}" for one in leaders)
        return f"{len(leaders)} MEMBERS SAY THAT THEY LEAD, {names}"
    return f"member {leaders[0].member_id} leads term {leaders[0].term}"


def _margin(cluster: Cluster) -> str:
    """Say how many voters may fail."""
    voters, spare = len(cluster.electorate), cluster.spare
    if not voters or not cluster.fresh:
        return "how many may fail is unknown"
    if spare < 0:
        there = spare + voters // 2 + 1
        return f"{there} of {voters} voters report, writes need {voters // 2 + 1}"
    return {0: "none may fail", 1: "one more may fail"}.get(spare, f"{spare} more may fail")


def _style(cluster: Cluster) -> str:
    if len(cluster.leaders) != 1 or cluster.spare < 0:
        return "bold red"
    return "bold yellow" if cluster.spare == 0 else "bold green"


def _table(cluster: Cluster, console: Console, *, plain: bool) -> tuple[Table, list[Text]]:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("member", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("for", "term"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("log", no_wrap=True)
    wide = console.width >= _WIDE
    for name in ("appended", "committed", "applied") if wide else ():
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("lag", "heard", "as of"):
        table.add_column(name, no_wrap=True)
    for seen in (each for _, each in sorted(cluster.members.items())):
        cells = [str(seen.member_id), _state(cluster, seen), _dwell(cluster, seen)]
        cells += [_or_unknown(seen.term), _bar(cluster, seen, plain=plain)]
        if wide:
            cells += [_or_unknown(each) for each in (seen.append, seen.commit, seen.applied)]
        cells += [_lag(cluster, seen), _heard(cluster, seen), _as_of(cluster, seen)]
        stale = cluster.is_stale(seen)
        table.add_row(
            *map(Text, cells), style="dim" if stale else "bold" if seen.role == "leader" else ""
        )
    left_out = fitted(console, table, _SPARE)
    words = f"Too narrow for: {', '.join(left_out)}."
    return table, [Text(words, style="dim")] if left_out else []


def _state(cluster: Cluster, seen: Seen) -> str:
    known = seen.role or "unknown"
    if seen.state and seen.state != SETTLED:
        known = seen.state
    elif not seen.state and not seen.role:
        return seen.trouble if seen.trouble and len(seen.trouble) < LINE_WIDTH else "unknown"
    return f"was {known}" if cluster.is_stale(seen) else known


def _dwell(cluster: Cluster, seen: Seen) -> str:
    if seen.state_since is None or cluster.is_stale(seen):
        return "-"
    return age(max(cluster.now - seen.state_since, 0.0))


def _or_unknown(number: int) -> str:
    return "-" if number < 0 else f"{number:,}"


def _axis(cluster: Cluster) -> tuple[int, int]:
    """Return where the bars begin and end: from where the slowest member is, to the log's end."""
    known = [each for each in cluster.members.values() if each.append >= 0]
    ends = [max(each.append, each.commit) for each in known]
    starts = [each.applied if each.applied >= 0 else each.append for each in known]
    high = max(ends, default=0)
    return max(min(min(starts, default=0), high - LEAST_AXIS_BYTES), 0), high


def _bar(cluster: Cluster, seen: Seen, *, plain: bool) -> str:
    applied, committed, appended, missing = _SIGNS if plain else _BLOCKS
    if seen.append < 0:
        return "unknown"
    low, high = _axis(cluster)
    marks = [_cells(place, low, high) for place in (seen.applied, seen.commit, seen.append)]
    bar = applied * marks[0] + committed * (marks[1] - marks[0])
    bar = bar[:BAR_WIDTH] + appended * max(marks[2] - len(bar), 0)
    return bar + missing * (BAR_WIDTH - len(bar))


def _cells(place: int, low: int, high: int) -> int:
    return max(min(round(BAR_WIDTH * (place - low) / max(high - low, 1)), BAR_WIDTH), 0)


def _lag(cluster: Cluster, seen: Seen) -> str:
    behind = cluster.lag(seen)
    if behind is None:
        return "unknown"
    if cluster.is_stale(seen):
        return "unknown"
    if not behind:
        return "none"
    return size(behind) if behind > 0 else f"+{size(-behind)}"


def _heard(cluster: Cluster, seen: Seen) -> str:
    if seen is cluster.leader:
        return "itself"
    seconds = cluster.last_heard(seen.member_id)
    return "-" if seconds is None else age(seconds)


def _as_of(cluster: Cluster, seen: Seen) -> str:
    """Say how old the figures of a member are."""
    seconds = cluster.age(seen)
    if seconds is None:
        return "never"
    return f"STALE {age(seconds)}" if cluster.is_stale(seen) else age(seconds)


def _problems(cluster: Cluster) -> list[str]:
    lines = [
        f"Member {seen.member_id}{f' at {seen.where}' if seen.where else ''}: {seen.trouble}."
        for _, seen in sorted(cluster.members.items())
        if seen.trouble
    ]
    names = {each.leader for each in cluster.fresh if each.leader is not None}
    if len(names) > 1:
        views = [
            f"member {each.member_id} says {'none' if each.leader is None else each.leader}"
            for each in cluster.fresh
        ]
        lines.append(f"They disagree about the leader: {', '.join(views)}.")
    if cluster.note.startswith("violation"):
        lines.append(cluster.note)
    return lines


def _legend(cluster: Cluster, *, plain: bool) -> list[str]:
    applied, committed, appended, missing = _SIGNS if plain else _BLOCKS
    low, high = _axis(cluster)
    signs = f"{applied} applied {committed} committed {appended} appended {missing} missing"
    lines = [f"log: {signs}, of {low:,} to {high:,}"]
    known = [each for each in cluster.members.values() if cluster.age(each) is not None]
    if any(map(cluster.is_stale, known)):
        lines.append(f"STALE: not heard from here for {STALE_SECONDS:g} s; those are old figures")
    return lines


def _steps(cluster: Cluster, count: int, *, plain: bool, cut: bool) -> list[Text]:
    if not cluster.steps:
        return [Text("No step of an election is known.", style="dim")]
    arrow = "->" if plain else "→"
    # Members are asked one after the other, so they do not come in order.
    newest = sorted(cluster.steps, key=lambda step: step.at)[-count:]
    lines = [_step(cluster, step, arrow) for step in newest]
    return [Text(line, no_wrap=cut, overflow="ellipsis" if cut else "fold") for line in lines]


def _step(cluster: Cluster, step: Step, arrow: str) -> str:
    before = f"{step.before} " if step.before else ""
    reason = f": {step.reason}" if step.reason else ""
    return f"{_clock(cluster, step.at)}  member {step.member}  {before}{arrow} {step.after}{reason}"


def _clock(cluster: Cluster, at: float) -> str:
    """Return a time of day in UTC; of a simulation, the seconds since it began."""
    if not cluster.started_ms:
        return f"{at:9.3f} s"
    seconds, millis = divmod(cluster.started_ms + round(at * 1000), 1000)
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{millis // 100}Z"


def _sparkline(rates: Sequence[float], *, plain: bool) -> str:
    """Return a line of the last rates, as high as the highest of them."""
    levels = _SIGN_LEVELS if plain else _LEVELS
    most = max(rates, default=0.0)
    if not most:
        return levels[0] * len(rates)
    return "".join(levels[min(round(rate / most * 7), 7)] for rate in rates)
