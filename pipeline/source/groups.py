"""Finds the recordings of a cluster with partitions: one for each group of members and machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import StoreMismatchError
from ...keyvalue.slots.cluster_map import partition_in
from .logs import find_recording, open_log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["by_group", "longest", "recordings_in"]

_MEMBERS: Final = ("meta", "partition-*")
"""Folders of members in that of a machine."""


def recordings_in(directory: Path) -> list[Path]:
    """Return the members' directories that a directory stands for.

    Args:
        directory: that of a member, of a machine, or one with those of machines.

    Raises:
        StoreMismatchError: there is no recording.
    """
    try:
        find_recording(directory)
    except StoreMismatchError:
        places = [*_members_of(directory)]
        for machine in sorted(directory.iterdir()) if directory.is_dir() else ():
            places += _members_of(machine)
        if not places:
            raise StoreMismatchError(
                f"{directory}: no recording there; expected the directory of a member or a "
                "machine, a copy of one, or a folder with those of machines"
            ) from None
        return places
    return [directory]


def _members_of(machine: Path) -> Iterable[Path]:
    """Yield the directories of a machine's members, if it is one."""
    for pattern in _MEMBERS:
        for place in sorted(machine.glob(pattern)):
            try:
                find_recording(place)
            except StoreMismatchError:
                continue  # of a member that has not begun yet
            yield place


def by_group(directories: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the recordings of each group by its cluster name, the metadata group first.

    Args:
        directories: see `recordings_in`.

    Raises:
        StoreMismatchError: a directory has no recording.
        StorageError: one can't be read.
    """
    found: dict[str, list[Path]] = {}
    for directory in directories:
        for place in recordings_in(directory):
            with open_log(place) as log:
                found.setdefault(log.facts.cluster, []).append(place)
    return dict(sorted(found.items(), key=lambda group: _order(group[0])))


def longest(recordings: Iterable[Path]) -> Path:
    """Return the recording of a group that is known to be committed furthest.

    Raises:
        StorageError: one can't be read.
    """

    def committed(recording: Path) -> int:
        with open_log(recording) as log:
            return log.facts.committed

    return max(recordings, key=committed)


def _order(group: str) -> tuple[str, int]:
    partition = partition_in(group)
    return (group, 0) if partition is None else (group.rpartition(".")[0], partition)
