"""Checking every byte of a store from outside.

A pure function that returns data; the caller prints it. It reads in short transactions, so the
member may be running, in another process. It checks that

- every checksum is right, and every batch is the one that its key names;
- the log has no hole;
- terms lie where the term table says, and are opened once;
- the leader's clock never went back;
- configurations and their rows are equal;
- every snapshot is whole.

It goes on after a finding.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from ...errors import DamagedRecordError, StorageError, WireError
from ..lmdb.environment import Environment
from ..lmdb.file_check import Unreadable, unreadable
from ..log.batch import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    BatchHeader,
    EntryKind,
    check_batch_untrusted,
)
from ..log.journal import read_journal
from ..log.log_table import KEY, decode_key_untrusted
from ..log.recorder import end_in_lmdb
from ..rows.databases import LOG_TABLE, MAX_DBS, Databases
from ..rows.identity import Identity  # noqa: TC001 - resolved at run time by serialisers
from ..rows.log_end import EMPTY_LOG
from ..rows.membership import decode_membership_untrusted
from ..rows.meta_rows import (
    load_forced,
    load_identity,
    load_lost,
    load_node_state,
    load_origin,
    load_terms,
    load_unlisted,
    load_voting_status,
)
from ..rows.term_table import (
    ForcedRow,
    SnapshotRow,
    TermRow,
    decode_snapshot_untrusted,
    decode_term_untrusted,
    encode_snapshot,
    incoherences,
    row_of,
)
from ..snapshots.folder import SnapshotFolder
from .verify_configurations import Configurations, read_configurations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..lmdb.environment import Transaction
    from ..log.journal import JournalRow, JournalTail
    from ..rows.log_end import LogEnd

MAX_FINDINGS: Final = 1000
"""Most findings that a report holds; more are only counted."""
_CHUNK_BYTES: Final = 4 << 20

T = TypeVar("T")


@attrs.frozen
class Finding:
    """One thing that is wrong, with term and position of the record's key; -1 = unknown."""

    member_id: int
    term: int
    position: int
    reason: str

    def __str__(self) -> str:
        place = f"member {self.member_id}, term {self.term}, position {self.position}"
        return f"{place}: {self.reason}"


