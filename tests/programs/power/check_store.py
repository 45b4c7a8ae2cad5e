"""Whether a store that has lost its power holds what it had reported.

Usage: python -m tests.programs.power.check_store log DIRECTORY POSITION VOTE
       python -m tests.programs.power.check_store tables DIRECTORY POSITION

Exit status 0 if it does. It is a program since LMDB may end a process that opens a torn file, as a
disk that lies leaves it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from quorate.storage import Store, verify
from quorate.storage.tables.tables import Tables


def check_log(directory: Path, position: int, vote: int) -> list[str]:
    """Compare a recording with its last reports: the append position, and the candidate term."""
    store = Store.open(directory, cluster="testing", member_id=1, rng=random.Random(0))
    store.close()
    report = verify(directory)
    found = [str(finding) for finding in report.findings]
    if store.append_position < position:
        found.append(f"reported {position} as durable, and only {store.append_position} is there")
    if store.append_position - store.start_position != report.bytes:
        found.append(f"{report.bytes} bytes verified, not those of the log")
    if store.node_state.candidate_term < vote:
        found.append(f"reported a vote in term {vote}, {store.node_state} is there")
    return found


def check_tables(directory: Path, position: int) -> list[str]:
    """Compare tables with their last report, the log position of the last flush."""
    tables = Tables.open(directory, cluster="test", member_id=1)
    try:
        if tables.position < position:
            return [f"reported {position} as flushed, and only {tables.position} is there"]
        found: list[bytes] = []
        place: bytes | None = b""
        while place is not None:
            keys, place = tables.page(place, 1000)
            found += keys
        there = sum(tables.get(key) is not None for key in found)
        return [] if there == len(tables) else [f"{there} keys, counted as {len(tables)}"]
    finally:
        tables.close()


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    check = {"log": check_log, "tables": check_tables}[what]
    trouble = check(Path(where), *map(int, numbers))  # type: ignore[operator]
    sys.exit("\n".join(trouble) or 0)
