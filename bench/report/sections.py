"""The tables of NOTEBOOK.md: the fields shown of each bench, and their format."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from bench.report.results import Results, Row

Column: TypeAlias = tuple[str, str, str]
"""Title, field of the row, and its format (`s` is for words)."""


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return a table of Markdown; a missing field, or None, is left empty.

    Raises:
        ValueError: there are no rows, so a part of the bench has no results.
    """
    if not rows:
        raise ValueError(f"a table of {', '.join(title for title, _, _ in columns)} has no rows")
    head = " | ".join(title for title, _, _ in columns)
    rule = "|".join("---" if how == "s" else "---:" for _, _, how in columns)
    lines = [f"| {head} |", f"|{rule}|"]
    for row in rows:
        cells = ("" if row.get(key) is None else f"{row[key]:{how}}" for _, key, how in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


RUN: Final = (
    ("a second", "rate", ",.0f"),
    ("p50 ms", "p50_ms", ".2f"),
    ("p99 ms", "p99_ms", ".2f"),
    ("p99.9 ms", "p999_ms", ".2f"),
    ("leader µs/op", "leader_us", ".1f"),
    ("follower µs/op", "follower_us", ".1f"),
    ("per batch", "per_batch", ",.0f"),
    ("commits a second", "commits_per_s", ",.0f"),
)
KIND: Final = (("command", "command", "s"), ("clients", "clients", ","))
PIPELINE: Final = ("pipeline", "pipeline", "d")


def _upper(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "command": row["command"].upper()} for row in rows]


def cluster(results: Results) -> str:
    """Rates of the cluster from outside."""
    spread = (("lowest", "lowest", ",.0f"), ("highest", "highest", ",.0f"))
    rate, *rest = RUN
    return table(_upper(results.rows), (*KIND, PIPELINE, rate, *spread, *rest))


OURS: Final = "quorate"
LEASED: Final = "quorate with leases"
"""The names of our clusters in the rows of `peers.py`."""

BESIDE: Final = (
    *("rate", "ours_rate", "ours_to_theirs", "p99_ours_to_theirs"),
    *("leased_rate", "leased_to_theirs"),
)
"""Additional columns of the other products' rows."""


def peers(results: Results) -> str:
    """Our cluster next to each other product, a line for each kind of load."""
    lines: dict[tuple[str, int, int], dict[str, object]] = {}
    others: list[str] = []
    for row in _upper(results.rows):
        kind = row["command"], row["clients"], row["pipeline"]
        names = ("command", "clients", "pipeline")
        line = lines.setdefault(kind, dict(zip(names, kind, strict=True)))
        name = row["cluster"]
        if name == OURS:
            line["p99_ms"] = row["p99_ms"]
        if name in {OURS, LEASED}:
            continue
        if name not in others:
            others.append(name)
        line |= {f"{name} {field}": row.get(field) for field in BESIDE}
    columns: list[Column] = [*KIND, PIPELINE, RUN[2]]
    for name in others:
        columns += [
            (f"{name} a second", f"{name} rate", ",.0f"),
            ("ours", f"{name} ours_rate", ",.0f"),
            (f"ratio to {name}", f"{name} ours_to_theirs", ".2f"),
            ("ratio of p99", f"{name} p99_ours_to_theirs", ".2f"),
            ("with leases", f"{name} leased_rate", ",.0f"),
            (f"its ratio to {name}", f"{name} leased_to_theirs", ".2f"),
        ]
    beside = table([*lines.values()], columns)
    each = table(_upper(results.rows), (*KIND, PIPELINE, ("cluster", "cluster", "s"), *RUN))
    return f"{beside}\n\nAll runs of each cluster, whichever other one was up:\n\n{each}"


def _next_to_etcd(title: str, name: str, how: str) -> tuple[Column, ...]:
    """Return the columns of one figure: ours, etcd's, and the ratio."""
    ours, theirs, ratio = f"ours_{name}", f"etcd_{name}", f"{name}_ratio"
    return ((title, ours, how), ("etcd", theirs, how), ("ratio", ratio, ".2f"))


