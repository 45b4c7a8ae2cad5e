"""One group of members: the connections to it, and the store whose requests go there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from .endpoint import RemoteEndpoint
from .joined import PlainKeyValue, StampedKeyValue
from .lanes import Lanes

if TYPE_CHECKING:
    from random import Random

    from anyio.abc import TaskGroup

    from .joined import JoinedKeyValue
    from .routing import Routes

__all__ = ["Group", "StoreOptions"]

_CLOSE_SECONDS: Final = 1.0
"""For the end of the session. Smaller, and a busy cluster keeps it until it times out. Larger, and
a program ends late while no member answers."""


class StoreOptions(NamedTuple):
    """How a store behaves; see `connect`.

    Args:
        exactly_once: writes travel in a session.
        session_timeout_s: how long the session lives without a write, in seconds.
        patience_s: how long a request is sent again, in seconds.
        rng: draws the pauses between attempts.
    """

    exactly_once: bool
    session_timeout_s: float
    patience_s: float
    rng: Random


class Group:
    """The connections of a client to one group of members, and the store on them.

    Args:
        routes: where its leader is.
        options: of the store.

    Attributes:
        endpoint: sends requests.
        kv: the store.
    """

    def __init__(self, routes: Routes, options: StoreOptions) -> None:
        self._lanes = Lanes(routes)
        rng, patience_s = options.rng, options.patience_s
        self.endpoint = RemoteEndpoint(routes, self._lanes, patience_s=patience_s, rng=rng)
        self.kv: JoinedKeyValue = (
            StampedKeyValue(
                self.endpoint,
                timeout_s=options.session_timeout_s,
                patience_s=patience_s,
                rng=rng,
            )
            if options.exactly_once
            else PlainKeyValue(self.endpoint)
        )

    def start(self, tasks: TaskGroup) -> None:
        """Start the tasks of the store in a task group."""
        self.kv.start(tasks, self.endpoint)

    async def finish(self) -> None:
        """Take no more commands, and close the session if the cluster answers."""
        self.kv.finish()
        if isinstance(self.kv, StampedKeyValue):
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self.kv.close()

    async def aclose(self) -> None:
        """Close the connections; it waits for no member."""
        await self._lanes.aclose()
