"""Live events for browsers, as server-sent events, and as a recording.

The first event is named ``head``; all others have no name, and say their kind. They have no ``id``,
since what a browser has missed is not sent again. A keyframe, which has everything, comes first
each time.

All that watch get the same bytes, which are made once. So a further viewer costs little more than
the packets to it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..node.live.relay import Relay
    from ..recordings import Event

    Send = Callable[[bytes], Awaitable[None]]

RETRY_MS: Final = 1000
"""How long a browser waits before it comes back. Shorter: those of a member that is down use more
of it. Longer: a page is dead for longer after a restart."""

COMMENT_SECONDS: Final = 10.0
"""How often something is sent when nothing happens. Shorter: more packets. Longer: a proxy on the
way takes the connection for dead."""


class LiveEvents:
    """Writes the events of all members for one that watches.

    Args:
        relay: has the events.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._last: list[Event] = []
        self._bytes = b""

    def _sent(self, batch: list[Event]) -> bytes:
        """Return a batch as it is sent; made once, however many watch."""
        # Events are compared by identity: to compare the fields costs as much as to write them.
        if [*map(id, batch)] != [*map(id, self._last)]:
            self._last = batch
            self._bytes = "".join(f"data: {each.as_json()}\n\n" for each in batch).encode()
        return self._bytes

    async def server_sent(self, send: Send) -> None:
        """Write events until the other end is gone."""
        head = json.dumps(self._relay.head(), separators=(",", ":"))
        with self._relay.subscribe() as events:
            await send(f"retry: {RETRY_MS}\nevent: head\ndata: {head}\n\n".encode())
            while True:
                batch: list[Event] = []
                with trio.move_on_after(COMMENT_SECONDS):
                    batch = await events.batch()
                await send(self._sent(batch) if batch else b": still here\n\n")

    async def recording(self, send: Send, seconds: float) -> None:
        """Write a recording of the next seconds."""
        head = json.dumps(self._relay.head(), separators=(",", ":"))
        with self._relay.subscribe() as events:
            await send(f"{head}\n".encode())
            with trio.move_on_after(seconds):
                while True:
                    batch = await events.batch()
                    with trio.CancelScope(shield=True):  # never half a line
                        await send("".join(f"{each.as_json()}\n" for each in batch).encode())
