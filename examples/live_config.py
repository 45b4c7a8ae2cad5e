"""A configuration that reloads live: a change in the store reaches every program at once.

Run it with ``python examples/live_config.py 127.0.0.1:7000``, then ``redis-cli -p 7000 SET
config/colour blue``.
"""

import sys
from collections.abc import Sequence

import trio

import quorate
from quorate import recipes


async def main(members: Sequence[str], changes: int = 1) -> list[dict[bytes, bytes]]:
    """Print the configuration, and again after each change; return what was printed."""
    seen: list[dict[bytes, bytes]] = []
    async with (
        quorate.connect(members) as kv,
        recipes.cached(kv, "config/") as config,
    ):
        while True:
            position = config.position
            seen.append(dict(config.items()))
            print(f"colour is {config.get('colour', b'not set')!r}; all of it: {seen[-1]}")
            if len(seen) > changes:
                return seen
            await config.changed(position)


if __name__ == "__main__":
    trio.run(main, sys.argv[1:] or ["127.0.0.1:7000"], 1000)
