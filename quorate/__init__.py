"""quorate: a replicated, recorded log and a linearizable key-value store, on trio and LMDB.

Run a member in your program::

    config = quorate.load_config("node.toml")
    async with quorate.open_node(config) as node:
        await node.wait_for_leader()
        await node.kv.set("greeting", "hello")

The names, by what they are for:

- Run a member: `open_node`, `Node`, `KeyValue`; `Transaction`, `Record`; `Watch`, `Change` and
  `ChangeKind`.
- Connect to a running cluster: `connect`, and `ClientTls` for a port with TLS. Without an event
  loop: `connect_blocking`, which yields a `BlockingKeyValue`; it makes a `BlockingTransaction` or a
  `BlockingWatch`.
- Configure it: `NodeConfig`, `MemberConfig`, `Timeouts`, `Limits`, `SnapshotPolicy`,
  `Security`, `LogLines`, `Web`, `Etcd`, `load_config`, `local_configs`.
- Replicate your own state: `StateMachine`, `SnapshotStateMachine`, `Command`, `Timers`, `Timer`,
  and the protocols `Service` and `SnapshotService`.
- Judge by yourself who may come in: `PeerSecurity` of an `Authenticator`, a `CredentialsSupplier`
  and an `Authoriser`. They get a `Hello`, a `HelloReply` and an `Identity`, and answer with
  `Accept`, `ChallengeWith` or `Reject`. For clients: `ClientSecurity` of a `ClientAuthenticator`
  and a `ClientAuthoriser`.
- Look at it: `NodeStatus`, `PeerStatus`, `EtcdStatus`, `Topology`, `MemberAddress`, `Transition`,
  `State`.
- Errors: `QuorateError` is the base of all. `ConfigurationError`, `UsageError`,
  `UnsupportedError`, `RemovedError`, `HistoryError`, `RecordingError`,
  `SafetyViolationError`, `LeaseLostError`.
- Errors of a request: `RequestError`, and below it `NoLeaderError`, `UnknownOutcomeError`,
  `ConflictError`, `CallError`, `WatchLostError`, `RefusedError`, `OversizedRequestError`,
  `KeyValueError` with `CrossSlotError`.
- Errors of the disk: `StorageError`, and below it `StoreMismatchError`, `StoreBusyError`,
  `StoreAccessError`, `StoreFullError`, `LostStoreError`, `DamagedRecordError`,
  `DamagedTablesError`, `PrunedError`.
- Errors of links: `TransportError`, and below it `WireError`, `HandshakeError`.

Other programs may take a Redis client, too, or `quorate.client.session_redis.SessionRedis`.
`quorate.simulation` runs clusters in virtual time, and `quorate.pytest_plugin` has test fixtures.

This module imports nothing heavy. Each name is imported at its first use, so that a tool that only
reads logs does not load the member.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from ._version import __version__ as __version__

_HOMES: Final = {
    ".client.blocking": (
        "BlockingKeyValue",
        "BlockingTransaction",
        "BlockingWatch",
        "connect_blocking",
    ),
    ".client.connect": ("connect",),
    ".client.secure": ("ClientTls",),
    ".embed": ("Node", "open_node"),
    ".errors": (
        "CallError",
        "ConfigurationError",
        "ConflictError",
        "CrossSlotError",
        "DamagedRecordError",
        "DamagedTablesError",
        "HandshakeError",
        "HistoryError",
        "RemovedError",
        "KeyValueError",
        "LeaseLostError",
        "LostStoreError",
        "NoLeaderError",
        "OversizedRequestError",
        "PrunedError",
        "QuorateError",
        "RecordingError",
        "RefusedError",
        "RequestError",
        "SafetyViolationError",
        "StorageError",
        "StoreAccessError",
        "StoreBusyError",
        "StoreFullError",
        "StoreMismatchError",
        "TransportError",
        "UnknownOutcomeError",
        "UnsupportedError",
        "UsageError",
        "WatchLostError",
        "WireError",
    ),
    ".keyvalue.access.judges": ("ClientAuthenticator", "ClientAuthoriser", "ClientSecurity"),
    ".keyvalue.programs.client": ("KeyValue",),
    ".keyvalue.programs.records": ("Record",),
    ".keyvalue.programs.transaction": ("Transaction",),
    ".keyvalue.programs.watch": ("Watch",),
    ".keyvalue.state.changes": ("Change", "ChangeKind"),
    ".local.cluster": ("local_configs",),
    ".node": (
        "Command",
        "Etcd",
        "EtcdStatus",
        "Limits",
        "LogLines",
        "MemberAddress",
        "MemberConfig",
        "NodeConfig",
        "NodeStatus",
        "PeerStatus",
        "Security",
        "Service",
        "SnapshotPolicy",
        "SnapshotService",
        "State",
        "Timeouts",
        "Timer",
        "Timers",
        "Topology",
        "Transition",
        "Web",
        "load_config",
    ),
    ".state_machine": ("SnapshotStateMachine", "StateMachine"),
    ".transport": (
        "Accept",
        "Authenticator",
        "Authoriser",
        "ChallengeWith",
        "CredentialsSupplier",
        "Hello",
        "HelloReply",
        "Identity",
        "PeerSecurity",
        "Reject",
    ),
}
"""The public names, by the module that defines each."""

_HOME: Final = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:  # a type checker reads these lines instead of the table; a test compares them
    from .client.blocking import BlockingKeyValue as BlockingKeyValue
    from .client.blocking import BlockingTransaction as BlockingTransaction
    from .client.blocking import BlockingWatch as BlockingWatch
    from .client.blocking import connect_blocking as connect_blocking
    from .client.connect import connect as connect
    from .client.secure import ClientTls as ClientTls
    from .embed import Node as Node
    from .embed import open_node as open_node
    from .errors import CallError as CallError
    from .errors import ConfigurationError as ConfigurationError
    from .errors import ConflictError as ConflictError
    from .errors import CrossSlotError as CrossSlotError
    from .errors import DamagedRecordError as DamagedRecordError
    from .errors import DamagedTablesError as DamagedTablesError
    from .errors import HandshakeError as HandshakeError
    from .errors import HistoryError as HistoryError
    from .errors import KeyValueError as KeyValueError
    from .errors import LeaseLostError as LeaseLostError
    from .errors import LostStoreError as LostStoreError
    from .errors import NoLeaderError as NoLeaderError
    from .errors import OversizedRequestError as OversizedRequestError
    from .errors import PrunedError as PrunedError
    from .errors import QuorateError as QuorateError
    from .errors import RecordingError as RecordingError
    from .errors import RefusedError as RefusedError
    from .errors import RemovedError as RemovedError
    from .errors import RequestError as RequestError
    from .errors import SafetyViolationError as SafetyViolationError
    from .errors import StorageError as StorageError
    from .errors import StoreAccessError as StoreAccessError
    from .errors import StoreBusyError as StoreBusyError
    from .errors import StoreFullError as StoreFullError
    from .errors import StoreMismatchError as StoreMismatchError
    from .errors import TransportError as TransportError
    from .errors import UnknownOutcomeError as UnknownOutcomeError
    from .errors import UnsupportedError as UnsupportedError
    from .errors import UsageError as UsageError
    from .errors import WatchLostError as WatchLostError
    from .errors import WireError as WireError
    from .keyvalue.access.judges import ClientAuthenticator as ClientAuthenticator
    from .keyvalue.access.judges import ClientAuthoriser as ClientAuthoriser
    from .keyvalue.access.judges import ClientSecurity as ClientSecurity
    from .keyvalue.programs.client import KeyValue as KeyValue
    from .keyvalue.programs.records import Record as Record
    from .keyvalue.programs.transaction import Transaction as Transaction
    from .keyvalue.programs.watch import Watch as Watch
    from .keyvalue.state.changes import Change as Change
    from .keyvalue.state.changes import ChangeKind as ChangeKind
    from .local.cluster import local_configs as local_configs
    from .node import Command as Command
    from .node import Etcd as Etcd
    from .node import EtcdStatus as EtcdStatus
    from .node import Limits as Limits
    from .node import LogLines as LogLines
    from .node import MemberAddress as MemberAddress
    from .node import MemberConfig as MemberConfig
    from .node import NodeConfig as NodeConfig
    from .node import NodeStatus as NodeStatus
    from .node import PeerStatus as PeerStatus
    from .node import Security as Security
    from .node import Service as Service
    from .node import SnapshotPolicy as SnapshotPolicy
    from .node import SnapshotService as SnapshotService
    from .node import State as State
    from .node import Timeouts as Timeouts
    from .node import Timer as Timer
    from .node import Timers as Timers
    from .node import Topology as Topology
    from .node import Transition as Transition
    from .node import Web as Web
    from .node import load_config as load_config
    from .state_machine import SnapshotStateMachine as SnapshotStateMachine
    from .state_machine import StateMachine as StateMachine
    from .transport import Accept as Accept
    from .transport import Authenticator as Authenticator
    from .transport import Authoriser as Authoriser
    from .transport import ChallengeWith as ChallengeWith
    from .transport import CredentialsSupplier as CredentialsSupplier
    from .transport import Hello as Hello
    from .transport import HelloReply as HelloReply
    from .transport import Identity as Identity
    from .transport import PeerSecurity as PeerSecurity
    from .transport import Reject as Reject
else:
    __all__ = list(_HOME)
    __all__ += ["__version__"]


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not, and the module's own attributes."""
    return sorted({*globals(), *_HOME})
