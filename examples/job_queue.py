"""A queue of jobs, on asyncio: each job is counted once, also if a worker dies in the middle.

Run it with ``python examples/job_queue.py 127.0.0.1:7000``.
"""

import asyncio
import sys
from collections.abc import Sequence

import quorate
from quorate import recipes


async def work(queue: recipes.Queue, kv: quorate.KeyValue, worker: str) -> None:
    """Take jobs until there are none for a second."""
    while True:
        try:
            async with queue.take(wait_s=1) as job:
                await asyncio.sleep(0.01)  # the work itself; may be done again after a failure

                async def finish(t: quorate.Transaction, job: recipes.Item = job) -> None:
                    await job.remove_in(t)
                    t.increment("jobs:sum", int(job.value))  # once for each job

                await kv.transact(finish)
                print(f"{worker} did job {job.number}")
        except TimeoutError:
            return


async def main(members: Sequence[str], jobs: int = 10) -> int:
    """Put some jobs, do them with two workers, and return what they have added up to."""
    async with quorate.connect(members) as kv:
        queue = recipes.Queue(kv, "jobs", ttl_s=5)
        for number in range(1, jobs + 1):
            await queue.put(str(number))
        await asyncio.gather(work(queue, kv, "one"), work(queue, kv, "two"))
        return int(await kv.get("jobs:sum") or b"0")


if __name__ == "__main__":
    print("sum:", asyncio.run(main(sys.argv[1:] or ["127.0.0.1:7000"])))
