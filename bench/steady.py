"""Whether a busy machine holds elections: three members, real clients, and other work.

Writers set keys as in `failover.py`, while other processes, at the usual priority, take as much of
the processors as they are given. Nothing fails, so nobody should be elected: the leader, its term,
and the number of elections of every member must be the same at the end as in the beginning. Then
the exit status is 0.

The other processes end by themselves a little after the time they were made for, whatever becomes
of this one.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import App, Parameter
from failover import MEMBERS, WRITERS, Writers, open_members, whole
from rich.console import Console

import quorate
from quorate.cli_status import make_console
from quorate.cluster import LocalCluster
from quorate.node.gateway import NodeStatus
from quorate.status import survey

SETTLE_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 30.0
BUSY: Final = "import signal, sys; signal.alarm(int(sys.argv[1]))\nwhile True: pass"


@contextmanager
def busy(processes: int, seconds: float) -> Generator[None]:
    """Have so many processes take all that they get, for the length of a block."""
    children = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(int(seconds + GRACE_SECONDS))])
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def look(cluster: LocalCluster) -> list[NodeStatus]:
    """Ask all members how they stand; who does not answer in time is left out."""
    return (await survey(cluster.addresses)).said


def elections(before: list[NodeStatus], after: list[NodeStatus]) -> int:
    """How many elections there were: each canvass of any member counts, and each new term."""
    at = {status.member_id: status for status in before}
    new = sum(status.elections - at[status.member_id].elections for status in after)
    return new + max(status.term for status in after) - max(status.term for status in before)


async def watch(cluster: LocalCluster, seconds: float, writers: Writers, console: Console) -> int:
    """Look on for so long; return how many elections there were."""
    await whole(cluster)
    await trio.sleep(SETTLE_SECONDS)
    before = await look(cluster)
    assert len(before) == MEMBERS, before
    writers.acknowledged.clear()
    end, found = trio.current_time() + seconds, 0
    while trio.current_time() < end:
        await trio.sleep(min(LOOK_SECONDS, end - trio.current_time()))
        now = await look(cluster)
        if now and elections(before, now) != found:
            found = elections(before, now)
            left = end - trio.current_time()
            console.print(f"[red]{found} elections, {left:.0f} s before the end[/red]")
    await whole(cluster)
    return elections(before, await look(cluster))


app = App(help_format="markdown", backend="trio", result_action="return_value")


@app.default
async def main(
    *,
    seconds: float = 600.0,
    others: int = 2,
    json_file: Annotated[Path | None, Parameter(name="--json", show_default=False)] = None,
) -> int:
    """See whether members on a busy machine hold elections although nothing fails.

    Parameters
    ----------
    seconds
        How long.
    others
        How many other processes want a whole processor each.
    json_file
        Where to write everything, for programs.
    """
    console = make_console()
    load = os.getloadavg()[0]
    async with open_members("stop") as cluster, trio.open_nursery() as nursery:
        writers = Writers(cluster.local.addresses)
        await whole(cluster.local)
        nursery.start_soon(writers.run)
        with busy(others, seconds + SETTLE_SECONDS):
            began = trio.current_time()
            count = await watch(cluster.local, seconds, writers, console)
            pause = writers.longest_pause(began)
        rate = len(writers.acknowledged) / (trio.current_time() - began)
        nursery.cancel_scope.cancel()
    console.print(
        f"{count} elections in {seconds:.0f} s beside {others} busy processes; "
        f"{rate:,.0f} writes a second, the longest pause {pause * 1000:.0f} ms"
    )
    if json_file:
        found = {
            "quorate": quorate.__version__,
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "members": MEMBERS,
            "writers": WRITERS * MEMBERS,
            "others": others,
            "seconds": seconds,
            "elections": count,
            "writes_a_second": rate,
            "longest_pause_s": pause,
        }
        json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(app())
