"""Instruments of the benches: loads and their runs, processor time, memory, who leads.

A load is put on by `redis-benchmark`, which is a program of its own, so that measuring takes as
little from the members as it can. What a run cost is told by /proc and by the members' own counts
of batches and commits, both read before and after.
"""

import os
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from quorate.cluster import LocalCluster
from quorate.node.gateway import MemberAddress, NodeStatus
from quorate.respclient import RespClient, open_resp
from quorate.status import Verdict, survey

TICKS: Final = os.sysconf("SC_CLK_TCK")
MSET_BYTES: Final = 64 << 10
MSET_KEYS: Final = 200
FILLERS: Final = 4
TRIAL_BYTES: Final = 32 << 20
SAMPLE: Final = 20_000
"""Keys that are read back one by one; with more of them, so many that are spread over all."""


RESTING_SECONDS: Final = 0.1
"""Processor time that a member without work takes in a second, at most."""


@attrs.frozen
class Load:
    """One kind of load: so many clients, each sending `pipeline` commands at a time."""

    command: str
    clients: int
    pipeline: int = 1
    value_bytes: int = 256
    keys: int = 100_000

    def trial(self) -> int:
        """How many commands are enough to guess its rate."""
        commands = max(20 * self.clients, 400) * self.pipeline
        return max(min(commands, TRIAL_BYTES // self.value_bytes), self.clients)


@attrs.frozen
class Latencies:
    """What a client sees: operations a second, and how long one took, in milliseconds."""

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


@attrs.frozen
class Run(Latencies):
    """What one run of one load gave; processor time in microseconds for each operation.

    `per_batch` commands were in a record batch, and the leader made so many durable commits a
    second; None if the run says nothing of that. A commit is a sync of the journal, or two of LMDB.
    """

    leader_us: float
    follower_us: float
    per_batch: float | None = None
    commits_per_s: float | None = None


def median(runs: Sequence[Run]) -> Run:
    """The median of each figure by itself."""
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
    """Read what redis-benchmark tells of one test.

    It names ever finer percentiles (50, 75, 87.5 and so on); the first at or above the wanted one
    is taken, so 99.219 for 99 and 99.902 for 99.9.

    Raises:
        ValueError: it tells of none.
    """
    rate = _RATE.search(text)
    steps = [(float(share), float(ms)) for share, ms in _LINE.findall(text.partition("Cumul")[0])]
    if rate is None or not steps:
        raise ValueError(f"not a report of redis-benchmark: {text[-200:]!r}")
    at = (next(ms for share, ms in steps if share >= wanted) for wanted in (50, 99, 99.9))
    return Latencies(float(rate[1]), *at)


async def benchmark(load: Load, port: int, requests: int) -> Latencies:
    """Run redis-benchmark once."""
    command = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port)]
    command += ["-t", load.command, "-c", str(load.clients), "-P", str(load.pipeline)]
    command += ["-d", str(load.value_bytes), "-r", str(load.keys), "-n", str(requests)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    return read_report(done.stdout.decode())


# What the members say and take --------------------------------------------------------------------


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all threads, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@attrs.frozen
class Memory:
    """What a process holds, in MB (10^6 bytes).

    Args:
        rss_mb: resident, with the pages of files that it has mapped.
        pss_mb: likewise, pages that others hold too counted by their share.
        own_mb: what is no file's: it can't be taken away by the system.
    """

    rss_mb: float
    pss_mb: float
    own_mb: float


def memory(pid: int) -> Memory:
    """What a process holds now."""
    found = dict[str, float]()
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024 / 1e6
    return Memory(found["Rss"], found["Pss"], found["Anonymous"])


async def settled(cluster: LocalCluster) -> tuple[NodeStatus, dict[int, NodeStatus]]:
    """Wait until the members agree on a leader and are idle; return its status and everybody's."""
    with trio.fail_after(120):
        while True:
            seen = await survey(cluster.addresses)
            done = all(status.applied_position == seen.head for status in seen.said)
            if seen.verdict is Verdict.AGREED and seen.leader and done:
                return seen.leader, {status.member_id: status for status in seen.said}
            await trio.sleep(0.05)


async def rested(cluster: LocalCluster) -> None:
    """Wait until the members have done what a load leaves behind: until they use no processor.

    Their tables are written to disk in the background, which is a cost of the SETs before, not of
    what is measured next.
    """
    with trio.fail_after(600):
        busy = True
        while busy:
            before = sum(_used(cluster).values())
            await trio.sleep(1)
            busy = sum(_used(cluster).values()) - before > RESTING_SECONDS * len(cluster.members)


async def quiet(addresses: Sequence[MemberAddress]) -> None:
    """Wait until none of these members is busy with a snapshot."""
    while any(  # noqa: ASYNC110 - of other processes
        status.snapshot_activity for status in (await survey(addresses)).said
    ):
        await trio.sleep(0.05)


def address_of(cluster: LocalCluster, member_id: int) -> MemberAddress:
    """Where clients reach a member."""
    return next(one.address for one in cluster.members if one.member_id == member_id)


async def measure(cluster: LocalCluster, load: Load, seconds: float) -> Run:
    """One run of about so many seconds, at the leader's port."""
    leader, _ = await settled(cluster)
    port = address_of(cluster, leader.member_id).client_port
    guess = await benchmark(load, port, load.trial())
    requests = max(load.trial(), int(guess.rate * seconds))
    leader, _ = await settled(cluster)
    used = _used(cluster)
    seen = await benchmark(load, port, requests)
    spent = {one: after - used[one] for one, after in _used(cluster).items()}
    after, _ = await settled(cluster)
    if after.term != leader.term:
        raise RuntimeError("the leader changed during a run; this machine is too busy")
    own = spent.pop(leader.member_id)
    others = statistics.mean(spent.values()) if spent else 0.0
    run = Run(
        **attrs.asdict(seen),
        leader_us=own / requests * 1e6,
        follower_us=others / requests * 1e6,
    )
    if load.command == "get":
        return run
    return attrs.evolve(
        run,
        per_batch=requests / max(1, after.batches - leader.batches),
        commits_per_s=(after.commits - leader.commits) / (requests / seen.rate),
    )


def _used(cluster: LocalCluster) -> dict[int, float]:
    return {m.member_id: processor_seconds(m.pid) for m in cluster.members if m.pid is not None}


# The keys -----------------------------------------------------------------------------------------


def key_groups(load: Load, sample: int) -> Iterator[list[bytes]]:
    """Names that redis-benchmark may draw, in groups: all of them, or so many of them."""
    step = max(1, load.keys // sample)
    size = max(1, min(MSET_KEYS, MSET_BYTES // load.value_bytes))
    for start in range(0, load.keys, size * step):
        numbers = range(start, min(start + size * step, load.keys), step)
        yield [b"key:%012d" % number for number in numbers]


async def fill(cluster: LocalCluster, load: Load, pool: bytes = b"x") -> None:
    """Set every key that a load may read, to pieces of a pool of bytes."""
    while len(pool) < 2 * load.value_bytes:
        pool += pool
    leader, _ = await settled(cluster)
    at = address_of(cluster, leader.member_id)
    groups, most = key_groups(load, load.keys), len(pool) - load.value_bytes

    async def some() -> None:
        async with open_resp(at.host, at.client_port) as client:
            for names in groups:
                begins = ((int(name[4:]) * 4099) % most for name in names)
                values = (pool[at : at + load.value_bytes] for at in begins)
                pairs = zip(names, values, strict=True)
                await client.call(b"MSET", *(part for pair in pairs for part in pair))

    async with trio.open_nursery() as nursery:
        for _ in range(FILLERS):
            nursery.start_soon(some)


async def check(cluster: LocalCluster, load: Load) -> None:
    """See that all members have all keys and no other, and the same values of those looked at.

    Raises:
        ValueError: they have not; the figures are worth nothing.
    """
    await settled(cluster)
    found: list[list[list[object]]] = []
    for member in cluster.addresses:
        async with open_resp(member.host, member.client_port) as client:
            await client.call("READONLY")
            values = [await _values(client, names) for names in key_groups(load, SAMPLE)]
            wrong = sum(
                not isinstance(one, bytes) or len(one) != load.value_bytes
                for group in values
                for one in group
            )
            count = await client.call("DBSIZE")
            if wrong or count != load.keys:
                raise ValueError(
                    f"member {member.member_id} has {count!r} of {load.keys} keys, and {wrong} "
                    "wrong values among those looked at"
                )
            found.append(values)
    if any(values != found[0] for values in found):
        raise ValueError("members have different values")


async def _values(client: RespClient, names: Sequence[bytes]) -> list[object]:
    values = await client.call("MGET", *names)
    assert isinstance(values, list)
    return list(values)
