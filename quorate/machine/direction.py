"""The director of a cluster: it runs on the machine whose member leads the metadata group.

For some time there may be two of them, or one whose machine leads no more. That does no harm: what
a director does is decided in the logs of the groups.
"""

from __future__ import annotations

import logging
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import trio

from ..errors import QuorateError, leaves
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.folder import board_file, decode_notice_untrusted
from ..log_events import log_event
from ..partitions.director import Director
from ..partitions.metadata import found

if TYPE_CHECKING:
    from ..keyvalue.slots.cluster_map import ClusterMap
    from .config import MachineConfig
    from .reach import RemoteGroups

__all__ = ["direct_while_leading", "leads"]

_LOG: Final = logging.getLogger("quorate.machine")

LOOK_SECONDS: Final = 0.2
"""Pause between two looks at who leads the metadata group. Longer, and a cluster is without a
director for longer after an election."""

PAUSE_SECONDS: Final = 1.0


async def direct_while_leading(
    config: MachineConfig, groups: RemoteGroups, first: ClusterMap
) -> None:
    """Run the director whenever this machine leads the metadata group, for ever.

    Args:
        config: of the machine.
        groups: it drives.
        first: the map of a new cluster.
    """
    while True:
        await _until(config, leading=True)
        log_event(_LOG, logging.INFO, "director_starts", "this machine directs the cluster")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_direct, groups, first)
            await _until(config, leading=False)
            nursery.cancel_scope.cancel()
        log_event(_LOG, logging.INFO, "director_stops", "another machine directs the cluster")


async def _until(config: MachineConfig, *, leading: bool) -> None:
    """Wait until the machine's member leads the metadata group, or leads it no more."""
    while leads(config) != leading:  # noqa: ASYNC110 - the notice is a file
        await trio.sleep(LOOK_SECONDS)


def leads(config: MachineConfig) -> bool:
    """Say whether the machine's member of the metadata group leads it, as far as it is known."""
    try:
        notice = decode_notice_untrusted(board_file(config.directory, META).read_bytes())
    except OSError:
        return False
    return notice is not None and notice.leader == config.machine_id


async def _direct(groups: RemoteGroups, first: ClusterMap) -> None:
    """Direct the cluster until cancelled. A bug in that must not end the machine's members."""
    while True:
        try:
            await _found_and_direct(groups, first)
        except* QuorateError as errors:
            why = "; ".join(str(each) for each in leaves(errors))
            log_event(_LOG, logging.WARNING, "director_waits", "%(why)s", why=why)
        except* Exception as errors:  # noqa: BLE001 - the border of the director
            why = "; ".join(repr(each) for each in leaves(errors))
            words = "a bug has ended the director, and it begins again: %(why)s"
            log_event(_LOG, logging.ERROR, "director_failed", words, exc_info=True, why=why)
        await trio.sleep(PAUSE_SECONDS)


async def _found_and_direct(groups: RemoteGroups, first: ClusterMap) -> None:
    """Found the cluster if it is new, and direct it.

    Raises:
        QuorateError: the metadata group does not answer.
    """
    await found(groups.group(META), first)
    await Director(groups, SystemRandom()).run()