def etcd(results: Results) -> str:
    """Our port for clients of etcd, next to etcd."""
    calls: tuple[Column, ...] = (
        *(("at", "door", "s"), ("call", "call", "s"), ("clients", "clients", "d")),
        *_next_to_etcd("a second", "rate", ",.0f"),
        *_next_to_etcd("p99 ms", "p99_ms", ".1f"),
        *_next_to_etcd("µs/op, all members", "us", ",.0f"),
    )
    watches: tuple[Column, ...] = (
        *(("watchers", "watchers", ",d"), ("of", "watched", "s"), ("puts a second", "puts", "d")),
        *_next_to_etcd("p50 ms", "p50_ms", ".1f"),
        *_next_to_etcd("p99 ms", "p99_ms", ".1f"),
        *_next_to_etcd("µs/event with its Put, all members", "event_us", ",.0f"),
    )
    leases: tuple[Column, ...] = (
        *(("leases", "leases", ",d"), ("of", "cluster", "s"), ("lost", "lost", ".0f")),
        *(("elections", "elections", "d"), ("renewals a second", "renewals", ",.0f")),
        *(("their p50 ms", "renewal_p50_ms", ",.1f"), ("p99", "renewal_p99_ms", ",.1f")),
        *(("Puts a second", "rate", ",.0f"), ("p99 ms", "p99_ms", ".1f")),
        ("ms/s, all members", "processor_ms", ",.0f"),
    )
    kinds = (("call", calls), ("watched", watches), ("leases", leases))
    return "\n\n".join(
        table([row for row in results.rows if kind in row], columns) for kind, columns in kinds
    )


def failover(results: Results) -> str:
    """How long writes pause."""
    rows = [
        {**row, **{name: 1000 * row[name] for name in ("median_s", "p95_s", "longest_s")}}
        for row in results.rows
    ]
    columns = (("fault", "fault", "s"), ("times", "times", "d"), ("median ms", "median_s", ".0f"))
    more = (("p95 ms", "p95_s", ".0f"), ("longest ms", "longest_s", ".0f"))
    return table(rows, (*columns, *more, ("load before", "load_before", ".1f")))


def members(results: Results) -> str:
    """Members that come and go under load."""
    parts = (
        ("walk", "three members walk onto new machines", "walks", "replacement s, median"),
        ("leader", "the leader is removed", "times", "removal s, median"),
    )
    tables: list[str] = []
    for part, title, times, change in parts:
        if rows := _in_ms(results, part):
            columns: tuple[Column, ...] = ((title, part, "s"), (times, "times", "d"))
            tables.append(table(rows, (*columns, *_SEEN, (change, "change_s", ".1f"), *_ENDS)))
    if rows := _in_ms(results, "wrong"):
        tables.append(table(rows, _WRONG))
    return "\n\n".join(tables)


_SEEN: Final[tuple[Column, ...]] = (
    ("pause ms, median", "median_ms", ",.0f"),
    ("longest", "longest_ms", ",.0f"),
    ("longest before", "steady_ms", ",.0f"),
    ("slowest write ms", "slowest_ms", ",.0f"),
    ("errors", "errors", ",d"),
    ("cut off", "cut", ",d"),
    ("no reply in time", "silent", ",d"),
)
_ENDS: Final[tuple[Column, ...]] = (
    ("longest", "longest_change_s", ".1f"),
    ("exit statuses", "statuses", "s"),
    ("writes a second before", "rate_before", ",.0f"),
    ("during", "rate", ",.0f"),
    ("load", "load", ".1f"),
)
_WRONG: Final[tuple[Column, ...]] = (
    ("a member at a wrong address", "wrong", "s"),
    ("times", "times", "d"),
    ("writes a second without", "without", ",.0f"),
    ("with it", "with", ",.0f"),
    ("ratio", "ratio", ".2f"),
    ("load", "load", ".1f"),
)


