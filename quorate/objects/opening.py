"""Opens replicated objects: a member whose state machine they are."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ..embed import open_node
from ..node.one_error import one_error
from .caller import Caller
from .machine import ObjectsMachine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ..embed import Node
    from ..node import NodeConfig
    from ..transport import PeerSecurity
    from .machine import Part

__all__ = ["open_objects"]


@one_error
@asynccontextmanager
async def open_objects(
    config: NodeConfig,
    objects: Sequence[Part],
    *,
    security: PeerSecurity | None = None,
    patience_s: float = 60.0,
) -> AsyncGenerator[Node, None]:
    """Run a member with replicated objects for the length of the block.

    Give all members the same objects. An object belongs to one opening: make new ones for another
    member, or after the block.

    Args:
        config: the member's configuration.
        objects: their names must differ.
        security: see :func:`quorate.open_node`.
        patience_s: how long a call is sent again while it is not answered, in seconds.

    Raises:
        ConfigurationError: two objects have one name, or one was opened before; or what
            :func:`quorate.open_node` raises.
        StorageError: the snapshot or the log is of other objects; or what `open_node` raises.
    """
    caller = Caller(patience_s)
    machine = ObjectsMachine(objects, caller)
    caller.local = machine
    async with (
        open_node(config, machine, security=security) as node,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(caller.run, node)
        yield node
        nursery.cancel_scope.cancel()
