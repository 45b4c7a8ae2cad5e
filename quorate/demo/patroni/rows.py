"""The client of PostgreSQL: it writes a row every half second, and notes which were acknowledged.

It is `psql` with the addresses of all nodes; libpq finds the one that takes writes. Each row is
another process, so no state of a connection hides an outage.
"""

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from ...local.cluster import HOST
from .nodes import Node

__all__ = ["Rows", "query"]

PAUSE_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 5.0
"""How long a row may take. Then its outcome is unknown, and it does not count."""


async def query(psql: Path, nodes: Sequence[Node], text: str, *, writing: bool) -> str | None:
    """Run a statement on the first node that can; return its output, None if it failed.

    Args:
        psql: the program.
        nodes: which may be asked.
        text: the statement.
        writing: only the primary will do.
    """
    kind = "read-write" if writing else "any"
    hosts, ports = ",".join(HOST for _ in nodes), ",".join(str(node.port) for node in nodes)
    place = f"host={hosts} port={ports} user=postgres dbname=postgres connect_timeout=2"
    output: bytes | None = None
    with trio.move_on_after(_ANSWER_SECONDS):
        done = await trio.run_process(
            [str(psql), "-XqAtw", "-d", f"{place} target_session_attrs={kind}", "-c", text],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        output = done.stdout if done.returncode == 0 else None
    return None if output is None else output.decode().strip()


class Rows:
    """The table with a row for each half second.

    Args:
        psql: the program.
        nodes: all nodes.
    """

    def __init__(self, psql: Path, nodes: Sequence[Node]) -> None:
        self._psql = psql
        self._nodes = nodes
        self._acknowledged: list[tuple[float, int]] = []

    async def create(self) -> bool:
        """Create the table; return whether that worked."""
        text = "CREATE TABLE beats (id bigint PRIMARY KEY, at timestamptz DEFAULT now())"
        return await query(self._psql, self._nodes, text, writing=True) is not None

    async def run(self) -> None:
        """Write rows until cancelled."""
        for number in itertools.count():
            text = f"INSERT INTO beats (id) VALUES ({number})"  # noqa: S608 - a number of ours
            if await query(self._psql, self._nodes, text, writing=True) is not None:
                self._acknowledged.append((trio.current_time(), number))
            await trio.sleep(PAUSE_SECONDS)

    @property
    def count(self) -> int:
        """How many rows were acknowledged."""
        return len(self._acknowledged)

    def longest_gap(self, since: float) -> float:
        """Return the longest time after `since` without an acknowledged row, in seconds."""
        times = [since, *(at for at, _ in self._acknowledged if at > since), trio.current_time()]
        return max(b - a for a, b in itertools.pairwise(times))

    async def missing(self, node: Node) -> int | None:
        """Return how many acknowledged rows a node has not; None if it does not answer."""
        found = await query(self._psql, [node], "SELECT id FROM beats", writing=False)
        if found is None:
            return None
        there = {int(line) for line in found.split()}
        return sum(number not in there for _, number in self._acknowledged)
