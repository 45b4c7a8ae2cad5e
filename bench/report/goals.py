"""The goals for speed and memory, next to the measured figures.

Ratios to other products come from `peers.py`, which measures in turns; the other figures come from
the benches named. A goal is shown without a figure if its bench was never run.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from bench.report.results import read
from bench.report.sections import table

Find: TypeAlias = Callable[[Path], float | None]
P99: Final = "p99_ours_to_theirs"


@attrs.frozen
class Goal:
    """A goal: its description, its bound, whether this is a minimum, and how to find the figure."""

    words: str
    bound: float
    find: Find
    least: bool = True
    unit: str = "x"

    def row(self, directory: Path) -> Mapping[str, Any]:
        """Return the line of the table."""
        found = self.find(directory)
        sign = "≥" if self.least else "≤"
        row = {"aim": self.words, "bound": f"{sign} {self.bound:g} {self.unit}"}
        if found is None:
            return row | {"found": None, "reached": None}
        reached = found >= self.bound if self.least else found <= self.bound
        return row | {
            "found": f"{found:.3g} {self.unit}",
            "reached": "yes" if reached else "**no**",
        }


def field(bench: str, wanted: Mapping[str, object], name: str) -> Find:
    """Return a function that finds a field in the row with these other fields."""

    def find(directory: Path) -> float | None:
        results = read(bench, directory)
        for row in results.rows if results else ():
            if all(row.get(key) == value for key, value in wanted.items()) and name in row:
                value = row[name]
                return None if value is None else float(value)
        return None

    return find


def to(
    peer: str, command: str, clients: int, pipeline: int = 1, *, name: str = "ours_to_theirs"
) -> Find:
    """Return a function that finds our ratio to a peer."""
    load = {"command": command, "clients": clients, "pipeline": pipeline}
    return field("peers", {**load, "cluster": peer}, name)


def p99_beside_snapshots(directory: Path) -> float | None:
    """Return our p99 during snapshots, relative to RedisRaft's without, from two ratios."""
    beside, alone, ratio = (
        find(directory)
        for find in (
            field("snapshot", {"writes": "while snapshots are taken"}, "p99_ms"),
            field("snapshot", {"writes": "alone"}, "p99_ms"),
            to("RedisRaft", "set", 64, name=P99),
        )
    )
    return None if beside is None or not alone or ratio is None else beside / alone * ratio


def _catchups() -> Iterator[Goal]:
    """Return the goals of catch-up, by log and by snapshot."""
    for way, named in (("a snapshot", "a snapshot, as usual"), ("the log", "the log alone")):
        row = {"way": way}
        words = f"1 GB behind, back by {named}"
        yield Goal(words, 100, field("catchup", row, "mb_per_s"), unit="MB/s")
        yield Goal(
            "the clients' rate during that, to before",
            0.7,
            field("catchup", row, "during_to_whole"),
        )


def _reads() -> Iterator[Goal]:
    """Return the goals of reads; each names what it is compared with."""
    for clients in (64, 256):
        words = f"GET, {clients} clients"
        leased = to("RedisRaft", "get", clients, name="leased_to_theirs")
        yield Goal(f"{words}, to RedisRaft", 0.8, to("RedisRaft", "get", clients))
        yield Goal(f"{words}, to etcd", 4, to("etcd", "get", clients))
        yield Goal(f"{words}, with leases, to RedisRaft without", 1, leased)


def _goals() -> list[Goal]:
    ours = "await kv.set()"
    kept = {"load": "append 64 x 256 B", "contestant": "quorate"}
    return [
        Goal("SET, 1 client, to RedisRaft", 1, to("RedisRaft", "set", 1)),
        Goal("SET, 64 clients, to RedisRaft", 1.2, to("RedisRaft", "set", 64)),
        Goal("SET, 64 clients, to etcd", 3.5, to("etcd", "set", 64)),
        Goal("SET, 256 clients, to RedisRaft", 1.4, to("RedisRaft", "set", 256)),
        Goal("SET, 256 clients, to etcd", 3.5, to("etcd", "set", 256)),
        Goal("SET, 64 clients, pipeline 16, to RedisRaft", 5, to("RedisRaft", "set", 64, 16)),
        *_reads(),
        Goal(
            "SET, 64 clients with TLS, to plain ones",
            0.8,
            field("tls", {"port": "TLS", "command": "set"}, "of_plain"),
        ),
        Goal(
            "p99 of SET, 64 clients, to RedisRaft's",
            1.5,
            to("RedisRaft", "set", 64, name=P99),
            least=False,
        ),
        Goal("the same while snapshots are taken", 3, p99_beside_snapshots, least=False),
        Goal(f"`{ours}` of 256 tasks, to RESP", 2, field("embedded", {"way": ours}, "to_resp")),
        Goal("durable appends of 64 entries, to a raw file", 0.7, field("storage", kept, "of_raw")),
        *_catchups(),
        Goal(
            "a follower with 1M keys back after kill -9",
            1,
            field("restart", {"what": "a follower, after kill -9"}, "median_s"),
            least=False,
            unit="s",
        ),
        Goal(
            "RSS of the leader with 100,000 keys",
            158,
            field("restart", {"keys": 100_000}, "leader_rss_mb"),
            least=False,
            unit="MB",
        ),
        Goal(
            "RSS of the leader with 1M keys",
            615,
            field("restart", {"keys": 1_000_000}, "leader_rss_mb"),
            least=False,
            unit="MB",
        ),
    ]


GOALS: Final = tuple(_goals())


def goals(directory: Path) -> str:
    """Return the table of all goals."""
    columns = (("aim", "aim", "s"), ("wanted", "bound", "s"), ("measured", "found", "s"))
    return table([goal.row(directory) for goal in GOALS], (*columns, ("reached", "reached", "s")))
