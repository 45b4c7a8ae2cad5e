"""A rate limiter for a whole fleet: so many calls in a window of time, whoever makes them.

Run it with ``python examples/rate_limiter.py 127.0.0.1:7000``, in several terminals.
"""

import sys
from collections.abc import Sequence

import trio

import quorate


async def allowed(kv: quorate.KeyValue, who: str, calls: int, window_s: float) -> bool:
    """Count a call if it is one of the first ones in its window; return whether it is."""
    key = f"limit:{who}"

    async def body(t: quorate.Transaction) -> bool:
        used = await t.get(key)
        if used is None:
            t.set(key, b"1", px=round(window_s * 1000))  # the window begins with its first call
        elif int(used) < calls:
            t.increment(key)  # keeps the end of the window
        else:
            return False
        return True

    return await kv.transact(body)


async def main(members: Sequence[str], attempts: int = 12) -> list[bool]:
    """Make some calls in a row; return which of them were allowed."""
    async with quorate.connect(members) as kv:
        found = [await allowed(kv, "alice", calls=5, window_s=10) for _ in range(attempts)]
    print("".join("+" if each else "-" for each in found))
    return found


if __name__ == "__main__":
    trio.run(main, sys.argv[1:] or ["127.0.0.1:7000"])
