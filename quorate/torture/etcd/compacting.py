"""A client of etcd that compacts, and looks at what is left."""

import random
from typing import Final

import trio

from ...etcd.codes import Code
from ...etcd.messages import rpc_pb2 as rpc
from ...local.etcd_client import EtcdRefusedError
from .calls import Calls
from .connecting import Client
from .records import END, PREFIX, Compaction, Past, Read
from .watching import begin, follow

__all__ = ["compact", "compact_to"]

KEPT: Final = 50
"""Most revisions that stay. If smaller, all watches that break are cut, and few go on; if larger,
hardly one is cut."""
NEAR: Final = 3
"""How far the reads are from the compaction, mostly."""
READS: Final = 3
LOOK_S: Final = 0.3
PAUSE_S: Final = 3.0


async def compact(calls: Calls, rng: random.Random) -> None:
    """Compact, read around there, and begin a watch.

    Raises:
        TransportError, trio.TooSlowError: a request has no answer.
    """
    await trio.sleep(PAUSE_S * rng.random())
    async with calls.connection(rng) as client:
        # What no watch has shown stays, or it could be shown by none.
        revision = max(calls.records.shown - rng.randrange(KEPT), 1)
        await compact_to(calls, client, revision)
        for _ in range(READS):
            await _read(calls, client, revision + rng.randint(-NEAR, NEAR))
        start = max(revision + rng.randint(-1, 1), 2)
        watched = begin(f"a watch from {start} on", start, calls.records)
        with trio.move_on_after(LOOK_S):
            if cut := await follow(client, watched, calls.records):
                begin(watched.name, cut, calls.records, cut=True)


async def compact_to(calls: Calls, client: Client, revision: int) -> None:
    """Compact everything before a revision.

    Raises:
        TransportError, trio.TooSlowError: there is no answer, or a refusal.
    """
    records = calls.records
    compaction = Compaction(revision, trio.current_time(), known=records.compacted)
    records.compactions.append(compaction)
    request = rpc.CompactionRequest(revision=revision)
    try:
        reply = await calls.ask(client, "/v3/kv/compaction", request, rpc.CompactionResponse)
    except EtcdRefusedError as error:
        if error.code != Code.OUT_OF_RANGE:
            raise
        compaction.status = "fail"
        others = (each.revision for each in records.compactions if each is not compaction)
        compaction.before = max(others, default=0)
    else:
        compaction.status = "ok"
        calls.note(reply.header.revision)


async def _read(calls: Calls, client: Client, revision: int) -> None:
    """Read all keys as of a revision, if that is known."""
    records = calls.records
    low, known = records.known, records.compacted
    if not 0 < revision <= low:
        return
    request = rpc.RangeRequest(key=PREFIX, range_end=END, revision=revision)
    try:
        reply = await calls.ask(client, "/v3/kv/range", request, rpc.RangeResponse)
    except EtcdRefusedError as error:
        if error.code != Code.OUT_OF_RANGE:
            raise
        records.past.append(Past(revision, known, records.asked(), served=False))
        return
    records.past.append(Past(revision, known, records.asked(), served=True))
    calls.read(Read(revision, revision, PREFIX, END, reply.kvs))
    calls.note(reply.header.revision)
    if reply.header.revision < low:
        words = f"as of {reply.header.revision} when {low} was known"
        records.trouble.append(f"a read at revision {revision} was answered {words}")
