"""A process that changes tables and flushes them in a loop, and reports; it is there to be killed.

Each batch is made from its number alone, so their content follows from the number of batches.
"""

import struct
import sys
from pathlib import Path
from random import Random

import trio

from quorate.storage.tables.memtable import Record
from quorate.storage.tables.tables import Tables

REPORT = struct.Struct("<q")
BATCH_BYTES = 320
_KEYS = 500
_CLEAR_EVERY = 97


def changes_of(batch: int) -> tuple[bool, dict[bytes, Record | None]]:
    """Say whether a batch clears the tables, and what it sets or deletes then."""
    rng = Random(batch)
    changes: dict[bytes, Record | None] = {}
    for _ in range(30):
        key = b"key" * rng.choice([1, 2, 300]) + b"%d" % rng.randrange(_KEYS)
        value = rng.randbytes(rng.choice([10, 200, 3000]))
        gone = rng.random() < 0.3
        changes[key] = None if gone else (value, rng.choice([0, 0, batch + 1000]), batch, 1)
    return batch % _CLEAR_EVERY == 0, changes


async def work(directory: Path) -> None:
    tables = Tables.open(directory, cluster="test", member_id=1, map_bytes=1 << 20)
    async with trio.open_nursery() as nursery:
        await nursery.start(tables.run)
        nursery.start_soon(flush_for_ever, tables)
        batch = tables.position // BATCH_BYTES
        while True:
            batch += 1
            clears, changes = changes_of(batch)
            if clears:
                tables.clear()
            for key, record in changes.items():
                if record is None:
                    tables.delete(key)
                else:
                    tables.put(key, record)
            tables.advance(batch * BATCH_BYTES, batch)
            await trio.sleep(0.0005)


async def flush_for_ever(tables: Tables) -> None:
    while True:
        await tables.flush()
        sys.stdout.buffer.write(REPORT.pack(tables.position))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    trio.run(work, Path(sys.argv[1]))