@attrs.frozen
class VerifyReport:
    """What `verify` found.

    Args:
        identity: of the store.
        batches: number of batches checked.
        entries: number of entries in the intact ones.
        bytes: length of all batches.
        terms: rows of the term table.
        findings: the first `MAX_FINDINGS`, in the order of the log.
        count: number of all findings.
        forced: where an operator forced a quorum; that is no damage.
    """

    identity: Identity
    batches: int
    entries: int
    bytes: int
    terms: int
    findings: tuple[Finding, ...]
    count: int
    forced: tuple[ForcedRow, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.count == 0


def verify(directory: Path) -> VerifyReport:
    """Check everything in the store in `directory`.

    Raises:
        StoreMismatchError: there is none, or it is of another format.
        StoreBusyError: this process has it open.
        StorageError: LMDB can't read the file.
    """
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    with environment.opening():
        dbs = environment.databases(Databases)
        identity = environment.read(lambda txn: load_identity(txn, dbs))
    try:
        verifier = _Verifier(identity, dbs)
        if (trouble := unreadable(directory)) is not None:
            verifier.unreadable(trouble)  # reading on could crash this process
            return verifier.report()
        environment.read(verifier.check_tables)
        while records := environment.read(verifier.next_records):
            for key, value in records:
                verifier.check(key, value)
        verifier.check_tail(environment)
        folder = SnapshotFolder(directory.parent / "snapshots")
        for row in verifier.snapshots if folder.directory.is_dir() else ():
            damage = verifier.check_snapshot(row, folder)
            if damage and environment.read(functools.partial(verifier.knows, row=row)):
                verifier.note(row.term, row.position, damage)
        return verifier.report()
    finally:
        environment.close()


@attrs.define(eq=False)
class _Verifier:
    """Goes through a store once."""

    identity: Identity
    dbs: Databases
    terms: tuple[TermRow, ...] = ()
    snapshots: list[SnapshotRow] = attrs.field(factory=list[SnapshotRow])
    forced: tuple[ForcedRow, ...] = ()
    configurations: Configurations = attrs.field(factory=Configurations)
    last_key: bytes = b""
    expected: int | None = None  # where the next batch must begin; None = not known
    timestamp_ms: int = 0
    batches: int = 0
    entries: int = 0
    length: int = 0
    findings: list[Finding] = attrs.field(factory=list[Finding])
    count: int = 0

    def note(self, term: int, position: int, reason: str) -> None:
        self.count += 1
        if self.count <= MAX_FINDINGS:
            self.findings.append(Finding(self.identity.member_id, term, position, reason))

    def report(self) -> VerifyReport:
        for row in self.terms:
            if self.expected is not None and row.base > self.expected:
                self.note(
                    row.term,
                    row.base,
                    f"the term begins behind the end of the log, {self.expected}",
                )
        if self.expected is not None:
            for position in self.configurations.behind(self.expected):
                words = f"the row of a configuration is behind the end of the log, {self.expected}"
                self.note(-1, position, words)
        return VerifyReport(
            self.identity,
            self.batches,
            self.entries,
            self.length,
            len(self.terms),
            tuple(self.findings),
            self.count,
            self.forced,
        )

    def unreadable(self, trouble: Unreadable) -> None:
        """Note that LMDB's own pages are damaged, and where."""
        term, position = -1, -1
        if trouble.table == LOG_TABLE and trouble.key:
            with contextlib.suppress(DamagedRecordError):
                term, position = decode_key_untrusted(self.identity.member_id, trouble.key)
        where = f"the table {trouble.table!r}" if trouble.table else "the list of tables"
        words = f"a page of {where} at this key or soon behind it is damaged: {trouble.words}"
        self.note(term, position, f"{words}; keys behind it were not checked")

    def check_tables(self, txn: Transaction) -> None:
        """Check the small tables, and find where the log begins."""
        try:
            self.expected, self.timestamp_ms = load_origin(txn, self.dbs)
            load_node_state(txn, self.dbs)
            load_voting_status(txn, self.dbs)
            load_unlisted(txn, self.dbs)
            self.forced = load_forced(txn, self.dbs)
            if (lost := load_lost(txn, self.dbs)) != EMPTY_LOG:
                words = (
                    "the batches here were damaged and cut off; no member has sent them again yet"
                )
                self.note(lost[0], lost[1] - 1, words)
        except StorageError as error:
            self.note(-1, -1, str(error))
        with txn.cursor(self.dbs.snapshots) as cursor:
            for key, value in cursor:
                row = self.guarded(decode_snapshot_untrusted, key, value)
                if row is not None:
                    self.snapshots.append(row)
        with txn.cursor(self.dbs.terms) as cursor:
            for key, value in cursor:
                self.guarded(decode_term_untrusted, key, value)
        if self.dbs.has_members:
            with txn.cursor(self.dbs.members) as cursor:
                for key, value in cursor:
                    self.guarded(decode_membership_untrusted, key, value)
        self.load_terms(txn)
        for term, words in incoherences(self.terms):
            self.note(term, -1, f"term table: {words}")

    def guarded(
        self, decode: Callable[[int, bytes, bytes], T], key: bytes, value: bytes
    ) -> T | None:
        """Decode a row; if that fails, note a finding and return None."""
        try:
            return decode(self.identity.member_id, key, value)
        except DamagedRecordError as damage:
            self.note(damage.term, damage.position, damage.reason)
            return None

    def check_snapshot(self, row: SnapshotRow, folder: SnapshotFolder) -> str:
        """Read a snapshot; return what is wrong with it, empty if nothing."""
        try:
            folder.check(row)
        except StorageError as error:
            return str(error)
        return ""

    def knows(self, txn: Transaction, row: SnapshotRow) -> bool:
        """Whether the store names a snapshot now."""
        return txn.get(encode_snapshot(row)[0], db=self.dbs.snapshots) is not None

    def load_terms(self, txn: Transaction) -> None:
        """Read the term table; a damaged one (already noted) counts as empty."""
        with contextlib.suppress(DamagedRecordError):
            self.terms = load_terms(txn, self.dbs, self.identity.member_id)

    def next_records(self, txn: Transaction) -> list[tuple[bytes, bytes]]:
        """Return about `_CHUNK_BYTES` of raw records behind those that were checked."""
        self.load_terms(txn)
        with contextlib.suppress(StorageError):  # noted before, by `check_tables`
            self.configurations = read_configurations(txn, self.dbs, self.identity.member_id)
        records: list[tuple[bytes, bytes]] = []
        with txn.cursor(self.dbs.log) as cursor:
            more = cursor.set_range(self.last_key) if self.last_key else cursor.first()
            if more and cursor.key() == self.last_key:
                more = cursor.next()
            elif self.last_key:
                self.expected = None  # the last record checked is gone: truncated or pruned since
            room = _CHUNK_BYTES
            while more and room > 0:
                self.last_key, value = cursor.item()
                records.append((self.last_key, value))
                room -= len(value)
                more = cursor.next()
        return records

    def check_tail(self, environment: Environment) -> None:
        """Check what the journal has behind the log in LMDB."""
        try:
            tail = self.tail_of(environment)
            if tail.damage is not None:  # it may have been written while it was read
                tail = self.tail_of(environment)
        except StorageError as error:
            self.note(-1, -1, str(error))
            return
        for record in tail.records:
            self.check(KEY.pack(record.term, record.position), record.batch)
        if tail.damage is not None:
            self.note(tail.damage.term, tail.damage.position, tail.damage.reason)

    def tail_of(self, environment: Environment) -> JournalTail:
        """Read the journal; first check what was carried over since LMDB was read."""

        def rest(txn: Transaction) -> tuple[LogEnd, JournalRow, list[tuple[bytes, bytes]]]:
            return *end_in_lmdb(txn, self.dbs, member_id), self.next_records(txn)

        member_id = self.identity.member_id
        while True:
            scan = read_journal(environment.directory)  # before LMDB, see `JournalScan`
            end, row, records = environment.read(rest)
            if not records:  # nothing was carried over since the journal was read
                return scan.tail(member_id, row, end)
            for key, value in records:
                self.check(key, value)

    def check(self, key: bytes, value: bytes) -> None:
        """Check one record of the log."""
        try:
            term, position = decode_key_untrusted(self.identity.member_id, key)
        except DamagedRecordError as damage:
            self.note(damage.term, damage.position, damage.reason)
            return
        if self.expected not in {None, position}:
            self.note(
                term, position, f"the log has a hole: the batch before ends at {self.expected}"
            )
        self.expected = position + len(value)
        self.batches += 1
        self.length += len(value)
        try:
            header = check_batch_untrusted(value)
        except WireError as error:
            self.note(term, position, str(error))
            return
        self.entries += header.count
        for words in self.contradictions(term, position, header):
            self.note(term, position, words)
        if reopening := self.reopening(value, header):
            self.note(term, position, reopening)
        for words in self.configurations.contradictions(value, header):
            self.note(term, position, words)
        self.timestamp_ms = header.timestamp_ms

    def reopening(self, value: bytes, header: BatchHeader) -> str:
        """Return how a batch opens a term a second time, empty if it does not."""
        kinds = value[HEADER_BYTES : HEADER_BYTES + DESCRIPTOR_BYTES * header.count]
        index = kinds[::DESCRIPTOR_BYTES].rfind(EntryKind.NEW_LEADERSHIP_TERM)
        row = row_of(self.terms, header.term)
        if index < 0 or row is None or (index, header.position) == (0, row.base):
            return ""
        return f"its entry {index} opens the term a second time; the term begins at {row.base}"

    def contradictions(self, term: int, position: int, header: BatchHeader) -> Iterator[str]:
        """Yield where the header of an intact batch contradicts what is around it."""
        if (header.term, header.position) != (term, position):
            yield f"its header says term {header.term}, position {header.position}"
        row = row_of(self.terms, term)
        if row is None:
            yield "its term is not in the term table"
        elif position < row.base or (row.end is not None and position + header.length > row.end):
            yield f"its term covers {row.base} to {row.end}, the batch {position} to {header.end}"
        if header.timestamp_ms < self.timestamp_ms:
            yield f"its timestamp {header.timestamp_ms} is below {self.timestamp_ms} before it"
        if header.commit_position > position:
            yield f"it says that {header.commit_position} is committed"
