"""Instruments of the benches: loads and their runs, processor time, memory, the leader.

`redis-benchmark` makes the load. It is a small program in its own process, so that measuring takes
little from the members. The cost of a run comes from /proc and from the members' own counts of
batches and commits, read before and after.
"""

import os
import re
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.acknowledged import counted
from bench.lib.checking import Member, Stretch, check_stretch
from quorate.local.cluster import LocalCluster
from quorate.local.survey import Survey, agreed_and_applied, ask, until
from quorate.node.requests.status import MemberAddress, NodeStatus

TICKS: Final = os.sysconf("SC_CLK_TCK")
TRIAL_BYTES: Final = 32 << 20
RESTING_SECONDS: Final = 0.1
"""A member that uses less processor time in a second than this is idle."""


@attrs.frozen
class Load:
    """One kind of load: a number of clients, each sending `pipeline` commands at a time."""

    command: str
    clients: int
    pipeline: int = 1
    value_bytes: int = 256
    keys: int = 100_000

    def trial(self) -> int:
        """Return a number of commands that is enough to estimate the rate."""
        commands = max(20 * self.clients, 400) * self.pipeline
        return self.whole(min(commands, TRIAL_BYTES // self.value_bytes))

    def whole(self, requests: int) -> int:
        """Round up, so that all clients send equally many commands in full pipelines.

        With such a number, the load programs wait for the reply to each command. With any other
        number, they do not wait for the last ones.
        """
        together = self.clients * self.pipeline
        return max(1, -(-requests // together)) * together


@attrs.frozen
class Latencies:
    """The client's view: operations a second, and latencies in milliseconds."""

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


@attrs.frozen
class Run(Latencies):
    """The result of one run of one load; processor time is in microseconds per operation.

    `per_batch` is the number of commands in a record batch, `commits` the leader's durable commits
    in a second; None if not known. A commit is one sync of the journal, or two of LMDB.
    """

    leader_us: float
    follower_us: float
    per_batch: float | None = None
    commits_per_s: float | None = None


def median(runs: Sequence[Run]) -> Run:
    """Return the median of each figure, taken separately."""
    figures: dict[str, float] = {}
    for field in attrs.fields(Run):
        column: list[float | None] = [getattr(run, field.name) for run in runs]
        told = [figure for figure in column if figure is not None]
        if len(told) == len(column):
            figures[field.name] = statistics.median(told)
    return Run(**figures)


# What a load gives --------------------------------------------------------------------------------

_LINE: Final = re.compile(r"^([0-9.]+)% <= ([0-9.]+) milliseconds", re.MULTILINE)
_RATE: Final = re.compile(r"throughput summary: ([0-9.]+) requests per second")


def read_report(text: str) -> Latencies:
    """Parse redis-benchmark's report of one test.

    The report has ever finer percentiles (50, 75, 87.5 and so on). This function takes the first
    one at or above the wanted one: 99.219 for 99, and 99.902 for 99.9.

    Raises:
        ValueError: the text is not such a report.
    """
    rate = _RATE.search(text)
    steps = [(float(share), float(ms)) for share, ms in _LINE.findall(text.partition("Cumul")[0])]
    if rate is None or not steps:
        raise ValueError(f"not a report of redis-benchmark: {text[-200:]!r}")
    at = (next(ms for share, ms in steps if share >= wanted) for wanted in (50, 99, 99.9))
    return Latencies(float(rate[1]), *at)


async def benchmark(
    load: Load,
    port: int,
    requests: int,
    *,
    options: Sequence[str] = (),
    words: Sequence[str] = (),
) -> Latencies:
    """Run redis-benchmark once; all clients send equally many requests.

    Args:
        load: the load.
        port: of a member.
        requests: how many, of all clients together.
        options: more of the program's.
        words: the command, if it is not the usual one of this name.

    Raises:
        RuntimeError: the program failed; the message has its output.
    """
    assert requests == load.whole(requests)
    command = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port)]
    command += ["-c", str(load.clients), "-P", str(load.pipeline)]
    command += ["-d", str(load.value_bytes), "-r", str(load.keys), "-n", str(requests), *options]
    command += words or ["-t", load.command]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:  # for example, a reply was an error
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said[-500:]}")
    return read_report(done.stdout.decode())


# What the members say and take --------------------------------------------------------------------


def processor_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def running_ms(pid: int) -> float:
    """Return for how many milliseconds the threads of a process have run, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@attrs.frozen
class Memory:
    """The memory of a process, in MB (10^6 bytes).

    Args:
        rss_mb: resident memory, with pages of mapped files.
        pss_mb: the same, with shared pages divided among their processes.
        own_mb: memory that is not part of a file, so the system cannot reclaim it.
    """

    rss_mb: float
    pss_mb: float
    own_mb: float


def memory(pid: int) -> Memory:
    """Return the present memory of a process."""
    found = dict[str, float]()
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024 / 1e6
    return Memory(found["Rss"], found["Pss"], found["Anonymous"])


async def settled(cluster: LocalCluster) -> tuple[NodeStatus, dict[int, NodeStatus]]:
    """Wait until the members agree on a leader and are idle; return its status and all statuses."""
    seen = await until(cluster.addresses, agreed_and_applied, 120)
    assert seen.leader is not None
    return seen.leader, {status.member_id: status for status in seen.said}


async def level(members: Sequence[Member]) -> int:
    """Wait until these members have applied their whole log; return where it ends."""
    with trio.fail_after(120):
        while True:
            said = [(await ask(member.address)).status for member in members]
            ends = {
                end for one in said if one for end in (one.append_position, one.applied_position)
            }
            if None not in said and len(ends) == 1:
                return ends.pop()
            await trio.sleep(0.05)


async def rested(cluster: LocalCluster) -> None:
    """Wait until the members have finished the background work of a load and use no processor.

    They write their tables to disk in the background. That is a cost of the earlier SETs, not of
    the next measurement.
    """
    with trio.fail_after(600):
        busy = True
        while busy:
            before = sum(_used(cluster).values())
            await trio.sleep(1)
            busy = sum(_used(cluster).values()) - before > RESTING_SECONDS * len(cluster.members)


async def quiet(addresses: Sequence[MemberAddress]) -> None:
    """Wait until no member is busy with a snapshot."""

    def is_quiet(seen: Survey) -> bool:
        return not any(status.snapshot_activity for status in seen.said)

    await until(addresses, is_quiet, 600)


def address_of(cluster: LocalCluster, member_id: int) -> MemberAddress:
    """Return a member's address for clients."""
    return next(one.address for one in cluster.members if one.member_id == member_id)


async def measure(
    cluster: LocalCluster,
    load: Load,
    seconds: float,
    *,
    keeper: Member | None = None,
    ca: Path | None = None,
) -> Run:
    """Run a load at the leader's port for about `seconds`, and check what it wrote.

    Args:
        cluster: the members.
        load: the load.
        seconds: duration.
        keeper: the member whose log still has everything at the end; if left out, all have.
        ca: with TLS, and this file of the CA; None without.

    Raises:
        LostError: an acknowledged write is missing.
    """
    begin, _ = await settled(cluster)
    port = address_of(cluster, begin.member_id).port(tls=ca is not None)
    run_load = partial(benchmark, options=[] if ca is None else ["--tls", "--cacert", str(ca)])
    guess = await run_load(load, port, load.trial())
    requests = max(load.trial(), load.whole(int(guess.rate * seconds)))
    leader, _ = await settled(cluster)
    used = _used(cluster)
    seen = await run_load(load, port, requests)
    spent = {one: after - used[one] for one, after in _used(cluster).items()}
    after, _ = await settled(cluster)
    if after.term != begin.term:
        raise RuntimeError("the leader changed during a run; this machine is too busy")
    writes = (load.trial() + requests) * (load.command == "set")
    stretch = Stretch(begin.append_position, after.append_position)
    logs = cluster.members if keeper is None else [keeper]
    besides = [one.address for one in cluster.members if one not in logs]
    await check_load(logs, load, stretch, writes, besides)
    own = spent.pop(leader.member_id)
    if keeper is not None:
        del spent[keeper.member_id]  # it has less work than the other followers
    others = statistics.mean(spent.values()) if spent else 0.0
    run = Run(
        **attrs.asdict(seen),
        leader_us=own / requests * 1e6,
        follower_us=others / requests * 1e6,
    )
    return run if load.command == "get" else with_batches(run, requests, leader, after)


def with_batches(run: Run, writes: int, before: NodeStatus, after: NodeStatus) -> Run:
    """Add batches and commits to a run, from the leader's status before and after it."""
    return attrs.evolve(
        run,
        per_batch=writes / max(1, after.batches - before.batches),
        commits_per_s=(after.commits - before.commits) / (writes / run.rate),
    )


async def check_load(
    members: Sequence[Member],
    load: Load,
    stretch: Stretch,
    writes: int,
    addresses: Sequence[MemberAddress] = (),
) -> None:
    """Check that a stretch of the log has exactly the acknowledged writes of a load.

    Args:
        members: the members whose logs and states are read.
        load: the load that wrote the stretch.
        stretch: the part of the log.
        writes: number of acknowledged writes.
        addresses: addresses of more members; only their states are read.

    Raises:
        LostError: writes are missing, or there are others.
    """
    await check_stretch(members, stretch, counted(writes, load.value_bytes, load.keys), addresses)


def _used(cluster: LocalCluster) -> dict[int, float]:
    return {m.member_id: processor_seconds(m.pid) for m in cluster.members if m.pid is not None}
