"""The manifest of a backup of all partitions: what lies in the folder, and up to where it counts.

::

    backup/
        manifest.json
        partition-0/          a backup as of one group: `log` and `snapshots`
        partition-1/

The logs only grow, and a manifest is replaced as a whole when a later backup is complete. So the
folder always holds one that can be restored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import ConfigurationError
from ..keyvalue.slots.cluster_map import ClusterMap, decode_map_untrusted

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MANIFEST", "Manifest", "check_place", "read_manifest_untrusted", "write_manifest"]

MANIFEST: Final = "manifest.json"

_MOST_BYTES: Final = 2 << 20


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup of all partitions holds.

    Attributes:
        cluster: its name.
        epoch: of the map.
        consistent: all partitions are as of one moment.
        taken_ms: when that was, in ms since the epoch of Unix; else when the backup ended.
        positions: of each partition, up to where its log counts.
        map: as it was then; it has no moves.
    """

    cluster: str
    epoch: int
    consistent: bool
    taken_ms: int
    positions: dict[int, int]
    map: ClusterMap


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder, durably.

    Raises:
        OSError: it cannot be written.
    """
    fresh = folder / f".{MANIFEST}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / MANIFEST)
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def check_place(folder: Path, *, consistent: bool) -> None:
    """Check that a backup may be made in a folder, which need not be there.

    Raises:
        ConfigurationError: a machine or a cluster has its files there; or a backup as of one moment
            would become one that is not.
        OSError: it cannot be read.
    """
    if (folder / "machine.toml").exists() or any(folder.glob("machine-*/machine.toml")):
        raise ConfigurationError(f"{folder} has the files of machines: expected another folder")
    there = (folder / MANIFEST).exists() and not consistent
    if there and read_manifest_untrusted(folder).consistent:
        raise ConfigurationError(
            f"{folder} holds a backup as of one moment, and this one would not be: expected "
            "--consistent, or another folder"
        )


def read_manifest_untrusted(folder: Path) -> Manifest:
    """Read and check the manifest of a folder.

    Raises:
        ConfigurationError: it is none, or contradicts itself.
        OSError: it cannot be read.
    """
    file = folder / MANIFEST
    data = file.read_bytes()
    try:
        found = msgspec.json.decode(data if len(data) <= _MOST_BYTES else b"", type=Manifest)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{file}: {error}: expected one of quorate backup") from None
    decode_map_untrusted(msgspec.json.encode(found.map), what=f"{file}: the map")
    expected = [*range(len(found.map.partitions))]
    if sorted(found.positions) != expected or min(found.positions.values()) < 0:
        raise ConfigurationError(
            f"{file}: positions of partitions {sorted(found.positions)}: expected those of "
            f"{expected}"
        )
    if found.map.moves:
        raise ConfigurationError(f"{file}: the map has moves: expected none in a backup")
    return found
