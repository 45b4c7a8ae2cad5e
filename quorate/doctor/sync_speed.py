"""How fast the disk makes a small write durable, measured in the member's directory.

A member writes a group of batches to a journal whose size is fixed, and syncs it. So the
measurement overwrites a file of fixed size, too: growing it would cost a second write. The file has
no name, and is gone with its handle, whatever happens.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from ..local.words import size
from ..node.config.config import Timeouts
from .directory import existing
from .finding import Finding, ok, problem, unknown, warning

__all__ = ["check_sync_speed", "judge", "measure"]

WRITES: Final = 200
"""How many writes are measured. Fewer: the 99th percentile is chance. More: it takes longer."""

WRITE_BYTES: Final = 4096
LONGEST_SECONDS: Final = 3.0
"""After this the measurement ends with what it has. Smaller: a slow disk is judged by few writes.
Larger: an operator waits for it."""

_SHARE: Final = 0.25
"""The part of a heartbeat timeout that a sync may take. Smaller: disks that do are warned of.
Larger: two slow syncs in a row cause an election."""


def check_sync_speed(directory: Path, timeouts: Timeouts) -> Finding:
    """Measure the disk of a member, and compare it with the member's timeouts."""
    there = existing(directory)
    try:
        took = measure(there)
    except OSError as error:
        what = "a directory that can be written"
        return unknown("disk sync", f"{there}: {error.strerror}", what)
    return judge(took, timeouts)


def measure(there: Path, writes: int = WRITES, seconds: float = LONGEST_SECONDS) -> list[float]:
    """Write and sync again and again.

    Args:
        there: a directory.
        writes: how many at most.
        seconds: after which none is begun.

    Returns:
        The seconds that each write took, ascending; at least one.

    Raises:
        OSError: the directory can't be written.
    """
    block = b"\xa5" * WRITE_BYTES
    with tempfile.TemporaryFile(dir=there) as file:
        handle = file.fileno()
        os.pwrite(handle, bytes(WRITE_BYTES * writes), 0)
        os.fsync(handle)
        took: list[float] = []
        until = time.monotonic() + seconds
        for number in range(writes):
            began = time.monotonic()
            os.pwrite(handle, block, number * WRITE_BYTES)
            os.fdatasync(handle)
            ended = time.monotonic()
            took.append(ended - began)
            if ended >= until:
                break
    return sorted(took)


def judge(took: list[float], timeouts: Timeouts) -> Finding:
    """Compare measured syncs, ascending, with the timeouts of a member."""
    middle, high, worst = median(took), took[int(0.99 * (len(took) - 1))], took[-1]
    silence = timeouts.leader_heartbeat_timeout
    times = [f"{1000 * each:.2f}" for each in (middle, high, worst)]
    found = (
        f"{size(WRITE_BYTES)}: median {times[0]} ms, p99 {times[1]} ms, worst {times[2]} ms "
        f"of {len(took)}"
    )
    figures: dict[str, object] = {"median_seconds": middle, "p99_seconds": high}
    figures |= {"worst_seconds": worst, "writes": len(took)}
    limit = _SHARE * silence
    remedy = "a faster disk, no other busy program on it, or longer [timeouts]"
    what = f"p99 below {1000 * limit:.0f} ms, a quarter of leader_heartbeat_timeout ({silence:g} s)"
    if high >= silence:
        return problem("disk sync", found, what, remedy, **figures)
    if high >= limit or worst >= silence:
        return warning("disk sync", found, what, remedy, **figures)
    return ok("disk sync", found, **figures)
