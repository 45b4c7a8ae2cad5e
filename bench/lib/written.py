"""Starts clients that set new keys, and reads what became of their writes (:mod:`writers`)."""

import itertools
import json
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs
import trio

from bench.lib.checking import LostError
from bench.lib.writers import READY_SECONDS, VALUE, Address

Kind: TypeAlias = Literal["redis-py", "resp", "etcd"]

END_SECONDS: Final = 30.0
"""How long clients have for their last replies. If smaller, those of redis-py that still retry are
lost. If larger, a cluster that does not answer holds up the bench."""

NAMED: Final = 5
"""At most this many missing keys are named in an error."""


@attrs.frozen
class Written:
    """The outcomes of some clients' writes.

    Args:
        name: of the clients; their keys begin with it.
        acknowledged: when each write was acknowledged, ascending (`time.monotonic`).
        errors: number of errors by their text.
        cut: connections that ended in place of a reply.
        silent: writes that had no reply in time.
        slowest: seconds of the slowest write.
        clients: for each client, its last number, and those not acknowledged.
        ended: when the clients ended.
    """

    name: str
    acknowledged: Sequence[float]
    errors: dict[str, int]
    cut: int
    silent: int
    slowest: float
    clients: Sequence[tuple[int, Sequence[int]]]
    ended: float

    @property
    def seen(self) -> int:
        """The number of errors."""
        return sum(self.errors.values())

    def pause(self, since: float, until: float) -> float:
        """Return the longest time without an acknowledgement that touches these seconds."""
        all_of = self.acknowledged
        first, last = bisect_left(all_of, since), bisect_right(all_of, until)
        before = all_of[first - 1] if first else since
        after = all_of[last] if last < len(all_of) else until
        times = [before, *all_of[first:last], after]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def rate(self, since: float, until: float) -> float:
        """Return the acknowledged writes a second."""
        first, last = bisect_left(self.acknowledged, since), bisect_left(self.acknowledged, until)
        return (last - first) / (until - since)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys that must be there, with their values."""
        for client, (sent, unacknowledged) in enumerate(self.clients):
            skipped = {*unacknowledged}
            for number in range(1, sent + 1):
                if number not in skipped:
                    key = f"{self.name}:{client}:{number}".encode()
                    yield key, b"%016d%s" % (number, VALUE)

    def compare(self, where: str, values: Mapping[bytes, bytes]) -> None:
        """Check that all acknowledged keys have their values.

        Raises:
            LostError: a key is missing, or has another value.
        """
        wrong = [key.decode() for key, value in self.pairs() if values.get(key) != value]
        if wrong:
            raise LostError(
                f"{where}: {len(wrong)} of {len(self.acknowledged)} acknowledged writes are not "
                f"there: {', '.join(wrong[:NAMED])}"
            )


@attrs.define
class Writers:
    """Clients that write. Their outcomes are known once the block of `open_writers` has ended."""

    written: Written | None = None

    @property
    def found(self) -> Written:
        """The outcomes."""
        assert self.written is not None
        return self.written


@asynccontextmanager
async def open_writers(
    kind: Kind,
    place: Path,
    name: str,
    addresses: Sequence[Address],
    *,
    clients: int,
    seconds: float,
) -> AsyncGenerator[Writers]:
    """Let clients write during a block, for at most these seconds.

    Raises:
        RuntimeError: the clients ended before the block did, or failed.
    """
    file = place / f"{name}.json"
    words = [kind, str(clients), str(seconds), name, str(file)]
    words += [f"{host}:{port}" for host, port in addresses]
    command = [sys.executable, "-m", "bench.lib.writers", *words]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    writers = Writers()
    try:
        assert process.stdout is not None
        with trio.fail_after(READY_SECONDS):
            said = await process.stdout.receive_some()
        if bytes(said).strip() != b"ready":
            raise RuntimeError(f"the {kind} clients could not begin")
        yield writers
        if process.poll() is not None:
            raise RuntimeError(f"the {kind} clients ended after {seconds} s or too many writes")
        process.terminate()
        with trio.fail_after(END_SECONDS):
            if await process.wait():
                raise RuntimeError(f"the {kind} clients ended with status {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdout is not None:
            await process.stdout.aclose()
    found = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    writers.written = Written(
        name,
        sorted(found["acknowledged"]),
        found["errors"],
        found["cut"],
        found["silent"],
        found["slowest"],
        found["clients"],
        time.monotonic(),
    )
