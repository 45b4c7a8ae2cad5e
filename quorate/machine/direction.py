"""The director of a cluster: it runs on the machine whose member leads the metadata group.

For some time there may be two of them, or one whose machine leads no more. That does no harm, since
what a director does is decided in the logs of the groups; but each ends what the other one copies.
So it goes by the member's own word, not by what it has noted at some time.
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
from .reach import address_in, says_it_leads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..node.requests.status import MemberAddress
    from ..partitions.groups import Groups
    from .config import MachineConfig

__all__ = ["direct_again", "direct_while_leading", "leads"]

_LOG: Final = logging.getLogger("quorate.machine")

LOOK_SECONDS: Final = 0.2
"""Pause between two looks at who leads the metadata group. Longer, and a cluster is without a
director for longer after an election."""

ASK_SECONDS: Final = 1.0
"""Pause between two questions to the member whether it leads still. Longer, and there are two
directors for longer."""

SILENCE_SECONDS: Final = 10.0
"""For how long it need not answer. Shorter, and a busy machine ends what its director does; longer,
and there are two directors for longer, if the member hangs."""

PAUSE_SECONDS: Final = 1.0


async def direct_while_leading(
    config: MachineConfig, groups: Groups, first: Callable[[], ClusterMap | None]
) -> None:
    """Run the director whenever this machine leads the metadata group, for ever.

    Args:
        config: of the machine.
        groups: it drives.
        first: returns what the map begins with if the metadata group has none; None for nothing.
    """
    while True:
        while not await leads(config):  # noqa: ASYNC110 - the notice is a file
            await trio.sleep(LOOK_SECONDS)
        log_event(_LOG, logging.INFO, "director_starts", "this machine directs the cluster")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(direct_again, groups, first)
            await _until_it_leads_no_more(config)
            nursery.cancel_scope.cancel()
        log_event(_LOG, logging.INFO, "director_stops", "another machine directs the cluster")


async def _until_it_leads_no_more(config: MachineConfig) -> None:
    """Return once the machine's member says so, or has not answered for some time."""
    heard_at = asked_at = trio.current_time()
    while _has_noted_that(config):
        await trio.sleep(LOOK_SECONDS)
        if trio.current_time() - asked_at < ASK_SECONDS:
            continue
        says = await says_it_leads(_own_member(config))
        asked_at = trio.current_time()
        if says is not None:
            heard_at = asked_at
        if says is False or asked_at - heard_at > SILENCE_SECONDS:
            return


async def leads(config: MachineConfig) -> bool:
    """Say whether the machine's member of the metadata group says now that it leads it."""
    # The note is looked at first, since it costs little. But it may be left from another life.
    return _has_noted_that(config) and bool(await says_it_leads(_own_member(config)))


def _has_noted_that(config: MachineConfig) -> bool:
    try:
        notice = decode_notice_untrusted(board_file(config.directory, META).read_bytes())
    except OSError:
        return False
    return notice is not None and notice.leader == config.machine_id


def _own_member(config: MachineConfig) -> MemberAddress:
    return address_in(config.own.as_machine(), META)


async def direct_again(groups: Groups, first: Callable[[], ClusterMap | None]) -> None:
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


async def _found_and_direct(groups: Groups, first: Callable[[], ClusterMap | None]) -> None:
    """Found the cluster if it is new, and direct it.

    Raises:
        QuorateError: the metadata group does not answer.
    """
    if (begins_with := first()) is not None:
        await found(groups.group(META), begins_with)
    await Director(groups, SystemRandom()).run()
