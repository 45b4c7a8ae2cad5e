"""What the processes of one machine tell each other: small files in the machine's folder.

::

    machine-0/
        machine.toml          the machine's configuration
        map.json              the newest map that the supervisor has seen
        board/partition-3     who leads partition 3, as its member here sees it
        meta/                 the member of the metadata group
        partition-3/          the member of partition 3

Files, since they outlive every process and need no connection: when the metadata group or the
supervisor is down, all members go on by the last map. A file is replaced as a whole, so nobody
reads half of one. A notice is deleted while its member does not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from .cluster_map import META

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BOARD",
    "MAP_FILE",
    "Notice",
    "board_file",
    "decode_notice_untrusted",
    "folder_of",
    "replace_file",
]

MAP_FILE: Final = "map.json"
BOARD: Final = "board"
_MOST_BYTES: Final = 4096


class Notice(msgspec.Struct, frozen=True):
    """What a member tells the other processes of its machine.

    Attributes:
        leader: id of the machine whose member leads its partition; None if it knows of none.
        term: of the leader.
    """

    leader: int | None
    term: int


def folder_of(machine: Path, partition: int) -> Path:
    """Return the folder of the machine's member of a partition, or of `META`."""
    return machine / ("meta" if partition == META else f"partition-{partition}")


def board_file(machine: Path, partition: int) -> Path:
    """Return the file with the notice of the machine's member of a partition, or of `META`."""
    return machine / BOARD / ("meta" if partition == META else f"partition-{partition}")


def decode_notice_untrusted(data: bytes) -> Notice | None:
    """Decode a notice; None if it is none."""
    try:
        return msgspec.json.decode(data, type=Notice) if len(data) <= _MOST_BYTES else None
    except msgspec.MsgspecError:
        return None


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file as a whole. It is not synced: what it says is known elsewhere.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(data)
    fresh.replace(file)
