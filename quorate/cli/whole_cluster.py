"""A cluster with partitions, for verbs that act on all of it: its newest map, and its groups."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import (
    ConfigurationError,
    ConflictError,
    KeyValueError,
    RequestError,
    UsageError,
    leaves,
)
from ..keyvalue.slots.cluster_map import META
from ..local.survey import ANSWER_SECONDS
from ..machine.finding import find_map
from ..machine.reach import open_groups
from ..partitions.metadata import load
from .params import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..machine.reach import RemoteGroups
    from ..partitions.groups import Group

__all__ = ["DONE", "HERE", "REFUSED", "UNREACHABLE", "Cluster", "EndedError", "open_cluster"]

DONE: Final = 0
REFUSED: Final = 1
UNREACHABLE: Final = 2

HERE: Final = ("127.0.0.1:7000",)


@attrs.define
class Cluster:
    """A cluster that answers: its newest map, and its groups."""

    map: ClusterMap
    groups: RemoteGroups = attrs.field(init=False)

    @property
    def metadata(self) -> Group:
        """The metadata group."""
        return self.groups.group(META)


class EndedError(Exception):
    """What was asked for has failed, and was printed; `status` is the exit status."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


@asynccontextmanager
async def open_cluster(
    connect: Sequence[str], *, or_known_map: bool = False
) -> AsyncGenerator[Cluster]:
    """Open the groups of a cluster, with the newest map of its metadata group.

    Args:
        connect: see `find_map`.
        or_known_map: if the metadata group does not answer soon, go by the map of those places.

    Raises:
        UsageError: an address is wrong.
        EndedError: it does not answer, or refuses what is done with it; that was printed.
    """
    status = REFUSED
    trouble: BaseExceptionGroup | None = None
    try:
        cluster = Cluster(await find_map(connect, parse_address))
        async with open_groups(lambda: cluster.map) as cluster.groups:
            if or_known_map:
                with trio.move_on_after(ANSWER_SECONDS), suppress(RequestError):
                    cluster.map = await load(cluster.metadata) or cluster.map
            else:
                cluster.map = await load(cluster.metadata) or cluster.map
            yield cluster
    except* UsageError:
        raise
    except* (ConfigurationError, KeyValueError, ConflictError) as group:
        trouble = group
    except* RequestError as group:
        status, trouble = UNREACHABLE, group
    if trouble is not None:
        print(next(leaves(trouble)), file=sys.stderr)
        raise EndedError(status)
