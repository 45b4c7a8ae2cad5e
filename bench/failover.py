"""How long writes pause when the leader is lost: three members, real clients, this machine.

Writers, several at each member, set keys as fast as they are answered. Whoever gets an error, or no
answer for a while, goes to the next member, as a client with a list of addresses does. Then the
leader is killed (kill -9), stopped (SIGSTOP) or asked to hand over, again and again, and the
longest time in which no writer at all got an acknowledgement is the pause. In between the cluster
is made whole, and given time to settle.
"""

import itertools
import json
import math
import os
import platform
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final, Literal

import trio
from cyclopts import App, Parameter
from rich.console import Console

import quorate
from quorate.cli_status import make_console
from quorate.cluster import LocalCluster, MemberProcess, free_client_port, lay_out, open_cluster
from quorate.node.gateway import MemberAddress
from quorate.respclient import RespError, open_resp
from quorate.status import Verdict, survey

MEMBERS: Final = 3
WRITERS: Final = 4
VALUE: Final = b"x" * 256
PATIENCE_SECONDS: Final = 1.0
STEADY_SECONDS: Final = 1.0
AFTER_SECONDS: Final = 3.0
SETTLE_SECONDS: Final = 2.5
COLUMN_SECONDS: Final = 0.05
BAR: Final = 50

Fault = Literal["kill", "stop", "transfer"]


class Writers:
    """Clients under load, and when each of their writes was acknowledged (trio's clock)."""

    def __init__(self, addresses: list[MemberAddress]) -> None:
        self.acknowledged: list[float] = []
        self._addresses = addresses

    async def run(self) -> None:
        """Write until cancelled."""
        async with trio.open_nursery() as nursery:
            for first in range(len(self._addresses)):
                for name in range(WRITERS):
                    nursery.start_soon(self._write, first, f"{first}-{name}")

    async def _write(self, at: int, name: str) -> None:
        while True:
            address = self._addresses[at % len(self._addresses)]
            try:
                async with open_resp(address.host, address.client_port) as client:
                    while True:
                        with trio.fail_after(PATIENCE_SECONDS):
                            await client.call("SET", name, VALUE)
                        self.acknowledged.append(trio.current_time())
            except (OSError, RespError, trio.TooSlowError):
                at += 1
                await trio.sleep(0.001)

    def longest_pause(self, since: float) -> float:
        """The longest time without any acknowledgement, from shortly before `since` until now."""
        times = [at for at in self.acknowledged if at > since - STEADY_SECONDS]
        times.append(trio.current_time())
        return max(after - before for before, after in itertools.pairwise(times))


async def whole(cluster: LocalCluster) -> MemberProcess:
    """Wait until all members follow one leader, and return it."""
    with trio.fail_after(60):
        while True:
            seen = await survey(cluster.addresses)
            if seen.verdict is Verdict.AGREED and seen.leader:
                leader = seen.leader.member_id
                return next(one for one in cluster.members if one.member_id == leader)
            await trio.sleep(0.05)


async def strike(cluster: LocalCluster, leader: MemberProcess, fault: Fault) -> None:
    """Lose the leader."""
    match fault:
        case "kill":
            await leader.kill()
        case "stop":
            leader.send_signal(signal.SIGSTOP)
        case "transfer":
            target = next(one for one in cluster.members if one is not leader)
            async with open_resp("127.0.0.1", leader.address.client_port) as client:
                await client.call("QUORATE.CONTROL", "transfer", str(target.member_id))


async def mend(leader: MemberProcess, fault: Fault) -> None:
    """Bring it back."""
    if fault == "kill":
        await leader.start()
    elif fault == "stop":
        leader.send_signal(signal.SIGCONT)


async def measure(cluster: LocalCluster, fault: Fault, times: int, console: Console) -> list[float]:
    """Strike so many times; return the pauses, in seconds."""
    pauses: list[float] = []
    writers = Writers(cluster.addresses)
    await whole(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writers.run)
        for turn in range(times):
            leader = await whole(cluster)
            await trio.sleep(SETTLE_SECONDS)
            writers.acknowledged.clear()
            await trio.sleep(STEADY_SECONDS)
            struck = trio.current_time()
            await strike(cluster, leader, fault)
            await trio.sleep(AFTER_SECONDS)
            pauses.append(writers.longest_pause(struck))
            console.print(f"[dim]{turn + 1}/{times} {fault}: {pauses[-1] * 1000:.0f} ms[/dim]")
            await mend(leader, fault)
        nursery.cancel_scope.cancel()
    return pauses


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share does not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def histogram(pauses: list[float], console: Console) -> None:
    """Print how often the pause was how long."""
    columns = [int(pause / COLUMN_SECONDS) for pause in pauses]
    highest = max(columns.count(column) for column in columns)
    for column in range(min(columns), max(columns) + 1):
        bar = "█" * math.ceil(columns.count(column) / highest * BAR)
        low, high = (edge * COLUMN_SECONDS * 1000 for edge in (column, column + 1))
        console.print(f"{low:5.0f} to {high:5.0f} ms  {columns.count(column):3}  {bar}")


app = App(help_format="markdown", backend="trio", result_action="return_value")


@app.default
async def main(
    *,
    times: int = 20,
    fault: Fault = "kill",
    json_file: Annotated[Path | None, Parameter(name="--json", show_default=False)] = None,
) -> int:
    """Measure for how long writes pause when the leader is lost.

    Parameters
    ----------
    times
        How often the leader is lost.
    fault
        kill: kill -9; stop: SIGSTOP, it hangs; transfer: it is asked to hand over.
    json_file
        Where to write everything, for programs.
    """
    console = make_console()
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as place:
        configs = lay_out(
            Path(place), members=MEMBERS, client_port=free_client_port(MEMBERS), cluster="bench"
        )
        async with open_cluster(configs) as cluster:
            pauses = await measure(cluster, fault, times, console)
    found = {
        "median_s": statistics.median(pauses),
        "p95_s": percentile(pauses, 0.95),
        "longest_s": max(pauses),
    }
    histogram(pauses, console)
    words = ", ".join(f"{name[:-2]} {value * 1000:.0f} ms" for name, value in found.items())
    console.print(f"{fault}, {times} times: {words}")
    if json_file:
        circumstances = {
            "quorate": quorate.__version__,
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "members": MEMBERS,
            "writers": WRITERS * MEMBERS,
            "fault": fault,
            "times": times,
        }
        text = json.dumps({**circumstances, **found, "pauses_s": pauses}, indent=2)
        json_file.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(app())
