"""Cluster timers: each reminder comes at one position of the log, the same on all members.

Run it with ``python examples/reminders.py``; it prints the reminders of each member.
A client sends ``set NAME MILLISECONDS TEXT`` or ``cancel NAME``. After a restart the log, or a
snapshot, brings the reminders back. One that is overdue comes late, and once.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import quorate
from quorate.simulation import Sample

if TYPE_CHECKING:
    from random import Random

MAX_SET = 1000
MAX_TEXT = 200
KEPT = 100
"""Limits on what clients can make members keep: without them memory and snapshots grow for ever."""


class Reminders(quorate.SnapshotStateMachine):
    """Reminders that are set, and the last ones that came."""

    def __init__(self) -> None:
        self.timers = quorate.Timers()
        self.came: list[bytes] = []

    def apply(self, command: quorate.Command) -> bytes:
        """Set a reminder, counted from the log time of the command, or cancel one."""
        if len(command.payload) > MAX_TEXT or b"\n" in command.payload:
            return b"error: one line of up to 200 bytes"
        match command.payload.split(b" ", 3):
            case [b"set", name, digits, text] if digits.isdigit():
                if len(self.timers) >= MAX_SET:
                    return b"error: too many"
                self.timers.schedule(name, command.timestamp_ms + int(digits[:9]), text)
                return b"ok"
            case [b"cancel", name]:
                return b"ok" if self.timers.cancel(name) else b"error: there is none"
            case _:
                return b"error: set NAME MILLISECONDS TEXT, or cancel NAME"

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Take the timers that are due at the end of a batch."""
        for timer in self.timers.due(timestamp_ms):
            self.came.append(b"%d %b: %b" % (position, timer.timer_id, timer.payload))
        del self.came[:-KEPT]

    def next_deadline_ms(self) -> int | None:
        """Return when the next timer is due; the leader then records an entry, if no one writes."""
        return self.timers.next_deadline_ms()

    def query(self, payload: bytes, flags: int) -> bytes:
        """Return what came, and at which position of the log."""
        del payload, flags
        return b"\n".join(self.came)

    def dump(self) -> bytes:
        """Return the state, for a snapshot: what came, and what is set."""
        came = b"\n".join(self.came)
        return b"".join([b"%d\n" % len(came), came, *self.timers.save()])

    def restore(self, state: bytes) -> None:
        """Take the state from a snapshot."""
        size, _, rest = state.partition(b"\n")
        came = rest[: int(size)]
        self.came = came.split(b"\n") if came else []
        self.timers = quorate.Timers.load_untrusted(iter([rest[int(size) :]]))

    # for the simulation: quorate simulate --service examples.reminders:Reminders

    def state(self) -> bytes:
        """Return the whole state; the simulation compares members by this."""
        return self.dump()

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Return what a client may send."""
        name = rng.choice((b"a", b"b", b"c"))
        if rng.randrange(4) == 0:
            return Sample(b"", query=True)
        if rng.randrange(4) == 0:
            return Sample(b"cancel " + name)
        return Sample(b"set %b %d x" % (name, rng.choice((0, 50, 500, 5000))))


async def main(directory: Path) -> list[str]:
    """Run three members, set three reminders and cancel one; return what came on each member."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(quorate.open_node(config, Reminders()))
            for config in quorate.local_configs(3, directory)
        ]
        await nodes[0].command(b"set tea 300 it has drawn")
        await nodes[1].command(b"set bread 100 take it out")
        await nodes[2].command(b"set nonsense 200 never mind")
        await nodes[0].command(b"cancel nonsense")
        while b"tea" not in await nodes[0].query(b""):  # noqa: ASYNC110 - no event from the cluster
            await trio.sleep(0.05)
        return [(await node.query(b"")).decode() for node in nodes]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for came in trio.run(main, Path(folder)):
            sys.stdout.write(f"{came}\n\n")
