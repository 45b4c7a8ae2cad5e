"""A lone client's SET, step by step, from the client to the disks and back.

A small library, compiled here and preloaded into three members (`lone_set.c`), records when they
send and receive, when they submit a write to the disk, and when they learn that it is durable. All
processes of a machine share one clock, so the records of three members and a client can be joined.
The way leads through the follower that reports first. Each step ends where the next one begins. The
table shows means, so the steps add up to the total. For comparison, it shows the same SETs without
recording, and a single write of a block that bypasses the page cache, as the journal writes.

The client is that of `anatomy.py`: a plain socket. Each reply must be right, and at the end the log
must have as many SETs as were answered.
"""

import itertools
import mmap
import os
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from bench.lib.harness import USUAL, Common, lay_out_members, make_app, open_bench
from bench.report.results import BLOCK
from bench.runs.anatomy import REPLIES, SET, check_sets, client, ports, timed
from quorate.local.cluster import LocalCluster
from quorate.torture.disk import DiskError, preloadable, preloading
from quorate.transport import AppendFlags, AppendPosition, encode

SENT: Final = 1
RECEIVED: Final = 2
WRITTEN: Final = 3
HEARD: Final = 4
"""Calls, as `lone_set.c` numbers them."""

COMMAND: Final = len(SET)
REPLY: Final = len(REPLIES[SET])
REPORT: Final = len(encode(AppendPosition(0, 0, 0, AppendFlags.READY, 0)))
NOTE: Final = Struct("=qqqq")

BLOCKS: Final = 1024
"""Blocks of the file that the bench writes repeatedly."""

FOLLOWED: Final = 0.95
"""At least this share of the SETs must be followed. With fewer, the figures may not be typical."""

STEPS: Final = (
    ("the leader has received it", "leader"),
    ("the leader sends it on", "leader"),
    ("a follower has received it", "follower"),
    ("the follower has checked and framed it, and its writer begins", "follower"),
    ("the disk has it", "disk"),
    ("the follower has heard of it", "follower"),
    ("the follower reports", "follower"),
    ("the leader has heard of that, and of its own disk", "leader"),
    ("the leader has committed and applied it", "leader"),
    ("the client has the reply", "client"),
)
"""The end of each step, and the process that works during it."""


class Note(NamedTuple):
    """A call: when it began and ended (ns), its kind, and its number of bytes or writes."""

    began: int
    ended: int
    call: int
    size: int


class Notes:
    """The recorded calls of one member, in order."""

    def __init__(self, file: Path) -> None:
        found = NOTE.iter_unpack(file.read_bytes())
        self._notes = sorted(Note(*each) for each in found if each[0])
        self._begins = [note.began for note in self._notes]

    def first(
        self, at: int, until: int, call: int, least: int = 1, most: int = sys.maxsize
    ) -> Note:
        """Return the first call of a kind and a size that began within a time range.

        Raises:
            LookupError: there is no such call.
        """
        for place in range(bisect_left(self._begins, at), bisect_left(self._begins, until)):
            note = self._notes[place]
            if note.call == call and least <= note.size <= most:
                return note
        raise LookupError(call)


def one_way(
    asked: tuple[int, int], leader: Notes, followers: Sequence[Notes]
) -> tuple[int, ...] | None:
    """Return when a SET began, and when each step ended; None if a record is missing."""
    began, ended = asked
    try:
        command = leader.first(began, ended, RECEIVED, COMMAND, COMMAND)
        batch = leader.first(command.ended, ended, SENT, COMMAND + 1)
        own = leader.first(batch.ended, ended, HEARD)
        reply = leader.first(own.ended, ended, SENT, REPLY, REPLY)
        ways = [way for each in followers if (way := through(each, batch.began, ended))]
        if not ways:
            return None
        way = min(ways, key=itemgetter(-1))
        report = leader.first(way[-1], reply.began, RECEIVED, REPORT, REPORT)
    except LookupError:
        return None
    known = max(own.ended, report.ended)
    return began, command.ended, batch.began, *way, known, reply.began, ended


