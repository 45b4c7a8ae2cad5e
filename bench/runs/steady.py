"""Whether a busy machine holds elections: three members, real clients, and other work.

Writers set keys as in `failover.py`, while other processes at the usual priority use as much of the
processors as they get. Nothing fails, so there should be no election: the leader, its term, and
each member's number of elections must not change. Then the exit status is 0. Every member must have
each acknowledged write in its log. No log is dropped during the run.

The other processes end by themselves shortly after their time, even if this process was killed.
"""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import trio
from rich.console import Console

from bench.lib.harness import USUAL, Common, make_app, open_bench
from bench.lib.measuring import settled
from bench.runs.failover import MEMBERS, WRITERS, Writers, open_members, whole
from quorate.local.cluster import LocalCluster
from quorate.local.survey import survey
from quorate.node.requests.status import NodeStatus

SETTLE_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 30.0
BUSY: Final = "import signal, sys; signal.alarm(int(sys.argv[1]))\nwhile True: pass"


@contextmanager
def busy(processes: int, seconds: float) -> Generator[None]:
    """Run processes that use all processor time they get, for the duration of a block."""
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
    """Return the status of all members, except those that do not answer in time."""
    return (await survey(cluster.addresses)).said


def elections(before: list[NodeStatus], after: list[NodeStatus]) -> int:
    """Count the elections: each pre-vote of any member, and each new term."""
    at = {status.member_id: status for status in before}
    new = sum(status.elections - at[status.member_id].elections for status in after)
    return new + max(status.term for status in after) - max(status.term for status in before)


async def watch(cluster: LocalCluster, seconds: float, writers: Writers, console: Console) -> int:
    """Watch for `seconds`; return the number of elections."""
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


app = make_app()


@app.default
async def main(*, options: Common = USUAL, seconds: float = 600.0, others: int = 2) -> int:
    """Count elections on a busy machine on which nothing fails.

    Parameters
    ----------
    seconds
        Duration.
    others
        Number of other processes; each uses a whole processor.
    """
    if options.quick:
        seconds = 20.0
    with open_bench("steady", options, members=MEMBERS, writers=WRITERS * MEMBERS) as bench:
        async with open_members("stop") as cluster:
            leader, _ = await settled(cluster.local)
            writers = Writers(cluster.local, leader.append_position)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writers.run)
                with busy(others, seconds + SETTLE_SECONDS):
                    began = trio.current_time()
                    count = await watch(cluster.local, seconds, writers, bench.console)
                    pause = writers.longest_pause(began)
                rate = len(writers.acknowledged) / (trio.current_time() - began)
                nursery.cancel_scope.cancel()
            await writers.check()
        bench.found(
            {
                "others": others,
                "seconds": seconds,
                "elections": count,
                "writes_a_second": rate,
                "longest_pause_s": pause,
                "load_after": os.getloadavg()[0],
            }
        )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(app())
