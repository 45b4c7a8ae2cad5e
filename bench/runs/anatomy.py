"""Where the microseconds go: for one client that waits, and for the leader under load.

A lone client with a plain socket sends requests. Each kind needs one more step than the one before:

- PING
- a GET that a follower answers by itself
- a GET for which the leader asks a quorum
- a SET in a cluster of one
- a SET in a cluster of three

So the difference between two kinds is the cost of a step. For comparison there are a durable append
of this disk, and one of the store.

Then 64 clients set keys, and `py-spy` samples the leader's threads 200 times a second. The shares
are of its processor time, by the module on top of the stack; C functions and system calls count for
the module that calls them. Threads that wait for work are left out, with the small cost of waiting.

Each reply must be right, and everything that was set or appended is read back afterwards.
"""

import os
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.checking import LostError, Stretch
from bench.lib.filling import check, fill
from bench.lib.harness import (
    KEPT,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
)
from bench.lib.measuring import Load, check_load, measure, settled
from bench.report.results import BLOCK, Row
from quorate.local.cluster import HOST, LocalCluster, open_cluster
from quorate.storage import Entry, EntryKind, Store, encode_batch, verify

LOAD: Final = Load("set", 64)
KEY: Final = b"$16\r\nkey:000000000001\r\n"
VALUE: Final = b"$256\r\n%s\r\n" % (b"x" * 256)
READONLY: Final = b"*1\r\n$8\r\nREADONLY\r\n"
PING: Final = b"*1\r\n$4\r\nPING\r\n"
GET: Final = b"*2\r\n$3\r\nGET\r\n" + KEY
SET: Final = b"*3\r\n$3\r\nSET\r\n" + KEY + VALUE
REPLIES: Final = {READONLY: b"+OK\r\n", PING: b"+PONG\r\n", GET: VALUE, SET: b"+OK\r\n"}
ONE_KEY: Final = Load("set", 1, keys=2)
LOOKS_PER_SECOND: Final = 200
SMALL_SHARE: Final = 0.01
WAITS: Final = ("_next_job", "_thread_cache.py", "get_events", "wait_readable")
"""Functions in which threads and the event loop wait for work; py-spy reports them as busy."""


def row_of(step: str, times: list[float]) -> Row:
    """Return the line of a step, in microseconds."""
    ranked = sorted(times)
    at = {name: 1e6 * ranked[int(part * (len(ranked) - 1))] for name, part in PARTS.items()}
    return {"step": step, **at, "times": len(ranked)}