def _in_ms(results: Results, part: str) -> list[Row]:
    """Return the rows of a part, with their pauses in ms."""
    names = ("median", "longest", "steady", "slowest")
    return [
        {**row, **{f"{name}_ms": 1000 * row[f"{name}_s"] for name in names if f"{name}_s" in row}}
        for row in results.rows
        if part in row
    ]


def steady(results: Results) -> str:
    """Whether a busy machine holds elections."""
    columns = (
        ("other busy processes", "others", "d"),
        ("seconds", "seconds", ",.0f"),
        ("elections", "elections", "d"),
        ("writes a second", "writes_a_second", ",.0f"),
        ("longest pause s", "longest_pause_s", ".2f"),
        ("load after", "load_after", ".1f"),
    )
    return table(results.rows, columns)


def growth(key: str, title: str) -> Callable[[Results], str]:
    """How SET and GET grow with something."""
    columns: list[Column] = [(title, key, ",")]
    for name in ("set", "get"):
        columns += [
            (f"{name.upper()} a second", f"{name}_rate", ",.0f"),
            ("p50 ms", f"{name}_p50_ms", ".2f"),
            ("p99 ms", f"{name}_p99_ms", ".2f"),
            ("leader µs/op", f"{name}_leader_us", ".1f"),
            ("follower µs/op", f"{name}_follower_us", ".1f"),
        ]
    columns += [("SETs per batch", "set_per_batch", ",.0f")]
    columns += [("commits a second", "set_commits_per_s", ",.0f"), ("RSS MB", "rss_mb", ",.0f")]
    columns += [("private MB", "own_mb", ",.0f")]
    return lambda results: table(results.rows, columns)


def tls(results: Results) -> str:
    """Clients with and without TLS, and many that reconnect."""
    rate, *rest = RUN
    spread = (("lowest", "lowest", ",.0f"), ("highest", "highest", ",.0f"))
    share = ("of plain", "of_plain", ".2f")
    rates = (("port", "port", "s"), *KIND, rate, share, *spread, *rest)
    storm = (
        ("clients that connect at once", "reconnecting", ",d"),
        ("all served after s", "first_s", ".2f"),
        ("again after s", "again_s", ".2f"),
        ("tries more", "tries", ",d"),
        ("longest wait of a plain client ms", "longest_wait_ms", ",.0f"),
        ("elections", "elections", "d"),
    )
    loads = [row for row in results.rows if "port" in row]
    storms = [row for row in results.rows if "reconnecting" in row]
    return f"{table(_upper(loads), rates)}\n\n{table(storms, storm)}"


def client(results: Results) -> str:
    """Our own client and two others."""
    columns = (
        ("client", "client", "s"),
        ("command", "command", "s"),
        ("tasks", "tasks", ","),
        *RUN[:4],
        ("of the faster other", "of_faster", ".2f"),
        ("lowest", "lowest", ",.0f"),
        ("highest", "highest", ",.0f"),
    )
    return table(_upper(results.rows), columns)


def metrics(results: Results) -> str:
    """What it costs to be watched."""
    rate, *rest = RUN
    spread = (("lowest", "lowest", ",.0f"), ("highest", "highest", ",.0f"))
    share = ("of unwatched", "of_unwatched", ".3f")
    resting = (
        ("leader at rest ms/s", "leader_rest_ms", ".1f"),
        ("follower at rest ms/s", "follower_rest_ms", ".1f"),
    )
    columns = (("watched by", "watched_by", "s"), *KIND, rate, share, *spread, *rest, *resting)
    return table(_upper(results.rows), columns)


