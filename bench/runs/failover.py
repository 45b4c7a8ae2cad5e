"""How long writes pause when the leader is lost: three members, real clients, this machine.

Several writers at each member set keys as fast as they are answered. A writer that gets an error,
or no answer for a while, goes to the next member, like a client with a list of addresses. Then the
leader is killed (kill -9), stopped (SIGSTOP), cut off from the other members while clients still
reach it, or asked to transfer leadership. This is repeated many times. The pause is the longest
time in which no writer got an acknowledgement. In between, the cluster is repaired and gets time to
settle. Then every acknowledged write must be in the log of each member, and each key must have its
last value.

`failover.py show FILE...` prints results in the form that the documentation shows.
"""

import itertools
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import trio
from rich.console import Console

from bench.lib.acknowledged import Numbers, numbered
from bench.lib.checking import Stretch, check_stretch
from bench.lib.harness import ALL_KEPT, USUAL, Common, lay_out_members, make_app, open_bench
from bench.lib.measuring import settled
from quorate.client.resp import RespError, open_resp
from quorate.local.cluster import HOST, LocalCluster, MemberProcess
from quorate.local.survey import Verdict, survey
from quorate.torture.network import NamespaceError, Namespaces, namespace_command, open_namespaces

MEMBERS: Final = 3
WRITERS: Final = 4
VALUE_BYTES: Final = 256
REST: Final = b"x" * (VALUE_BYTES - 16)
PATIENCE_SECONDS: Final = 1.0
STEADY_SECONDS: Final = 1.0
AFTER_SECONDS: Final = 2.5
SETTLE_SECONDS: Final = 2.0
COLUMN_SECONDS: Final = 0.05
BAR: Final = 50

INSIDE: Final = "QUORATE_BENCH_NAMESPACE"
"""This variable is set in the process that runs in its own network namespace."""

Fault = Literal["kill", "stop", "cut", "transfer"]
WORDS: Final[dict[Fault, str]] = {
    "kill": "kill -9 of the leader",
    "stop": "SIGSTOP of the leader",
    "cut": "the leader is cut off",
    "transfer": "the leader hands over",
}


class Writers:
    """Clients that write, and when each of their writes was acknowledged (trio's clock).

    Args:
        cluster: the cluster to write to.
        position: the end of its log.

    Attributes:
        numbers: the numbers that each client has sent; later runs continue them.
    """

    def __init__(self, cluster: LocalCluster, position: int) -> None:
        self.acknowledged: list[float] = []
        self.numbers: dict[bytes, Numbers] = {}
        self._cluster, self._position = cluster, position
        self._addresses = cluster.addresses

    async def run(self) -> None:
        """Write until cancelled."""
        async with trio.open_nursery() as nursery:
            for first in range(len(self._addresses)):
                for number in range(WRITERS):
                    name = b"%d-%d" % (first, number)
                    mine = self.numbers.setdefault(name, Numbers())
                    nursery.start_soon(self._write, first, name, mine)

    async def _write(self, at: int, name: bytes, mine: Numbers) -> None:
        while True:
            address = self._addresses[at % len(self._addresses)]
            try:
                async with open_resp(address.host, address.client_port) as client:
                    while True:
                        mine.sent += 1
                        mine.open.add(mine.sent)
                        with trio.fail_after(PATIENCE_SECONDS):
                            await client.call("SET", name, b"%016d%s" % (mine.sent, REST))
                        mine.open.discard(mine.sent)
                        self.acknowledged.append(trio.current_time())
            except (OSError, RespError, trio.TooSlowError):
                at += 1
                await trio.sleep(0.001)

    async def check(self) -> None:
        """Check that all members have the writes acknowledged since the last check.

        No client may write during the check. Writes that were not acknowledged may still arrive,
        from a member that was stopped.

        Raises:
            LostError: an acknowledged write is missing.
        """
        members, end = self._cluster.members, (await settled(self._cluster))[0].append_position
        look = numbered(self.numbers, VALUE_BYTES)
        await check_stretch(members, Stretch(self._position, end), look)
        self._position = end
        for mine in self.numbers.values():
            mine.seen = mine.sent

    def longest_pause(self, since: float) -> float:
        """Return the longest time without an acknowledgement, from the last one before `since`."""
        before = max((at for at in self.acknowledged if at <= since), default=since)
        times = [at for at in self.acknowledged if at >= before]
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


class Cluster:
    """The members, and the faults that hit them.

    Args:
        local: the members.
        network: the network between them, if they can be cut off.
    """

    def __init__(self, local: LocalCluster, network: Namespaces | None) -> None:
        self.local = local
        self._network = network

    async def strike(self, leader: MemberProcess, fault: Fault) -> None:
        """Make the cluster lose its leader."""
        match fault:
            case "kill":
                await leader.kill()
            case "stop":
                leader.send_signal(signal.SIGSTOP)
            case "cut":
                assert self._network
                for one, other in self._ways(leader):
                    await self._network.cut(one, other)
            case "transfer":
                target = next(one for one in self.local.members if one is not leader)
                address = leader.address
                async with open_resp(address.host, address.client_port) as client:
                    await client.call("QUORATE.CONTROL", "transfer", str(target.member_id))

    async def mend(self, leader: MemberProcess, fault: Fault) -> None:
        """End the fault."""
        if fault == "kill":
            await leader.start()
        elif fault == "stop":
            leader.send_signal(signal.SIGCONT)
        elif fault == "cut":
            assert self._network
            for one, other in self._ways(leader):
                await self._network.heal(one, other)

    def _ways(self, leader: MemberProcess) -> list[tuple[int, int]]:
        """Yield the directions to cut; the leader's sending, which followers notice, is last."""
        own = leader.member_id
        others = [one.member_id for one in self.local.members if one is not leader]
        return [*((other, own) for other in others), *((own, other) for other in others)]


