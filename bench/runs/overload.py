"""Too many clients and slow followers: effects on memory, latencies and clients.

Two thousand clients (`crowd.py`), each waiting for its reply, load the leader in several phases:

- with all members healthy
- with a follower that is stopped for nine tenths of the time (SIGSTOP)
- with the followers stopped in turns
- with both followers stopped for longer than a request may wait

Before and after, there are 64 clients. In each phase every command is counted: answered, answered
with an error, or connection closed without a reply. At the end of each phase, every acknowledged
value must be in the log of each member, and every key must have its last value.

Then one client sends and never reads: once SETs that cannot be committed, and once GETs with large
replies. The result is how much a member accepts before it stops reading or closes the connection.
"""

import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.checking import LostError, Stretch, check_state
from bench.lib.checking import told as value_of
from bench.lib.crowds import Told, check_crowd, run_crowd
from bench.lib.harness import KEPT, USUAL, Bench, Common, lay_out_members, make_app, open_bench
from bench.lib.measuring import settled
from bench.report.results import Row
from quorate.client.resp import open_resp
from quorate.local.cluster import HOST, LocalCluster, MemberProcess, open_cluster

VALUE_BYTES: Final = 1024
LOOK_SECONDS: Final = 0.2
PAGE_MB: Final = 4096 / 1e6
GREEDY_BYTES: Final = 16 << 10
SETS: Final = b"*3\r\n$3\r\nSET\r\n$6\r\ngreedy\r\n$1024\r\n%s\r\n" % (b"x" * 1024) * 64
GETS: Final = b"*2\r\n$3\r\nGET\r\n$6\r\ngreedy\r\n" * 1024
BLOCKED_SECONDS: Final = 1.0
GREEDY_SECONDS: Final = 10.0


