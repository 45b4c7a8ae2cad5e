"""quorate: a replicated, recorded log and a linearizable key-value store, on trio and LMDB.

The names below are what programs use; each is imported when it is first asked for, so that a tool
which only reads logs does not load the member.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from .embed import Node, open_node
    from .errors import (
        KeyValueError,
        NoLeaderError,
        QuorateError,
        RequestError,
        UnknownOutcomeError,
    )
    from .keyvalue.embedded.client import KeyValue
    from .node import (
        Command,
        Limits,
        MemberConfig,
        NodeConfig,
        NodeStatus,
        Service,
        SnapshotPolicy,
        SnapshotService,
        State,
        Timeouts,
        Timer,
        Timers,
        Topology,
        Transition,
        load_config,
    )

__all__ = [
    "Command",
    "KeyValue",
    "KeyValueError",
    "Limits",
    "MemberConfig",
    "NoLeaderError",
    "Node",
    "NodeConfig",
    "NodeStatus",
    "QuorateError",
    "RequestError",
    "Service",
    "SnapshotPolicy",
    "SnapshotService",
    "State",
    "Timeouts",
    "Timer",
    "Timers",
    "Topology",
    "Transition",
    "UnknownOutcomeError",
    "__version__",
    "load_config",
    "open_node",
]

_HOMES = {
    ".embed": ("Node", "open_node"),
    ".errors": (
        "KeyValueError",
        "NoLeaderError",
        "QuorateError",
        "RequestError",
        "UnknownOutcomeError",
    ),
    ".keyvalue.embedded.client": ("KeyValue",),
    ".node": (
        "Command",
        "Limits",
        "MemberConfig",
        "NodeConfig",
        "NodeStatus",
        "Service",
        "SnapshotPolicy",
        "SnapshotService",
        "State",
        "Timeouts",
        "Timer",
        "Timers",
        "Topology",
        "Transition",
        "load_config",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
