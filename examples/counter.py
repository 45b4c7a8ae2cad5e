"""Your own replicated state machine: a counter, on three members in one program.

Run it with ``python examples/counter.py``; it prints what each member holds.
"""

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import quorate

MAX_DIGITS = 18
"""Without a limit the total grows until Python refuses to print it, beyond 4300 digits."""


class Counter(quorate.SnapshotStateMachine):
    """Adds up the numbers that it is sent."""

    total = 0

    def apply(self, command: quorate.Command) -> bytes:
        """Add a number; reply with the new total, or an error."""
        if len(command.payload) > MAX_DIGITS:
            return b"error: too long"
        try:
            self.total += int(command.payload)
        except ValueError:
            return b"error: not a number"
        return b"%d" % self.total

    def query(self, payload: bytes, flags: int) -> bytes:
        """Return the total."""
        del payload, flags  # there is only one question
        return b"%d" % self.total

    def dump(self) -> bytes:
        """Return the state, for a snapshot."""
        return b"%d" % self.total

    def restore(self, state: bytes) -> None:
        """Take the state from a snapshot."""
        self.total = int(state)


async def main(directory: Path) -> list[int]:
    """Run three members, add up 1 to 10 through all of them, and return what each holds."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(quorate.open_node(config, Counter()))
            for config in quorate.local_configs(3, directory)
        ]
        for number in range(1, 11):
            await nodes[number % 3].command(b"%d" % number)
        return [int(await node.query(b"")) for node in nodes]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"every member holds {trio.run(main, Path(folder))}\n")