def own_mb(member: MemberProcess) -> float:
    """Return the resident memory of a member without mapped files; cheaper to read than smaps."""
    resident, shared = Path(f"/proc/{member.pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * PAGE_MB


@attrs.define
class Watch:
    """The memory of each member over time."""

    members: list[MemberProcess]
    began: float = attrs.field(factory=trio.current_time)
    seen: list[tuple[float, ...]] = attrs.field(factory=list[tuple[float, ...]])

    async def run(self) -> None:
        """Read the memory repeatedly, until cancelled."""
        while True:
            held = (own_mb(member) for member in self.members)
            self.seen.append((trio.current_time() - self.began, *held))
            await trio.sleep(LOOK_SECONDS)


Trouble = Callable[[list[MemberProcess]], Awaitable[None]]


async def nothing(_followers: list[MemberProcess]) -> None:
    """All members are healthy."""


async def one_slow(followers: list[MemberProcess]) -> None:
    """The first follower is stopped for nine tenths of each second."""
    while True:
        async with standing_still(followers[:1]):
            await trio.sleep(0.9)
        await trio.sleep(0.1)


async def in_turns(followers: list[MemberProcess]) -> None:
    """Each follower is stopped for a second while the other runs; then both run for a moment."""
    while True:
        for follower in followers:
            async with standing_still([follower]):
                await trio.sleep(1)
            await trio.sleep(0.2)


async def no_quorum(followers: list[MemberProcess]) -> None:
    """Both followers are stopped, for longer than a request is parked (4 s)."""
    async with standing_still(followers):
        await trio.sleep(6)


@asynccontextmanager
async def standing_still(members: list[MemberProcess]) -> AsyncGenerator[None]:
    """Stop these processes for the duration of the block."""
    try:
        for member in members:
            member.send_signal(signal.SIGSTOP)
        yield
    finally:
        for member in members:
            member.send_signal(signal.SIGCONT)


@attrs.frozen
class Phase:
    """A number of clients, and the faults of the followers at that time."""

    name: str
    clients: int
    trouble: Trouble = nothing


PHASES: Final = (
    Phase("64 clients", 64),
    Phase("2,000 clients", 2000),
    Phase("2,000, one follower slow", 2000, one_slow),
    Phase("2,000, followers slow in turns", 2000, in_turns),
    Phase("2,000, no quorum for 6 s", 2000, no_quorum),
    Phase("64 clients again", 64),
)


async def run_phase(cluster: LocalCluster, phase: Phase, seconds: float) -> Row:
    """Run and check one phase."""
    leader, _ = await settled(cluster)
    first = next(one for one in cluster.members if one.member_id == leader.member_id)
    others = [one for one in cluster.members if one is not first]
    watch = Watch([first, *others])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        nursery.start_soon(phase.trouble, others)
        told = await run_crowd(
            first.address.client_port,
            phase.clients,
            seconds,
            value_bytes=VALUE_BYTES,
            name=phase.name,
        )
        nursery.cancel_scope.cancel()
    after, _ = await settled(cluster)
    stretch = Stretch(leader.append_position, after.append_position)
    await check_crowd(told, cluster.members, stretch, VALUE_BYTES)
    return {
        "phase": phase.name,
        "clients": phase.clients,
        **_figures(told, seconds),
        "leader_mb": max(held[1] for held in watch.seen),
        "follower_mb": max(max(held[2:]) for held in watch.seen),
        "elections": after.term - leader.term,
        "samples": {"memory": watch.seen, "lines": told.lines},
    }


def _figures(told: Told, seconds: float) -> Row:
    """Return rates, latencies of the median second, the longest latency, and errors."""
    whole = [line for line in told.lines[1:] if "p50_ms" in line] or told.lines
    middle = sorted(whole, key=lambda line: line.get("p99_ms", 0))[len(whole) // 2]
    return {
        "rate": told.acknowledged / seconds,
        "p50_ms": middle.get("p50_ms"),
        "p99_ms": middle.get("p99_ms"),
        "longest_ms": max(line.get("longest_ms", 0.0) for line in told.lines),
        "errors": sum(told.errors.values()),
        "codes": " ".join(sorted(told.errors)),
        "dropped": told.dropped,
        "unanswered": told.unanswered,
    }


async def greed(cluster: LocalCluster, name: str, chunk: bytes, *, quorum: bool) -> Row:
    """Return how much a member accepts from a client that never reads, until it accepts no more.

    All commands use one key, so their memory in the member is that of its queues.
    """
    leader, _ = await settled(cluster)
    first = next(one for one in cluster.members if one.member_id == leader.member_id)
    others = [one for one in cluster.members if one is not first]
    async with open_resp(HOST, first.address.client_port) as client:
        await client.call("SET", "greedy", b"x" * GREEDY_BYTES)
    before = peak = own_mb(first)
    taken, outcome = 0, "still taken from"
    async with standing_still([] if quorum else others):
        stream = await trio.open_tcp_stream(HOST, first.address.client_port)
        with trio.move_on_after(GREEDY_SECONDS):
            try:
                while outcome != "not read any more":
                    with trio.move_on_after(BLOCKED_SECONDS) as patience:
                        taken += await stream.socket.send(chunk[taken % len(chunk) :])
                    peak = max(peak, own_mb(first))
                    if patience.cancelled_caught:
                        outcome = "not read any more"
            except OSError:
                outcome = "cut off"
        stream.socket.close()
    await settled(cluster)
    await check_greedy(cluster, first, overwritten=not quorum)
    facts = {"phase": name, "outcome": outcome, "taken_mb": taken / 1e6}
    return {**facts, "leader_mb": peak, "grown_mb": peak - before}


async def check_greedy(cluster: LocalCluster, leader: MemberProcess, *, overwritten: bool) -> None:
    """Check that all members have the key of that client, with a value that it sent.

    Raises:
        LostError: a member has another value, or none.
    """
    async with open_resp(HOST, leader.address.client_port) as client:
        value = await client.call("GET", "greedy")
    sizes = (GREEDY_BYTES, VALUE_BYTES) if overwritten else (GREEDY_BYTES,)
    if not isinstance(value, bytes) or value not in {b"x" * size for size in sizes}:
        raise LostError(f"the key of the client that never reads is {value!r:.60}")
    await check_state({b"greedy": value_of(value)}, cluster.addresses)


async def measure_all(bench: Bench, seconds: float) -> None:
    """Run all phases on one cluster."""
    async with open_cluster(lay_out_members(bench.place, 3, snapshot=KEPT)) as cluster:
        for phase in PHASES:
            bench.found(await run_phase(cluster, phase, seconds))
        bench.found(await greed(cluster, "SETs of 1 KiB, no quorum", SETS, quorum=False))
        bench.found(await greed(cluster, "GETs of 16 KiB", GETS, quorum=True))


app = make_app()


@app.default
async def main(*, options: Common = USUAL, seconds: float = 10.0) -> None:
    """Overload three members, with slow followers.

    Parameters
    ----------
    seconds
        Duration of each phase.
    """
    if options.quick:
        seconds = 7.0
    with open_bench("overload", options, value_bytes=VALUE_BYTES, seconds=seconds) as bench:
        await measure_all(bench, seconds)


if __name__ == "__main__":
    sys.exit(app())