def growth_log(results: Results) -> str:
    """What the length of the log costs."""
    columns = (
        ("log MB", "log_mb", ",.0f"),
        ("written MB/s", "written_mb_per_s", ",.0f"),
        ("restart s", "restart_s", ".2f"),
        ("verify s", "verify_s", ".1f"),
        ("verify MB/s", "verify_mb_per_s", ",.0f"),
        ("prune s", "prune_s", ".2f"),
        ("RSS MB", "rss_mb", ",.0f"),
        ("private MB", "own_mb", ",.0f"),
    )
    return table(results.rows, columns)


def overload(results: Results) -> str:
    """Too much load, and a client that never reads."""
    columns = (
        ("phase", "phase", "s"),
        ("SET a second", "rate", ",.0f"),
        ("p50 ms", "p50_ms", ".1f"),
        ("p99 ms", "p99_ms", ".1f"),
        ("longest ms", "longest_ms", ",.0f"),
        ("error replies", "errors", ",d"),
        ("which", "codes", "s"),
        ("cut off unanswered", "dropped", ",d"),
        ("never answered", "unanswered", ",d"),
        ("leader MB, most", "leader_mb", ",.0f"),
        ("follower MB, most", "follower_mb", ",.0f"),
        ("elections", "elections", "d"),
    )
    greedy = (
        ("one that never reads", "phase", "s"),
        ("in the end it is", "outcome", "s"),
        ("MB taken from it", "taken_mb", ",.1f"),
        ("leader MB, most", "leader_mb", ",.0f"),
        ("grown by MB", "grown_mb", ",.1f"),
    )
    crowds = [row for row in results.rows if "clients" in row]
    alone = [row for row in results.rows if "taken_mb" in row]
    return f"{table(crowds, columns)}\n\n{table(alone, greedy)}"


def embedded(results: Results) -> str:
    """The embedded store next to the same store over RESP."""
    columns = (("way", "way", "s"), ("tasks or clients", "clients", "d"), *RUN)
    return table(results.rows, (*columns, ("to RESP", "to_resp", ".2f")))


def restart(results: Results) -> str:
    """Memory, and the time until members serve again."""
    sides = [
        (f"{side} {title}", f"{side}_{field}", ",.0f")
        for side in ("leader", "follower")
        for title, field in (("RSS MB", "rss_mb"), ("PSS MB", "pss_mb"), ("own MB", "own_mb"))
    ]
    starts = (("started again", "what", "s"), ("median s", "median_s", ".2f"))
    held = table([row for row in results.rows if "keys" in row], [("keys", "keys", ","), *sides])
    back = [row for row in results.rows if "what" in row]
    more = (("longest s", "longest_s", ".2f"), ("processor s", "cpu_s", ".2f"))
    return f"{held}\n\n{table(back, (*starts, *more))}"


def catchup(results: Results) -> str:
    """A catch-up under load."""
    columns = (
        ("back by", "way", "s"),
        ("MB of log behind", "behind_mb", ",.0f"),
        ("MB in the end", "caught_up_mb", ",.0f"),
        ("s to start", "start_s", ".2f"),
        ("s to catch up", "catch_up_s", ".1f"),
        ("MB/s", "mb_per_s", ",.0f"),
        ("SET a second before", "rate_whole", ",.0f"),
        ("with it away", "rate_away", ",.0f"),
        ("while it catches up", "rate_during", ",.0f"),
        ("ratio to before", "during_to_whole", ".2f"),
        ("after", "rate_after", ",.0f"),
        ("errors", "errors", "d"),
    )
    return table(results.rows, columns)


