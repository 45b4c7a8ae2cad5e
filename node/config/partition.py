"""Which partition of a larger cluster a member belongs to: the table [partition].

::

    [partition]
    number = 3                       # -1 is the metadata group
    machine = ".."                   # folder of the machine, relative to the file

The supervisor of a machine writes it. Without the table a member belongs to a cluster of its own,
which has all keys.
"""

from pathlib import Path
from typing import Final

import attrs

from .settings import Expects, between

__all__ = ["PartitionSettings"]

_NONE: Final = -2
_NUMBER: Final = between(
    _NONE, 63, "the number of a partition, 0 to 63, or -1 for the metadata group"
)
_FOLDER: Final = Expects(lambda value: isinstance(value, str), "the path of a folder")


@attrs.frozen
class PartitionSettings:
    """Which partition a member belongs to.

    Args:
        number: of the partition; -1 for the metadata group, -2 (the default) for none: this cluster
            has no partitions.
        machine: folder of the machine; see `keyvalue/slots/folder.py`.

    Raises:
        ConfigurationError: a value is out of range.
    """

    number: int = attrs.field(default=_NONE, validator=_NUMBER)
    machine: str = attrs.field(default="", validator=_FOLDER)

    @property
    def is_one(self) -> bool:
        """Whether the member belongs to a partition with keys of clients."""
        return self.number >= 0

    @property
    def has_etcd(self) -> bool:
        """Whether the member has the keys of etcd's clients, which are not spread."""
        return self.number in {_NONE, 0}

    @property
    def folder(self) -> Path | None:
        """The folder of the machine; None without one."""
        return Path(self.machine) if self.machine else None

    def within(self, folder: Path) -> "PartitionSettings":
        """Return the same with a path relative to a folder."""
        if not self.machine:
            return self
        return attrs.evolve(self, machine=str(folder / Path(self.machine).expanduser()))
