"""Cluster timers: reminders that come at one position of the log, on all members alike.

Run it with ``python examples/reminders.py``; it prints what each member was reminded of.
A client sends ``set NAME MILLISECONDS TEXT`` or ``cancel NAME``. The state is volatile, but the
log, or a snapshot, brings reminders back after a restart; who is late is reminded late, and once.
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
    from collections.abc import Iterator
    from random import Random

MAX_SET = 1000
MAX_TEXT = 200
KEPT = 100
"""What is unbounded will be too large one day."""


class Reminders:
    """Reminders that are set, and the last ones that came; every method runs on all members."""

    position = 0  # volatile: replayed at every start, from the last snapshot on

    def __init__(self) -> None:
        self.timers = quorate.Timers()
        self.came: list[bytes] = []

    def apply(self, command: quorate.Command) -> bytes:
        """Set a reminder, from the log's time of the command on, or cancel one."""
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
        """A batch is applied: take the timers that are due by now."""
        for timer in self.timers.due(timestamp_ms):
            self.came.append(b"%d %b: %b" % (position, timer.timer_id, timer.payload))
        del self.came[:-KEPT]

    def next_deadline_ms(self) -> int | None:
        """Have the leader move the log's time then, even if nobody sends anything."""
        return self.timers.next_deadline_ms()

    def query(self, payload: bytes, flags: int) -> bytes:
        """Tell what came, and at which position of the log."""
        del payload, flags
        return b"\n".join(self.came)

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Say what came, and what is set."""
        came = b"\n".join(self.came)
        pieces = [b"%d\n" % len(came), came, *self.timers.save()]
        task_status.started()
        return iter(pieces)

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Take a state that was saved, here or on another member."""
        del position, timestamp_ms
        size, _, rest = b"".join(pieces).partition(b"\n")
        came = rest[: int(size)]
        self.came = came.split(b"\n") if came else []
        self.timers = quorate.Timers.load_untrusted(iter([rest[int(size) :]]))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """There is nothing to do in the background."""
        task_status.started()
        await trio.sleep_forever()

    # for the simulation: quorate simulate --service examples.reminders:Reminders

    def state(self) -> bytes:
        """Stand for all that it holds; the simulation compares members by this."""
        return b"\n".join([*self.came, *self.timers.save()])

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Draw what a client may send."""
        name = rng.choice((b"a", b"b", b"c"))
        if rng.randrange(4) == 0:
            return Sample(b"", query=True)
        if rng.randrange(4) == 0:
            return Sample(b"cancel " + name)
        return Sample(b"set %b %d x" % (name, rng.choice((0, 50, 500, 5000))))


async def main(directory: Path, first_port: int = 7650) -> list[str]:
    """Run three members, set three reminders, cancel one, and return what each member tells."""
    members = tuple(
        quorate.MemberConfig(i, "127.0.0.1", first_port + i, first_port + 10 + i) for i in range(3)
    )
    async with AsyncExitStack() as stack:
        nodes: list[quorate.Node] = []
        for i in range(3):
            config = quorate.NodeConfig("reminders", i, directory / f"member-{i}", members)
            nodes.append(await stack.enter_async_context(quorate.open_node(config, Reminders())))
        await nodes[0].command(b"set tea 300 it has drawn")
        await nodes[1].command(b"set bread 100 take it out")
        await nodes[2].command(b"set nonsense 200 never mind")
        await nodes[0].command(b"cancel nonsense")
        while b"tea" not in await nodes[0].query(b""):  # noqa: ASYNC110 - the cluster tells nobody
            await trio.sleep(0.05)
        return [(await node.query(b"")).decode() for node in nodes]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for told in trio.run(main, Path(folder)):
            sys.stdout.write(f"{told}\n\n")
