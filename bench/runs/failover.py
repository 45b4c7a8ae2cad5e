"""How long writes pause when the leader is lost: three members, real clients, this machine.

Writers, several at each member, set keys as fast as they are answered. Whoever gets an error, or no
answer for a while, goes to the next member, as a client with a list of addresses does. Then the
leader is killed (kill -9), stopped (SIGSTOP), cut off from the other members (its clients still
reach it), or asked to hand over, again and again, and the longest time in which no writer at all
got an acknowledgement is the pause. In between the cluster is made whole, and given time to settle;
then every write that was acknowledged must be in the log of each member, and the last of each key
its value there.

`failover.py show FILE...` makes of results the figures of the documentation.
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
"""Set in the process that runs in network namespaces of its own."""

Fault = Literal["kill", "stop", "cut", "transfer"]
WORDS: Final[dict[Fault, str]] = {
    "kill": "kill -9 of the leader",
    "stop": "SIGSTOP of the leader",
    "cut": "the leader is cut off",
    "transfer": "the leader hands over",
}


class Writers:
    """Clients under load, and when each of their writes was acknowledged (trio's clock).

    Args:
        cluster: to which they write.
        position: where its log ends.

    Attributes:
        numbers: what each has sent; it goes on when they run again.
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
        """See that all members have what was acknowledged since the last time; nobody writes now.

        What was not acknowledged may still come, from a member that was held up.

        Raises:
            LostError: they have not.
        """
        members, end = self._cluster.members, (await settled(self._cluster))[0].append_position
        look = numbered(self.numbers, VALUE_BYTES)
        await check_stretch(members, Stretch(self._position, end), look)
        self._position = end
        for mine in self.numbers.values():
            mine.seen = mine.sent

    def longest_pause(self, since: float) -> float:
        """The longest time without any acknowledgement, from the last before `since` until now."""
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
    """The members, and what is done to them.

    Args:
        local: the members.
        network: between them, if they can be cut off.
    """

    def __init__(self, local: LocalCluster, network: Namespaces | None) -> None:
        self.local = local
        self._network = network

    async def strike(self, leader: MemberProcess, fault: Fault) -> None:
        """Lose the leader."""
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
        """Bring it back."""
        if fault == "kill":
            await leader.start()
        elif fault == "stop":
            leader.send_signal(signal.SIGCONT)
        elif fault == "cut":
            assert self._network
            for one, other in self._ways(leader):
                await self._network.heal(one, other)

    def _ways(self, leader: MemberProcess) -> list[tuple[int, int]]:
        """From it and to it; what it says is what the others miss, so that is cut last."""
        own = leader.member_id
        others = [one.member_id for one in self.local.members if one is not leader]
        return [*((other, own) for other in others), *((own, other) for other in others)]


@asynccontextmanager
async def open_members(fault: Fault) -> AsyncGenerator[Cluster]:
    """Run members for the length of a block, in network namespaces if they will be cut off.

    They take snapshots as usual, but keep the whole log, to be looked at.
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
    """Become the same command in a network namespace of its own.

    Raises:
        SystemExit: this machine has none; says why.
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
    """Strike so many times, and look for what was acknowledged; return the pauses, in seconds."""
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
    """Wait until the cluster is whole and has settled, and look; return the leader."""
    await whole(cluster.local)
    await trio.sleep(SETTLE_SECONDS)
    await writers.check()
    return await whole(cluster.local)


async def pause(cluster: Cluster, leader: MemberProcess, fault: Fault, writers: Writers) -> float:
    """Strike once, with as many new clients at each member; return the pause, in seconds."""
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
    """The smallest value that so large a share does not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def histogram(pauses: Sequence[float]) -> list[str]:
    """Draw how often the pause was how long, a line for each column of it."""
    columns = [int(pause / COLUMN_SECONDS) for pause in pauses]
    highest = max(columns.count(column) for column in columns)
    lines: list[str] = []
    for column in range(min(columns), max(columns) + 1):
        bar = "█" * math.ceil(columns.count(column) / highest * BAR)
        low, high = (edge * COLUMN_SECONDS * 1000 for edge in (column, column + 1))
        lines.append(f"{low:5.0f} to {high:5.0f} ms  {columns.count(column):3}  {bar}".rstrip())
    return lines


def figures(pauses: Sequence[float]) -> dict[str, float]:
    """The pauses in three numbers, in seconds."""
    return {
        "median_s": statistics.median(pauses),
        "p95_s": percentile(list(pauses), 0.95),
        "longest_s": max(pauses),
    }


def in_words(found: dict[str, float]) -> str:
    """The figures in a line."""
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
    """Make Markdown of results."""
    parts: list[str] = []
    for file in files:
        (run,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
        words = f"{WORDS[run['fault']]}, {run['times']} times: {in_words(figures(run['pauses_s']))}"
        parts += ["```text", words, *histogram(run["pauses_s"]), "```", ""]
    return "\n".join(parts)


@app.default
async def main(*, options: Common = USUAL, times: int = 20, fault: Fault = "kill") -> None:
    """Measure for how long writes pause when the leader is lost.

    Parameters
    ----------
    times
        How often the leader is lost.
    fault
        kill: kill -9; stop: SIGSTOP, it hangs; cut: the other members neither hear it nor are
        heard; transfer: it is asked to hand over.
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
