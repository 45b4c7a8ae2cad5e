"""The persistent storage engine of a member: log recording, recording log, node state, tables.

Knows nothing of networks or elections.
"""

from .batch import (
    BATCH_ALIGNMENT,
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    BatchHeader,
    CheckedEntries,
    Entry,
    EntryKind,
    check_batch_untrusted,
    check_received_untrusted,
    decode_entries_untrusted,
    decode_header_untrusted,
    encode_batch,
)
from .describe import Description, DumpedBatch, describe, dump
from .executor import Executor, ExecutorFactory, InlineExecutor, Job, ThreadExecutor
from .founding import force, found, make_store
from .identity import Identity
from .node_state import NodeState
from .readonly import ReadOnlyStore, open_readonly
from .recorder import Write
from .recording_log import ForcedRow, SnapshotRow, TermRow
from .snapshot_file import SnapshotHead, SnapshotReader, Summary, check_snapshot, head_of
from .snapshot_folder import SnapshotFolder, SnapshotWriter, Transfer
from .standing import Standing, StandingKind
from .store import Store
from .verify import Finding, VerifyReport, verify

__all__ = [
    "BATCH_ALIGNMENT",
    "DESCRIPTOR_BYTES",
    "HEADER_BYTES",
    "MAX_BATCH_BYTES",
    "BatchHeader",
    "CheckedEntries",
    "Description",
    "DumpedBatch",
    "Entry",
    "EntryKind",
    "Executor",
    "ExecutorFactory",
    "Finding",
    "ForcedRow",
    "Identity",
    "InlineExecutor",
    "Job",
    "NodeState",
    "ReadOnlyStore",
    "SnapshotFolder",
    "SnapshotHead",
    "SnapshotReader",
    "SnapshotRow",
    "SnapshotWriter",
    "Standing",
    "StandingKind",
    "Store",
    "Summary",
    "TermRow",
    "ThreadExecutor",
    "Transfer",
    "VerifyReport",
    "Write",
    "check_batch_untrusted",
    "check_received_untrusted",
    "check_snapshot",
    "decode_entries_untrusted",
    "decode_header_untrusted",
    "describe",
    "dump",
    "encode_batch",
    "force",
    "found",
    "head_of",
    "make_store",
    "open_readonly",
    "verify",
]
