"""The inner stores of a client, one for each partition that it has used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import anyio

from ...errors import RefusedError, UnsupportedError
from ...node.requests.request import UNSTAMPED
from ..group import Group
from ..lanes import CLOSED
from .routes import PartitionRoutes

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ...node.requests.request import Stamp
    from ..dialling import Dialler
    from ..group import StoreOptions
    from .placement import Placement

__all__ = ["Groups"]


class Groups:
    """A group for each partition, opened when it is first needed.

    Args:
        dialler: opens connections.
        placement: knows where the members are.
        options: of each store.
    """

    def __init__(self, dialler: Dialler, placement: Placement, options: StoreOptions) -> None:
        self._dialler, self._placement, self._options = dialler, placement, options
        self._groups: dict[int, Group] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        partitions = len(self._placement.map.partitions)
        return f"<the cluster of {partitions} partitions at {self._placement}>"

    def start(self, tasks: TaskGroup) -> None:
        """Run the tasks of all groups in a task group from now on."""
        self._tasks = tasks

    def of(self, partition: int) -> Group:
        """Return the group of a partition.

        Raises:
            RefusedError: the client is closed.
        """
        group = self._groups.get(partition)
        if group is None:
            if self._tasks is None:
                raise RefusedError(CLOSED)
            routes = PartitionRoutes(self._dialler, self._placement, partition)
            group = self._groups[partition] = Group(routes, self._options)
            group.start(self._tasks)
        return group

    async def finish(self) -> None:
        """Take no more commands, and close the sessions of those that answer."""
        self._tasks = None
        with anyio.CancelScope(shield=True):  # each takes a second at most
            async with anyio.create_task_group() as closing:
                for group in self._groups.values():
                    closing.start_soon(group.finish)

    async def aclose(self) -> None:
        """Close all connections; it waits for no member."""
        for group in self._groups.values():
            await group.aclose()

    # A store has an endpoint. This one's requests go to those of its groups.

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> Never:
        """Refuse it: nobody knows for which partition it is."""
        del flags, stamp
        self._refuse(payload)

    async def query(self, payload: bytes, flags: int = 0) -> Never:
        """Refuse it: nobody knows for which partition it is."""
        del flags
        self._refuse(payload)

    def _refuse(self, payload: bytes) -> Never:
        words = "executes no encoded commands: use the methods of the store"
        raise UnsupportedError(f"{payload!r:.60}: {self!r} {words}")
