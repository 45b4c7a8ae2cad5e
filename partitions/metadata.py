"""The map of the cluster, as the metadata group has it: one key, changed by compare-and-set.

A change is made of the newest map, and only if that is still the newest when the change is applied.
So nobody overwrites what another one has changed, and every map but the first follows another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ..errors import ConfigurationError, ConflictError, NoLeaderError, UnknownOutcomeError
from ..keyvalue.slots.cluster_map import MAP_KEY, decode_map_untrusted, encode_map
from .groups import surely

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..keyvalue.slots.cluster_map import ClusterMap
    from .groups import Group

__all__ = ["LOST_EPOCHS", "Edit", "again", "change", "found", "load"]

_ATTEMPTS: Final = 30
"""How often a change is tried at most. Fewer, and some of many changes at once fail; more, and a
change that never fits goes on for minutes."""

_PAUSE_S: Final = 0.02
"""After an attempt without effect, and longer after each: then another one was faster."""

LOST_EPOCHS: Final = 1000
"""How many maps there may have been after the newest one that is left. Machines that have seen them
take no map with a lower epoch. Fewer, and such a machine goes by a map that is no more; more, and
nothing is gained."""

if TYPE_CHECKING:
    Edit = Callable[[ClusterMap], ClusterMap | None]
    """Returns a changed map, or None if there is nothing to change. It is called
    again for each newer map, so it must not assume that an earlier result was used."""


async def load(group: Group) -> ClusterMap | None:
    """Return the newest map; None if the cluster has none.

    Args:
        group: the metadata group.

    Raises:
        ConfigurationError: it is no map.
        RequestError: the group does not answer.
    """
    data = await _read(group)
    return None if data is None else _decoded_untrusted(data)


async def found(group: Group, first: ClusterMap) -> ClusterMap:
    """Store the first map of a cluster unless there is one; return the one that is there.

    If the one that is there has a lower epoch than the one that this machine knows (`again`), its
    epoch is raised above that.

    Args:
        group: the metadata group.
        first: the map; its epoch is 1 if there was never one.

    Raises:
        ConfigurationError: the cluster that is there has another name.
        ConflictError: others change the map all the time.
        RequestError: the group does not answer.
    """
    # Repeated, it meets its own map.
    await surely(group, "QUORATE.CAS", MAP_KEY, "ABSENT", "SET", encode_map(first))
    there = await load(group)
    if there is None or there.cluster != first.cluster:
        name = None if there is None else there.cluster
        raise ConfigurationError(
            f"cluster = {first.cluster}: the metadata group has the map of {name}: expected the "
            "same name; give another directory to a new cluster"
        )
    if first.epoch - LOST_EPOCHS > there.epoch:
        # It came from a machine that knew less, after ours was lost. Machines that have seen ours
        # would not take it before its epoch has passed that one.
        return await change(
            group,
            lambda now: (
                msgspec.structs.replace(now, epoch=first.epoch) if now.epoch < first.epoch else None
            ),
        )
    return there


def again(newest: ClusterMap) -> ClusterMap:
    """Return what a metadata group begins with that has lost its map, by a FLUSHALL or otherwise.

    Args:
        newest: the newest map that was seen.
    """
    return msgspec.structs.replace(newest, epoch=newest.epoch + LOST_EPOCHS)


async def change(group: Group, edit: Edit) -> ClusterMap:
    """Change the map; return the newest one.

    Args:
        group: the metadata group.
        edit: changes it. The epoch is raised here, by 1 unless the edit has raised it by more.

    Raises:
        ConfigurationError: there is no map, or the edit's result contradicts itself.
        ConflictError: others were faster, each time.
        RequestError: the group does not answer. The change may be made.
    """
    trouble: Exception | None = None
    for attempt in range(_ATTEMPTS):
        data = await _read(group)
        if data is None:
            raise ConfigurationError("the metadata group has no map: expected a founded cluster")
        now = _decoded_untrusted(data)
        wanted = edit(now)
        if wanted is None:
            return now
        after = msgspec.structs.replace(wanted, epoch=max(wanted.epoch, now.epoch + 1))
        # A wrong map would stop every program that reads it, so it is checked before it is there.
        after = decode_map_untrusted(fresh := encode_map(after), what="the changed map")
        try:
            if await group.execute("QUORATE.CAS", MAP_KEY, "EQUALS", data, "SET", fresh):
                return after
        except (NoLeaderError, UnknownOutcomeError) as error:
            # The change may be made. The next reading shows it, and the edit says what is left.
            trouble = _named(error)
        await trio.sleep(_PAUSE_S * (attempt + 1))
    raise trouble or ConflictError("the map was changed by others each time: try again")


async def _read(group: Group) -> bytes | None:
    try:
        data = await surely(group, "GET", MAP_KEY)
    except (NoLeaderError, UnknownOutcomeError) as error:
        raise _named(error) from error
    if not isinstance(data, bytes | None):
        raise ConfigurationError(f"the map of the cluster: found {data!r:.40}: expected a string")
    return data


def _named(error: NoLeaderError | UnknownOutcomeError) -> NoLeaderError | UnknownOutcomeError:
    """Return an error that says which group it is about."""
    return type(error)(
        f"the metadata group does not answer: {error}: expected a majority of its members: start "
        "the machines that have them"
    )


def _decoded_untrusted(data: bytes) -> ClusterMap:
    return decode_map_untrusted(data, what="the map in the metadata group")
