"""A store opened for reading only, for tools and exports; its member may be running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DamagedRecordError
from ..lmdb.environment import Environment
from ..rows.databases import MAX_DBS, Databases
from ..rows.log_end import LogEnd
from ..rows.meta_rows import load_identity
from ..rows.term_table import row_of
from .batch import decode_header_untrusted
from .journal import HeldRecords, load_row, read_journal
from .reader import LogReader
from .state import StateView, ending_with, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ..rows.identity import Identity
    from .log_table import Record
    from .state import Recorded


class ReadOnlyStore(StateView):
    """A store that is only read; made by `open_readonly`. Shows what was durable at `refresh`.

    Damage at the end of the log is no error here: the log then ends before it, and the last intact
    batch says what is committed.

    Attributes:
        identity: of the store.
        environment: the LMDB environment.
        dbs: its sub-databases.
        tail: what the journal held.
    """

    def __init__(self, environment: Environment, dbs: Databases, identity: Identity) -> None:
        self.identity = identity
        self.environment = environment
        self.dbs = dbs
        self.tail = HeldRecords()
        # By a function: `refresh` replaces the tail, and the reader has to see the new one.
        self._reader = LogReader(environment, dbs, identity.member_id, lambda: self.tail)
        super().__init__(self._load())

    @property
    def submitted(self) -> Recorded:
        """As `recorded`: this process writes nothing, so nothing is under way."""
        return self.recorded

    def refresh(self) -> None:
        """Read again what is durable now.

        Raises:
            StorageError: some of it is damaged.
        """
        self.recorded = self._load()

    def _load(self) -> Recorded:
        member_id = self.identity.member_id
        scan = read_journal(self.environment.directory)  # before LMDB, see `JournalScan`
        # State and row in one transaction: with the row of a later one, batches that were carried
        # over in between would be missed.
        recorded, row = self.environment.read(
            lambda txn: (load(txn, self.dbs, member_id, lenient=True), load_row(txn, self.dbs))
        )
        tail = scan.tail(member_id, row, LogEnd(-1, recorded.append_position))
        # With LMDB's generation: a later read then notices that the member has carried these over.
        self.tail = HeldRecords(row.generation, tail.records)
        for record in tail.records:
            recorded = _with_batch(member_id, recorded, record)
        return recorded

    def boundary(self, position: int) -> int:
        """Return where the batch that covers `position` begins.

        For a pruned position that is the first one kept; for one behind the log, the end.
        """
        return self._reader.boundary(self.recorded, position)

    def scan(self, position: int, stop: int | None = None) -> Iterator[bytes]:
        """Yield the checked batches from `position` to `stop`, by default to the end.

        Raises:
            PrunedError: `position` is below the first one kept.
            StorageError: no batch begins at `position`.
            DamagedRecordError: a batch is damaged or missing.
        """
        return self._reader.scan(self.recorded, position, stop)

    def close(self) -> None:
        """Close it; idempotent."""
        self.environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_readonly(directory: Path) -> ReadOnlyStore:
    """Open an existing store for reading.

    Raises:
        StoreMismatchError: there is none, or it is of another format.
        StoreBusyError: this process has it open.
        StorageError: its tables are damaged.
    """
    # Nothing is mended or carried over: the member may be running, and owns every change.
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    with environment.opening():
        dbs = environment.databases(Databases)
        identity = environment.read(lambda txn: load_identity(txn, dbs))
        return ReadOnlyStore(environment, dbs, identity)


def _with_batch(member_id: int, recorded: Recorded, record: Record) -> Recorded:
    """Return the state with one more batch, checked by the caller, at the end of the log.

    Raises:
        DamagedRecordError: it contradicts the term table.
    """
    header = decode_header_untrusted(record.batch)
    row = row_of(recorded.terms, header.term)
    # The journal has no rows of terms: a batch gets there only if its term has a row in LMDB.
    if row is None or header.position < row.base or (row.end is not None and header.end > row.end):
        raise DamagedRecordError(
            member_id=member_id,
            term=header.term,
            position=header.position,
            reason=f"the term table says {row}",
        )
    return ending_with(recorded, header)
