"""Your own replicated state machine: a counter, on three members in one program.

Run it with ``python examples/counter.py``; it prints what each member holds.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import quorate

MAX_DIGITS = 18
"""What is unbounded will be too large one day: Python prints no number of 5000 digits."""


class Counter:
    """Adds up the numbers that it is sent; the log and its snapshots are its only storage."""

    position = 0  # volatile: replayed at every start, from the last snapshot on

    def __init__(self) -> None:
        self.total = 0

    def apply(self, command: quorate.Command) -> bytes:
        """Add a number; the reply is the new total, or an error.

        A command is any bytes that a client sends. It is in the log for good, so an exception here
        would end every member, and again at every start.
        """
        if len(command.payload) > MAX_DIGITS:
            return b"error: too long"
        try:
            self.total += int(command.payload)
        except ValueError:
            return b"error: not a number"
        return b"%d" % self.total

    def query(self, payload: bytes, flags: int) -> bytes:  # noqa: ARG002 - there is but one question
        """Tell the total."""
        return b"%d" % self.total

    def advance(self, position: int, timestamp_ms: int) -> None:
        """A batch is applied; a counter has nothing to do then."""

    def next_deadline_ms(self) -> int | None:
        """A counter needs no timer."""
        return None

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Say what the state is: then the log need not be kept for ever."""
        pieces = [b"%d" % self.total]
        task_status.started()
        return iter(pieces)

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:  # noqa: ARG002 - of no use here
        """Take a state that was saved, here or on another member."""
        self.total = int(b"".join(pieces))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """There is nothing to do in the background."""
        task_status.started()
        await trio.sleep_forever()


async def main(directory: Path, first_port: int = 7650) -> list[int]:
    """Run three members, add up 1 to 10 through all of them, and return what each holds."""
    members = tuple(
        quorate.MemberConfig(i, "127.0.0.1", first_port + i, first_port + 10 + i) for i in range(3)
    )
    async with AsyncExitStack() as stack:
        nodes: list[quorate.Node] = []
        for i in range(3):
            config = quorate.NodeConfig("counters", i, directory / f"member-{i}", members)
            nodes.append(await stack.enter_async_context(quorate.open_node(config, Counter())))
        for number in range(1, 11):
            await nodes[number % 3].command(b"%d" % number)
        return [int(await node.query(b"")) for node in nodes]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"every member says {trio.run(main, Path(folder))}\n")
