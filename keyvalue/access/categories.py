"""The categories of commands (``@read``), and the names that a rule may use.

A command's categories are in its row of the table (:mod:`..commands.rows`). Categories of Redis
without a command here (``@hash``) exist and are empty: rules written for Redis are then accepted.

Of our own are ``@cluster-admin``, which changes the cluster and not its data, and ``@session``, the
commands for sessions that apply a write exactly once.
"""

from collections.abc import Mapping
from typing import Final

from ..commands.table import CommandSpec, all_commands

__all__ = ["ALL_NAMES", "CATEGORIES", "LISTED", "NAMES"]

# In the order in which Redis lists them.
_OF_REDIS: Final = """
keyspace read write set sortedset list hash string bitmap hyperloglog geo stream pubsub admin
fast slow blocking dangerous connection transaction scripting
"""
_OURS: Final = ("cluster-admin", "session")

LISTED: Final[tuple[bytes, ...]] = tuple(name.encode() for name in (*_OF_REDIS.split(), *_OURS))
"""What ACL CAT lists."""


def _with_subcommands() -> list[CommandSpec]:
    return [each for spec in all_commands() for each in (spec, *spec.subcommands.values())]


_ALL: Final = _with_subcommands()

ALL_NAMES: Final = frozenset(spec.name.encode() for spec in _ALL)
"""Every command, container and subcommand (``config|get``)."""

NAMES: Final[Mapping[bytes, frozenset[bytes]]] = {
    spec.name.encode(): frozenset(each.name.encode() for each in (spec, *spec.subcommands.values()))
    for spec in _ALL
}
"""What a rule on a name covers: a container's rule covers its subcommands."""

CATEGORIES: Final[Mapping[bytes, frozenset[bytes]]] = {
    b"@all": ALL_NAMES,
    **{
        b"@" + name: frozenset(
            spec.name.encode() for spec in _ALL if f"@{name.decode()}" in spec.categories
        )
        for name in LISTED
    },
}
"""The commands of each category, by its name with the ``@``."""
