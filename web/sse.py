"""Live events for browsers, as server-sent events, and as a recording.

The first event is named ``head``; all others have no name, and say their kind. Each has an ``id``,
by which a browser says where it was when it comes back. What it has missed is not sent again: a
keyframe, which has everything, comes first each time.
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

KEPT: Final = 64
"""Events whose JSON is kept for those that watch, too. Fewer: each is written once for everybody.
More: memory."""


class LiveEvents:
    """Writes the events of all members for one that watches.

    Args:
        relay: has the events.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._written: dict[int, tuple[Event, str]] = {}  # by the identity of an event

    def _json(self, event: Event) -> str:
        """Return an event as JSON; written once, however many watch."""
        known = self._written.get(id(event))
        # Each kept event lives, so no other one has its identity.
        if known is not None:
            return known[1]
        text = event.as_json()
        self._written[id(event)] = event, text
        if len(self._written) > KEPT:
            del self._written[next(iter(self._written))]
        return text

    async def server_sent(self, send: Send) -> None:
        """Write events until the other end is gone."""
        number = 0
        head = json.dumps(self._relay.head(), separators=(",", ":"))
        with self._relay.subscribe() as events:
            await send(f"retry: {RETRY_MS}\nevent: head\ndata: {head}\n\n".encode())
            while True:
                batch = []
                with trio.move_on_after(COMMENT_SECONDS):
                    batch = await events.batch()
                parts = [": still here\n\n"] if not batch else []
                for event in batch:
                    number += 1
                    parts.append(f"id: {number}\ndata: {self._json(event)}\n\n")
                await send("".join(parts).encode())

    async def recording(self, send: Send, seconds: float) -> None:
        """Write a recording of the next seconds."""
        head = json.dumps(self._relay.head(), separators=(",", ":"))
        with self._relay.subscribe() as events:
            await send(f"{head}\n".encode())
            with trio.move_on_after(seconds):
                while True:
                    batch = await events.batch()
                    with trio.CancelScope(shield=True):  # never half a line
                        await send("".join(f"{self._json(each)}\n" for each in batch).encode())
