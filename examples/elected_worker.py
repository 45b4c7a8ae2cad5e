"""A worker of which one runs at a time, on whichever machine: the others stand by.

Run it several times with ``python examples/elected_worker.py 127.0.0.1:7000``, and stop the one
that works.
"""

import sys
from collections.abc import Sequence

import trio

import quorate
from quorate import recipes


async def work(kv: quorate.KeyValue, held: recipes.Lease, rounds: int) -> None:
    """Do the work of a leader, some rounds of it."""
    for _ in range(rounds):
        async with kv.transaction() as t:
            # The round is written only while we lead, whatever happens to this program.
            await held.fence(t)
            t.increment("worker:rounds")
        print(f"leader with token {held.token}: round {t.results[0]!r}")
        await trio.sleep(0.1)


async def main(members: Sequence[str], rounds: int = 5) -> None:
    """Wait to be elected, and work until that is done, or the leadership is lost."""
    async with quorate.connect(members) as kv:
        while True:
            try:
                async with recipes.election(kv, "worker", ttl_s=5).lead() as held:
                    return await work(kv, held, rounds)
            except (quorate.LeaseLostError, quorate.ConflictError) as error:
                print(f"stand for election again: {error}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1:] or ["127.0.0.1:7000"], 100)