def snapshot(results: Results) -> str:
    """What snapshots cost and save."""
    tables: tuple[tuple[str, tuple[Column, ...]], ...] = (
        (
            "snapshot",
            (
                ("snapshot of all three members", "snapshot", "s"),
                ("MB", "mb", ",.0f"),
                ("s", "seconds", ".1f"),
                ("MB/s", "mb_per_s", ",.0f"),
            ),
        ),
        ("writes", (("SETs", "writes", "s"), ("clients", "clients", "d"), *RUN[:6])),
        (
            "disk",
            (
                ("disk of the leader", "disk", "s"),
                ("log MB", "log_mb", ",.0f"),
                ("its file MB", "log_file_mb", ",.0f"),
                ("free in it MB", "log_free_mb", ",.0f"),
                ("tables MB", "tables_file_mb", ",.0f"),
                ("snapshots MB", "snapshots_mb", ",.0f"),
            ),
        ),
        ("follower", (("a follower comes back", "follower", "s"), ("s", "seconds", ".1f"))),
    )
    return "\n\n".join(
        table([row for row in results.rows if kind in row], columns) for kind, columns in tables
    )


def storage(results: Results) -> str:
    """The store next to other stores."""
    appends = (
        ("durable appends", "load", "s"),
        ("of", "contestant", "s"),
        ("commits a second", "commits_per_s", ",.0f"),
        ("entries a second", "entries_per_s", ",.0f"),
        ("MB/s", "mb_per_s", ",.1f"),
        ("p50 µs", "p50_us", ",.0f"),
        ("p99 µs", "p99_us", ",.0f"),
        ("of the raw file", "of_raw", ".2f"),
    )
    logs = (
        ("a whole log", "log", "s"),
        ("replay MB/s", "replay_mb_per_s", ",.0f"),
        ("of the raw file", "of_raw", ".2f"),
        ("truncate 10 % ms", "truncate_ms", ",.2f"),
        ("prune 25 % ms", "prune_ms", ",.2f"),
        ("reopen ms", "reopen_ms", ",.2f"),
    )
    first = table([row for row in results.rows if "load" in row], appends)
    return f"{first}\n\n{table([row for row in results.rows if 'log' in row], logs)}"


def transport(results: Results) -> str:
    """What messages cost, and how fast links are."""
    messages = (
        ("message", "message", "s"),
        ("bytes", "bytes", ",.0f"),
        ("encode µs", "encode_us", ".2f"),
        ("decode µs", "decode_us", ".2f"),
    )
    links = (
        ("link", "link", "s"),
        ("bytes", "frame_bytes", ",d"),
        ("messages a second", "messages_per_s", ",d"),
        ("MB/s", "mb_per_s", ",.1f"),
        ("µs/message, both ends", "cpu_us_per_message", ".2f"),
        ("round trip µs", "round_trip_us", ".1f"),
    )
    first = table([row for row in results.rows if "message" in row], messages)
    return f"{first}\n\n{table([row for row in results.rows if 'link' in row], links)}"


def spark(results: Results) -> str:
    """The pipeline."""
    columns = (
        ("what", "what", "s"),
        ("rows", "rows", ",d"),
        ("s", "seconds", ".2f"),
        ("lowest", "lowest_s", ".2f"),
        ("highest", "highest_s", ".2f"),
        ("a second", "rate", ",.0f"),
        ("MiB, most", "peak_mib", ",.0f"),
        ("load before", "load_before", ".1f"),
    )
    return table(results.rows, columns)


def partitions(results: Results) -> str:
    """What partitions cost, moves under load, and idle groups."""
    ways = (
        ("way", "way", "s"),
        ("command", "command", "s"),
        *(("a second", "rate", ",.0f"), ("p50 ms", "p50_ms", ".2f"), ("p99 ms", "p99_ms", ".2f")),
        ("leader µs/op", "leader_us", ".1f"),
        ("lowest", "lowest_us", ".1f"),
        ("highest", "highest_us", ".1f"),
        ("ratio", "leader_us_ratio", ".2f"),
        ("follower µs/op", "follower_us", ".1f"),
        ("its ratio", "follower_us_ratio", ".2f"),
    )
    moves = (
        ("client", "client", "s"),
        ("while", "while", "s"),
        ("commands", "calls", ",d"),
        ("errors", "errors", "d"),
        ("keys", "keys", ",d"),
        ("move s", "move_s", ".1f"),
        ("frozen ms", "frozen_ms", ",.0f"),
        ("longest wait ms, median of clients", "middle_ms", ",.0f"),
        ("95 %", "p95_ms", ",.0f"),
        ("of all", "longest_ms", ",.0f"),
    )
    resting = (
        ("at rest", "resting", "s"),
        ("of all three machines", "kind", "s"),
        ("processes", "processes", "d"),
        ("ms/s each", "each_ms", ".1f"),
        ("ms/s together", "all_ms", ".0f"),
        ("own MB each", "own_mb", ".0f"),
    )
    rows = results.rows
    parts = (
        table(_upper([row for row in rows if "way" in row]), ways),
        table([row for row in rows if "while" in row], moves),
        table([row for row in rows if "resting" in row], resting),
    )
    return "\n\n".join(parts)