def through(follower: Notes, sent: int, until: int) -> tuple[int, ...] | None:
    """Return when a follower received a batch, wrote it, learned of that, and reported."""
    try:
        batch = follower.first(sent, until, RECEIVED, COMMAND + 1)
        given = follower.first(batch.ended, until, WRITTEN)
        heard = follower.first(given.ended, until, HEARD)
        report = follower.first(heard.ended, until, SENT, REPORT, REPORT)
    except LookupError:
        return None
    return batch.ended, given.began, given.ended, heard.ended, report.began


def ask(port: int, seconds: float) -> list[tuple[int, int]]:
    """Set a key repeatedly; return when each SET began and was answered."""
    asked: list[tuple[int, int]] = []
    with client(port) as send:
        ends = time.perf_counter_ns() + int(seconds * 1e9)
        while (began := time.perf_counter_ns()) < ends:
            send(SET)
            asked.append((began, time.perf_counter_ns()))
    return asked


async def asked_of(
    place: Path, seconds: float, environment: Mapping[str, str]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Set keys for `seconds`; return the times of each SET, and the members, leader first."""
    cluster = LocalCluster(lay_out_members(place, 3))
    for member in cluster.members:
        member.environment = environment
    try:
        await cluster.start()
        port, _ = await ports(cluster)
        warm = ask(port, seconds / 5)
        asked = ask(port, seconds)
        await check_sets(cluster, len(warm) + len(asked))
        ranked = sorted(cluster.members, key=lambda one: one.address.client_port != port)
        pids = [one.pid for one in ranked if one.pid is not None]
        await cluster.stop()
        return asked, pids
    finally:
        await cluster.kill()


async def follow(place: Path, seconds: float) -> list[tuple[int, ...]]:
    """Follow SETs for `seconds`; return their steps.

    Raises:
        SystemExit: the library is missing, or too many SETs could not be followed.
    """
    try:
        library = preloadable(Path(__file__).with_suffix(".c"), place)
    except DiskError as error:
        sys.exit(f"lone_set: {error}")
    # In memory, so that the records do not burden the measured disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as notes:
        environment = {**preloading(library), "QUORATE_NOTES": notes}
        asked, pids = await asked_of(place / "noted", seconds, environment)
        leader, *followers = [Notes(Path(notes) / str(pid)) for pid in pids]
    ways = [way for each in asked if (way := one_way(each, leader, followers))]
    if len(ways) < FOLLOWED * len(asked):
        sys.exit(
            f"lone_set: only {len(ways)} of {len(asked)} SETs could be followed: nothing is "
            "compiled (INFO server: quorate_native), or the disk is slow to take writes"
        )
    return ways


def write_times(path: Path, seconds: float) -> list[float]:
    """Measure a durable write of a block over an older one, bypassing the page cache."""
    path.write_bytes(BLOCK * BLOCKS)
    file = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    block = mmap.mmap(-1, len(BLOCK))  # O_DIRECT requires whole pages
    places = itertools.cycle(range(BLOCKS))
    try:
        os.fsync(file)
        return timed(lambda: os.pwrite(file, block, next(places) * len(BLOCK)), seconds)
    finally:
        os.close(file)


app = make_app()


@app.default
async def main(*, options: Common = USUAL, seconds: float = 5.0) -> None:
    """Follow a lone client's SETs.

    Parameters
    ----------
    seconds
        How long the client sends SETs.
    """
    if options.quick:
        seconds = 1.0
    with open_bench("lone-set", options, seconds=seconds) as bench:
        ways = await follow(bench.place, seconds)
        takes = zip(*([b - a for a, b in itertools.pairwise(way)] for way in ways), strict=True)
        for (step, whose), times in zip(STEPS, takes, strict=True):
            us = statistics.mean(times) / 1000
            bench.found({"until": step, "whose": whose, "us": us, "times": len(times)})
        plain, _ = await asked_of(bench.place / "plain", seconds, {})
        us = statistics.mean(ended - began for began, ended in plain) / 1000
        bench.found({"beside": "in all, while nothing is noted", "us": us, "times": len(plain)})
        alone = write_times(bench.place / "alone", seconds / 5)
        us = statistics.mean(alone) * 1e6
        bench.found({"beside": "one such write to the disk, alone", "us": us, "times": len(alone)})


if __name__ == "__main__":
    sys.exit(app())
