"""The persistent storage of a member: its log, its tables, its snapshots.

Nothing here knows networks or elections. The rooms, from the bottom up; imports go down only::

    tools                     look into a store, restore one
    snapshots    tables       state of the service: as files, as keys and records
    log                       batches, and every change of the store
    rows                      term table, vote, identity: all of the store that is no batch
    lmdb         writing      one LMDB environment; ordered durable writes off the event loop
    testing                   what only tests and simulations use, above all of them

Read `log/store.py` for what is durable and when, `log/recorder.py` for how, and `tables/tables.py`
for the state that the log's commands make.
"""

from .log.batch import (
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
from .log.founding import force, make_store
from .log.readonly import ReadOnlyStore, open_readonly
from .log.recorder import Write
from .log.store import Store
from .rows.identity import Identity
from .rows.log_end import EMPTY_LOG, LogEnd
from .rows.membership import MAX_MEMBERSHIP_BYTES, MembershipRow
from .rows.term_table import ForcedRow, SnapshotRow, TermRow
from .rows.vote import NodeState
from .rows.voting_status import VotingRight, VotingStatus
from .snapshots.file import NO_STATE, SnapshotHead, SnapshotReader, Summary, head_of
from .snapshots.folder import SnapshotFolder, SnapshotWriter, Transfer
from .tools.describe import Description, DumpedBatch, describe, dump
from .tools.verify import Finding, VerifyReport, verify
from .writing.executor import Executor, ExecutorFactory, Job
from .writing.group_commit import ThreadExecutor

__all__ = [
    "DESCRIPTOR_BYTES",
    "EMPTY_LOG",
    "HEADER_BYTES",
    "MAX_BATCH_BYTES",
    "MAX_MEMBERSHIP_BYTES",
    "NO_STATE",
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
    "Job",
    "LogEnd",
    "MembershipRow",
    "NodeState",
    "ReadOnlyStore",
    "SnapshotFolder",
    "SnapshotHead",
    "SnapshotReader",
    "SnapshotRow",
    "SnapshotWriter",
    "Store",
    "Summary",
    "TermRow",
    "ThreadExecutor",
    "Transfer",
    "VerifyReport",
    "VotingRight",
    "VotingStatus",
    "Write",
    "check_batch_untrusted",
    "check_received_untrusted",
    "decode_entries_untrusted",
    "decode_header_untrusted",
    "describe",
    "dump",
    "encode_batch",
    "force",
    "head_of",
    "make_store",
    "open_readonly",
    "verify",
]