def anatomy(results: Results) -> str:
    """Where the microseconds go."""
    rows = results.rows
    steps = (("a lone client waits for", "step", "s"), ("p50 µs", "p50_us", ",.0f"))
    first = table([row for row in rows if "step" in row], (*steps, ("p99 µs", "p99_us", ",.0f")))
    modules = [row for row in rows if "module" in row]
    if not modules:  # results from before py-spy was required
        return first
    names = (("on top", "module", "s"), ("of the leader's time", "share", ".1%"))
    return f"{first}\n\n{_PROFILE}\n\n{table(modules, (*names, ('µs of a SET', 'us', '.1f')))}"


_PROFILE: Final = (
    "The leader under 64 clients that set keys, by `py-spy`: the module on top of the stack, with "
    "the C functions and system calls that it calls. Threads that wait for work are left out."
)


def lone_set(results: Results) -> str:
    """A lone client's SET, step by step, and its comparisons."""
    steps = [row for row in results.rows if "until" in row]
    whole = sum(row["us"] for row in steps)
    rows = [{**row, "share": row["us"] / whole} for row in steps]
    rows.append({"until": "in all", "us": whole})
    rows += [{**row, "until": row["beside"]} for row in results.rows if "beside" in row]
    columns = (("until", "until", "s"), ("µs", "us", ".0f"), ("of all", "share", ".0%"))
    return table(rows, columns)


TOGETHER: Final = {"failover": tuple(f"failover-{f}" for f in ("kill", "stop", "cut", "transfer"))}
"""Tables made from the results of several benches."""

SECTIONS: Final[dict[str, Callable[[Results], str]]] = {
    "cluster": cluster,
    "peers": peers,
    "etcd": etcd,
    "failover": failover,
    "members": members,
    "steady": steady,
    "growth-members": growth("members", "members"),
    "growth-values": growth("value_bytes", "bytes of a value"),
    "growth-keys": growth("keys", "keys"),
    "growth-clients": growth("clients", "clients"),
    "growth-log": growth_log,
    "overload": overload,
    "embedded": embedded,
    "restart": restart,
    "catchup": catchup,
    "snapshot": snapshot,
    "storage": storage,
    "transport": transport,
    "tls": tls,
    "client": client,
    "metrics": metrics,
    "spark": spark,
    "partitions": partitions,
    "anatomy": anatomy,
    "lone-set": lone_set,
}

PICTURES: Final = {
    "peers": "Rates beside those of etcd and RedisRaft",
    "growth-members": "Rate, p99 and processor time over the number of members",
    "growth-values": "Rate, p99 and processor time over the size of values",
    "growth-keys": "Rate, p99 and processor time over the number of keys",
    "growth-clients": "Rate, p99 and processor time over the number of clients",
    "anatomy": "Where the microseconds go",
    "lone-set": "A lone client's SET, from the client to the disks and back",
    "catchup": "Position of the follower, and the clients' rate, over time",
    "overload": "Latency and memory over time, phase after phase",
    "growth-log": "Restart, verification and pruning over the length of the log",
}
"""Descriptions of the plots figures/NAME.svg, which :mod:`plots` draws."""
