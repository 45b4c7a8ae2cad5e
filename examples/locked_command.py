"""A lock around a command, as `quorate lock` does it in more detail.

Run it with ``python examples/locked_command.py 127.0.0.1:7000 echo hello``.
"""

import os
import sys
from collections.abc import Sequence

import trio

import quorate
from quorate import recipes


async def main(members: Sequence[str], command: Sequence[str]) -> int:
    """Run a command while nobody else does; return its exit status.

    Raises:
        TimeoutError: the lock was not free in time.
        LeaseLostError: the lock was lost, and the command was stopped.
    """
    async with (
        quorate.connect(members) as kv,
        recipes.lock(kv, "command", ttl_s=10, wait_s=30) as held,
    ):
        # The command can hand the token to a store that refuses writes with an older one.
        environment = os.environ | {"TOKEN": str(held.token)}
        # trio ends the process when this block is cancelled, which a lost lock does.
        done = await trio.run_process(list(command), env=environment, check=False)
        return done.returncode


if __name__ == "__main__":
    sys.exit(trio.run(main, sys.argv[1:2], sys.argv[2:]))
