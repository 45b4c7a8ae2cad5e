"""Appends for ever and tells on stdout what is durable, to be killed at any moment.

Usage: python appender.py DIRECTORY SEED. Each report is a letter and two numbers: "A" append
position, start position; "V" candidate term, the member voted for.
"""

import os
import struct
import sys
from pathlib import Path
from random import Random

import trio

from quorate.storage import NodeState, Store, ThreadExecutor
from tests.support.storage_world import batch_at, open_store

REPORT = struct.Struct("<cqq")


def report(kind: bytes, first: int, second: int) -> None:
    os.write(sys.stdout.fileno(), REPORT.pack(kind, first, second))


async def work(store: Store, rng: Random) -> None:
    """Write at random: bursts of batches, new terms, votes, pruning."""
    store.on_durable = lambda position: report(b"A", position, store.start_position)
    while True:
        base, term = store.submitted_position, store.log_term + 1
        await store.append_durably(batch_at(base, term=term))
        for _ in range(rng.randrange(20)):  # into the journal, until it is carried over
            await store.append_durably(batch_at(store.submitted_position, term=term, size=1000))
        for _ in range(rng.randrange(40)):
            size = rng.choice([10, 1000, 100_000])
            store.append(batch_at(store.submitted_position, term=term, size=size))
            if rng.random() < 0.2:
                await trio.lowlevel.checkpoint()
        await store.save_node_state(NodeState(store.node_state.candidate_term + 1, term % 3))
        report(b"V", store.node_state.candidate_term, store.node_state.voted_for)
        if rng.random() < 0.1:
            await store.drop_prefix(store.append_position - 200_000)


async def main() -> None:
    store = open_store(Path(sys.argv[1]), ThreadExecutor, map_bytes=1 << 20)
    report(b"A", store.append_position, store.start_position)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await work(store, Random(int(sys.argv[2])))


if __name__ == "__main__":
    trio.run(main)
