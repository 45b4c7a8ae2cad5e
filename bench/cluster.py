"""The cluster from outside: three members, `redis-benchmark`, durable commits, this machine.

Each line of the table is one kind of load: SET or GET, so many clients, so many commands sent
together by each (pipeline). A run lasts a few seconds; its number of requests is set from a short
run before. Shown is the median of several runs, which alternate between the loads, so that a noisy
minute hits all of them alike. Beside the rate stand the latencies that `redis-benchmark` gives and
the processor time of leader and followers for one operation, from /proc.

All keys are there before the first run, so a GET finds a value, and after the last run each member
must have them all.

Members and load share this machine's processors and disk: the figures compare versions and
settings on one machine, and say little about another.
"""

import csv
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

import quorate
from quorate.cli_status import make_console
from quorate.cluster import LocalCluster, free_client_port, lay_out, open_cluster
from quorate.node.gateway import NodeStatus
from quorate.respclient import open_resp
from quorate.status import Verdict, survey

MEMBERS: Final = 3
VALUE_BYTES: Final = 256
KEYS: Final = 100_000
KEYS_AT_ONCE: Final = 200
CLIENTS: Final = (1, 64, 256)
PIPELINES: Final = (1, 16)
TRIAL_REQUESTS_PER_CLIENT: Final = 50
TICKS: Final = os.sysconf("SC_CLK_TCK")
BLOCK: Final = b"\0" * 4096


@attrs.frozen
class Load:
    """One kind of load."""

    command: str
    clients: int
    pipeline: int


@attrs.frozen
class Run:
    """What one run of one load gave; latencies in milliseconds, processor time in microseconds."""

    rate: float
    p50_ms: float
    p99_ms: float
    leader_us: float
    follower_us: float


def median(runs: list[Run]) -> Run:
    """The median of each figure by itself."""
    return Run(
        *(statistics.median(column) for column in zip(*map(attrs.astuple, runs), strict=True))
    )