@asynccontextmanager
async def open_members(fault: Fault) -> AsyncGenerator[Cluster]:
    """Run members for the duration of a block, in network namespaces if they will be cut off.

    They take snapshots as usual, but keep the whole log for the checks.
    """
    async with AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-bench-"))
        network: Namespaces | None = None
        if fault == "cut":
            network = await stack.enter_async_context(open_namespaces(MEMBERS))
        hosts = network.hosts if network else [HOST] * MEMBERS
        local = LocalCluster(lay_out_members(Path(place), MEMBERS, snapshot=ALL_KEPT, hosts=hosts))
        if network:
            for member in local.members:
                member.launcher = network.launcher(member.member_id)
        try:
            await local.start()
            yield Cluster(local, network)
            await local.stop()
        finally:
            await local.kill()


def go_inside() -> None:
    """Replace this process by the same command in a new network namespace.

    Raises:
        SystemExit: this machine does not permit it; the message gives the reason.
    """
    if os.environ.pop(INSIDE, ""):
        return
    try:
        command = namespace_command()
    except NamespaceError as error:
        raise SystemExit(
            f"--fault cut: this machine allows no network namespaces: {error}"
        ) from error
    os.environ[INSIDE] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


async def measure(cluster: Cluster, fault: Fault, times: int, console: Console) -> list[float]:
    """Lose the leader `times` times, and check all writes; return the pauses in seconds."""
    pauses: list[float] = []
    await whole(cluster.local)
    writers = Writers(cluster.local, (await settled(cluster.local))[0].append_position)
    for turn in range(times):
        leader = await at_rest(cluster, writers)
        pauses.append(await pause(cluster, leader, fault, writers))
        console.print(f"[dim]{turn + 1}/{times} {fault}: {pauses[-1] * 1000:.0f} ms[/dim]")
        await cluster.mend(leader, fault)
    await at_rest(cluster, writers)
    return pauses


async def at_rest(cluster: Cluster, writers: Writers) -> MemberProcess:
    """Wait until the cluster is complete and settled, check all writes, and return the leader."""
    await whole(cluster.local)
    await trio.sleep(SETTLE_SECONDS)
    await writers.check()
    return await whole(cluster.local)


async def pause(cluster: Cluster, leader: MemberProcess, fault: Fault, writers: Writers) -> float:
    """Lose the leader once, with new clients at each member; return the pause in seconds."""
    writers.acknowledged.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writers.run)
        await trio.sleep(STEADY_SECONDS)
        struck = trio.current_time()
        await cluster.strike(leader, fault)
        await trio.sleep(AFTER_SECONDS)
        nursery.cancel_scope.cancel()
    return writers.longest_pause(struck)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def histogram(pauses: Sequence[float]) -> list[str]:
    """Return a histogram of the pauses, one line for each interval."""
    columns = [int(pause / COLUMN_SECONDS) for pause in pauses]
    highest = max(columns.count(column) for column in columns)
    lines: list[str] = []
    for column in range(min(columns), max(columns) + 1):
        bar = "█" * math.ceil(columns.count(column) / highest * BAR)
        low, high = (edge * COLUMN_SECONDS * 1000 for edge in (column, column + 1))
        lines.append(f"{low:5.0f} to {high:5.0f} ms  {columns.count(column):3}  {bar}".rstrip())
    return lines


def figures(pauses: Sequence[float]) -> dict[str, float]:
    """Return three figures of the pauses, in seconds."""
    return {
        "median_s": statistics.median(pauses),
        "p95_s": percentile(list(pauses), 0.95),
        "longest_s": max(pauses),
    }


def in_words(found: dict[str, float]) -> str:
    """Return the figures as a line."""
    return ", ".join(f"{name[:-2]} {value * 1000:.0f} ms" for name, value in found.items())


app = make_app()


@app.command
async def show(files: list[Path]) -> int:
    """Print the figures of the documentation: a line and a histogram for each file.

    Parameters
    ----------
    files
        Results, figures/failover-*.json.
    """
    print(markdown(files), end="")
    return 0


def markdown(files: Sequence[Path]) -> str:
    """Return results as Markdown."""
    parts: list[str] = []
    for file in files:
        (run,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
        words = f"{WORDS[run['fault']]}, {run['times']} times: {in_words(figures(run['pauses_s']))}"
        parts += ["```text", words, *histogram(run["pauses_s"]), "```", ""]
    return "\n".join(parts)


@app.default
async def main(*, options: Common = USUAL, times: int = 20, fault: Fault = "kill") -> None:
    """Measure how long writes pause when the leader is lost.

    Parameters
    ----------
    times
        How often the leader is lost.
    fault
        kill: kill -9; stop: SIGSTOP; cut: no messages to or from the other members; transfer: the
        leader is asked to transfer leadership.
    """
    if fault == "cut":
        go_inside()
    if options.quick:
        times = 3
    with open_bench(
        f"failover-{fault}", options, members=MEMBERS, writers=WRITERS * MEMBERS
    ) as bench:
        async with open_members(fault) as cluster:
            pauses = await measure(cluster, fault, times, bench.console)
        bench.console.print("\n".join(histogram(pauses)))
        bench.rows.append({"fault": fault, "times": times, **figures(pauses), "pauses_s": pauses})


if __name__ == "__main__":
    sys.exit(app())