PARTS: Final = {"p50_us": 0.5, "p99_us": 0.99}


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Repeat a call for `seconds`; return the duration of each call, in seconds."""
    times: list[float] = []
    ends = (now := time.perf_counter()) + seconds
    while now < ends:
        call()
        after = time.perf_counter()
        times.append(after - now)
        now = after
    return times


@contextmanager
def client(port: int) -> Generator[Callable[[bytes], bytes]]:
    """Return a client with a plain socket, which sends a command and waits for the reply."""
    with socket.create_connection((HOST, port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(command: bytes) -> bytes:
            stream.sendall(command)
            reply = stream.recv(4096)
            if reply != REPLIES[command]:
                raise LostError(f"{command!r:.60} is answered {reply!r:.60}")
            return reply

        yield ask


@attrs.frozen
class Asked:
    """The durations of one command, and the number of replies."""

    times: list[float]
    count: int


def ask_times(port: int, command: bytes, seconds: float, *, stale: bool = False) -> Asked:
    """Repeat a command for `seconds`."""
    with client(port) as ask:
        if stale:
            ask(READONLY)
        before = timed(lambda: ask(command), seconds / 10)
        times = timed(lambda: ask(command), seconds)
        return Asked(times, len(before) + len(times))


async def check_sets(cluster: LocalCluster, writes: int) -> None:
    """Check that the whole log has this number of SETs.

    Raises:
        LostError: the log has another number.
    """
    end = (await settled(cluster))[0].append_position
    await check_load(cluster.members, ONE_KEY, Stretch(0, end), writes)


def raw_times(place: Path, seconds: float) -> list[float]:
    """Measure an append of 4 KiB with fdatasync."""
    file = os.open(place / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append() -> None:
        os.write(file, BLOCK)
        os.fdatasync(file)

    try:
        times = timed(append, seconds)
        if (size := os.fstat(file).st_size) != len(times) * len(BLOCK):
            raise LostError(f"a file of {size} bytes after {len(times)} appends")
        return times
    finally:
        os.close(file)


async def store_times(place: Path, seconds: float) -> list[float]:
    """Measure a durable append of one entry of 256 bytes to the store, by its writer thread."""
    store = Store.open(place / "store", cluster="bench", member_id=0, rng=random.Random(0))
    entries, times = [Entry(EntryKind.COMMAND, b"x" * 256)], list[float]()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        position = 0
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            data = encode_batch(
                entries, term=0, position=position, timestamp_ms=0, commit_position=position
            )
            await store.append_durably(data)
            position += len(data)
            times.append(time.perf_counter() - began)
        nursery.cancel_scope.cancel()
    store.close()
    report = verify(place / "store")
    if not report.ok or (report.entries, report.bytes) != (len(times), position):
        raise LostError(f"after {len(times)} appends of {position} bytes: {report}")
    return times


async def ports(cluster: LocalCluster) -> tuple[int, int]:
    """Return the client ports of the leader, and of another member if there is one."""
    leader, _ = await settled(cluster)
    ranked = sorted(cluster.addresses, key=lambda one: one.member_id != leader.member_id)
    return ranked[0].client_port, ranked[-1].client_port


async def steps(bench: Bench, seconds: float) -> None:
    """Measure a lone client's steps, the cheapest first."""

    def found(step: str, times: list[float]) -> None:
        bench.found(row_of(step, times))

    found("a 4 KiB append of this disk, with fdatasync", raw_times(bench.place, seconds))
    found("a durable append of the store", await store_times(bench.place, seconds))
    async with open_cluster(lay_out_members(bench.place / "three", 3)) as cluster:
        leader, follower = await ports(cluster)
        first = ask_times(leader, SET, seconds / 10)
        await settled(cluster)
        found("PING", ask_times(leader, PING, seconds).times)
        found("GET, stale, of a follower", ask_times(follower, GET, seconds, stale=True).times)
        found("GET, linearizable", ask_times(leader, GET, seconds).times)
        three = ask_times(leader, SET, seconds)
        await check_sets(cluster, first.count + three.count)
    async with open_cluster(lay_out_members(bench.place / "one", 1)) as cluster:
        one = ask_times((await ports(cluster))[0], SET, seconds)
        await check_sets(cluster, one.count)
    found("SET, one member", one.times)
    found("SET, three members", three.times)


async def profile(bench: Bench, seconds: float, program: str) -> None:
    """Measure with `py-spy` where the leader spends its processor time under load."""
    raw = bench.place / "stacks"
    async with open_cluster(lay_out_members(bench.place / "profile", 3, snapshot=KEPT)) as cluster:
        await fill(cluster, LOAD)
        leader, _ = await settled(cluster)
        (pid,) = (one.pid for one in cluster.members if one.member_id == leader.member_id)
        plain = await measure(cluster, LOAD, seconds)
        command = [program, "record", "--pid", str(pid), "--format", "raw", "--output", str(raw)]
        command += ["--rate", str(LOOKS_PER_SECOND), "--duration", str(max(1, int(seconds)))]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure, cluster, LOAD, 3 * seconds)
            await trio.sleep(1)  # until the trial run is over
            await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        await check(cluster, LOAD)
    counts = on_top(raw.read_text(encoding="utf-8"))
    total = counts.total()
    for module, count in counts.most_common():
        if count >= SMALL_SHARE * total:
            share = count / total
            bench.found({"module": module, "share": share, "us": share * plain.leader_us})


def on_top(stacks: str) -> Counter[str]:
    """Count the module on top of each stack of py-spy's raw format."""
    found = Counter[str]()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        top = stack.rpartition(";")[2]
        if not any(wait in top for wait in WAITS):
            found[module_of(top)] += int(count)
    return found


def module_of(frame: str) -> str:
    """Return folder and file of a frame such as ``flush (node/leader/leadership.py:130)``."""
    path = Path(frame.partition("(")[2].partition(":")[0])
    if "quorate" in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index("quorate")
        return "/".join(path.parts[at + 1 :])
    return "trio" if "trio" in path.parts else f"Python: {path.name}"


app = make_app()


@app.default
async def main(*, options: Common = USUAL, seconds: float = 5.0) -> None:
    """Measure where the microseconds go.

    Parameters
    ----------
    seconds
        Duration of each step.
    """
    stop_without("redis-benchmark", "redis-tools")
    program = stop_without("py-spy", "py-spy", by="pip install")
    if options.quick:
        seconds = 1.0
    with open_bench("anatomy", options, seconds=seconds) as bench:
        await steps(bench, seconds)
        await profile(bench, seconds, program)


if __name__ == "__main__":
    sys.exit(app())