async def benchmark(load: Load, port: int, requests: int) -> tuple[float, float, float]:
    """Run redis-benchmark once; return requests per second and the latencies p50 and p99."""
    command = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "--csv"]
    command += ["-t", load.command, "-c", str(load.clients), "-P", str(load.pipeline)]
    command += ["-d", str(VALUE_BYTES), "-r", str(KEYS), "-n", str(requests)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    for row in csv.DictReader(done.stdout.decode().splitlines()):
        if row["test"] == load.command.upper():
            return float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"])
    raise ValueError(f"redis-benchmark printed no line for {load.command}: {done.stdout!r}")


def processor_seconds(pid: int) -> float:
    """User and system time of a process, all threads, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def leader_of(cluster: LocalCluster) -> NodeStatus:
    """Wait until the members agree on a leader and are idle."""
    with trio.fail_after(60):
        while True:
            seen = await survey(cluster.addresses)
            done = all(status.applied_position == seen.head for status in seen.said)
            if seen.verdict is Verdict.AGREED and seen.leader and done:
                return seen.leader
            await trio.sleep(0.05)


async def measure(cluster: LocalCluster, load: Load, seconds: float) -> Run:
    """One run of about so many seconds."""
    leader = await leader_of(cluster)
    members = {member.member_id: member for member in cluster.members}
    port = members[leader.member_id].address.client_port
    trial = max(TRIAL_REQUESTS_PER_CLIENT * load.clients, 1000) * load.pipeline
    rate, _, _ = await benchmark(load, port, trial)
    requests = max(trial, int(rate * seconds))
    before = _used(cluster)
    rate, p50, p99 = await benchmark(load, port, requests)
    if (await leader_of(cluster)).term != leader.term:
        raise RuntimeError("the leader changed during a run; this machine is too busy")
    spent = {one: after - before[one] for one, after in _used(cluster).items()}
    own = spent.pop(leader.member_id)
    others = statistics.mean(spent.values())
    return Run(rate, p50, p99, own / requests * 1e6, others / requests * 1e6)


def _used(cluster: LocalCluster) -> dict[int, float]:
    return {m.member_id: processor_seconds(m.pid) for m in cluster.members if m.pid is not None}


def key_groups() -> list[list[bytes]]:
    """All names that redis-benchmark may draw, in groups."""
    names = [b"key:%012d" % number for number in range(KEYS)]
    return [names[start : start + KEYS_AT_ONCE] for start in range(0, KEYS, KEYS_AT_ONCE)]


async def fill(cluster: LocalCluster) -> None:
    """Set every key."""
    await leader_of(cluster)
    at = cluster.addresses[0]
    async with open_resp(at.host, at.client_port) as client:
        for names in key_groups():
            pairs = [part for name in names for part in (name, b"x" * VALUE_BYTES)]
            await client.call(b"MSET", *pairs)


async def check(cluster: LocalCluster) -> None:
    """See that every member has every key, and no other.

    Raises:
        ValueError: one has not; the figures are worth nothing.
    """
    await leader_of(cluster)
    for member in cluster.addresses:
        async with open_resp(member.host, member.client_port) as client:
            await client.call("READONLY")
            right = 0
            for names in key_groups():
                values = await client.call("MGET", *names)
                assert isinstance(values, list)
                right += sum(isinstance(one, bytes) and len(one) == VALUE_BYTES for one in values)
            if (right, await client.call("DBSIZE")) != (KEYS, KEYS):
                raise ValueError(f"member {member.member_id} has {right} of {KEYS} keys")


def synced_writes(directory: Path) -> float:
    """How many 4 KiB appends with fdatasync this disk does in a second, one after the other."""
    count = 0
    file = os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        began = time.perf_counter()
        while time.perf_counter() - began < 1.0:
            os.write(file, BLOCK)
            os.fdatasync(file)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(file)
        (directory / "probe").unlink()


def tell_circumstances(directory: Path, console: Console) -> dict[str, object]:
    """Find and print what the figures depend on besides the code."""
    found: dict[str, object] = {
        "quorate": quorate.__version__,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "members": MEMBERS,
        "value_bytes": VALUE_BYTES,
        "keys": KEYS,
        "synced_writes_per_second": round(synced_writes(directory)),
        "load_before": os.getloadavg()[0],
    }
    facts = (f"{name.replace('_', ' ')} {value}" for name, value in found.items())
    console.print(", ".join(facts), end="\n\n")
    return found


async def run_all(
    directory: Path, runs: int, seconds: float, console: Console
) -> dict[Load, list[Run]]:
    """Measure every load, in turns."""
    loads = [Load(c, n, p) for p in PIPELINES for c in ("set", "get") for n in CLIENTS]
    found: dict[Load, list[Run]] = {load: [] for load in loads}
    configs = lay_out(
        directory, members=MEMBERS, client_port=free_client_port(MEMBERS), cluster="bench"
    )
    async with open_cluster(configs) as cluster:
        await fill(cluster)
        for turn in range(runs):
            for load in loads:
                run = await measure(cluster, load, seconds)
                found[load].append(run)
                console.print(
                    f"[dim]{turn + 1}/{runs} {load.command} {load.clients} clients, pipeline "
                    f"{load.pipeline}: {run.rate:,.0f}/s[/dim]"
                )
        await check(cluster)
    return found


def show(found: dict[Load, list[Run]], console: Console) -> None:
    """Print the medians."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("command")
    for name in ("clients", "pipeline", "a second", "lowest", "highest", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for name in ("leader µs/op", "follower µs/op"):
        table.add_column(name, justify="right")
    for load, runs in found.items():
        middle = median(runs)
        rates = sorted(run.rate for run in runs)
        table.add_row(
            load.command.upper(),
            *(str(load.clients), str(load.pipeline)),
            *(f"{rate:,.0f}" for rate in (middle.rate, rates[0], rates[-1])),
            *(f"{middle.p50_ms:.2f}", f"{middle.p99_ms:.2f}"),
            *(f"{middle.leader_us:.1f}", f"{middle.follower_us:.1f}"),
        )
    console.print(table)


def as_json(found: dict[Load, list[Run]], circumstances: dict[str, object]) -> str:
    """Everything, for programs."""
    loads = [
        {
            **attrs.asdict(load),
            "median": attrs.asdict(median(runs)),
            "runs": [*map(attrs.asdict, runs)],
        }
        for load, runs in found.items()
    ]
    return json.dumps({**circumstances, "loads": loads}, indent=2) + "\n"


app = App(help_format="markdown", backend="trio", result_action="return_value")


@app.default
async def main(
    *,
    runs: int = 3,
    seconds: float = 3.0,
    directory: Annotated[Path | None, Parameter(name="--dir", show_default=False)] = None,
    json_file: Annotated[Path | None, Parameter(name="--json", show_default=False)] = None,
) -> int:
    """Measure three members from outside with redis-benchmark.

    Parameters
    ----------
    runs
        Runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    directory
        On which disk: an existing directory; that of temporary files if left out.
    json_file
        Where to write everything, for programs.
    """
    console = make_console()
    if not shutil.which("redis-benchmark"):
        console.print("redis-benchmark is not there; on Debian: apt install redis-tools")
        return 1
    with tempfile.TemporaryDirectory(prefix="quorate-bench-", dir=directory) as place:
        circumstances = tell_circumstances(Path(place), console)
        found = await run_all(Path(place), runs, seconds, console)
    show(found, console)
    if json_file:
        json_file.write_text(as_json(found, circumstances), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(app())
