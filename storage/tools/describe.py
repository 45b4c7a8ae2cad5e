"""Looking into a store from outside: a summary, and its batches one by one.

Pure functions that return data; the caller prints it. They read in short transactions, so the
member may be running, in another process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import StorageError, WireError
from ..lmdb.file_check import DATA_FILE
from ..log.batch import BatchHeader, Entry, check_batch_untrusted, decode_entries_untrusted
from ..log.readonly import open_readonly
from ..rows.identity import Identity  # noqa: TC001 - resolved at run time by serialisers
from ..rows.term_table import ForcedRow, SnapshotRow, TermRow  # noqa: TC001 - as above
from ..rows.vote import NodeState  # noqa: TC001 - as above
from ..rows.voting_status import VotingStatus  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..lmdb.environment import Environment, Transaction
    from ..log.readonly import ReadOnlyStore
    from ..rows.databases import Databases

_META_PAGES: Final = 2


@attrs.frozen
class DescribedConfiguration:
    """A configuration of the cluster: term and end of its batch, and its text."""

    term: int
    position: int
    text: str


@attrs.frozen
class Description:
    """What a store holds. Positions are byte offsets of the log, which is `bytes` long.

    `quorate log describe --json` prints the fields under these names, `standing` included.
    """

    identity: Identity
    node_state: NodeState
    terms: tuple[TermRow, ...]
    snapshots: tuple[SnapshotRow, ...]
    start_position: int
    append_position: int
    commit_position: int
    timestamp_ms: int
    batches: int
    bytes: int
    file_bytes: int
    page_bytes: int
    free_pages: int
    standing: VotingStatus
    forced: tuple[ForcedRow, ...]
    configurations: tuple[DescribedConfiguration, ...]


@attrs.frozen
class DumpedBatch:
    """A batch of the log, decoded."""

    header: BatchHeader
    entries: list[Entry]


def describe(directory: Path) -> Description:
    """Sum up the store in `directory`, without reading the log.

    Raises:
        StoreMismatchError: there is none, or it is of another format.
        StoreBusyError: this process has it open.
        StorageError: its tables are damaged.
    """
    with open_readonly(directory) as store:
        recorded = store.recorded
        batches, page_bytes, free_pages = store.environment.read(
            lambda txn: _pages(store.environment, txn, store.dbs)
        )
        return Description(
            identity=store.identity,
            node_state=recorded.node_state,
            terms=recorded.terms,
            snapshots=recorded.snapshots,
            start_position=recorded.start_position,
            append_position=recorded.append_position,
            commit_position=recorded.last_commit_position,
            timestamp_ms=recorded.last_timestamp_ms,
            batches=batches + len(store.tail.records),
            bytes=recorded.append_position - recorded.start_position,
            file_bytes=(directory / DATA_FILE).stat().st_size,
            page_bytes=page_bytes,
            free_pages=free_pages,
            standing=recorded.voting_status,
            forced=recorded.forced,
            configurations=tuple(
                DescribedConfiguration(row.term, row.position, row.payload.decode(errors="replace"))
                for row in recorded.memberships
            ),
        )


def _pages(environment: Environment, txn: Transaction, dbs: Databases) -> tuple[int, int, int]:
    """Return records of the log, bytes of a page, and pages of free space.

    LMDB does not say how many pages are free. They are all that no table uses; LMDB's own list of
    free pages is one of the tables.
    """
    log = txn.stat(dbs.log)
    tables = [dbs.terms, dbs.snapshots, dbs.meta, *([dbs.members] if dbs.has_members else [])]
    stats = [log, *map(txn.stat, tables), txn.stat()]
    used = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    free = environment.raw.info()["last_pgno"] + 1 - _META_PAGES - used
    return log["entries"], log["psize"], free


def openings(directory: Path) -> dict[int, Entry]:
    """Return the first entry of each term, where it is kept and undamaged.

    Raises:
        StorageError: as `open_readonly`.
    """
    first: dict[int, Entry] = {}
    with open_readonly(directory) as store:
        for row in store.terms:
            with contextlib.suppress(StorageError, WireError):  # `verify` reports damage
                for batch in store.scan(row.base, row.base + 1):
                    if check_batch_untrusted(batch).term == row.term:  # an empty term has none
                        first[row.term] = decode_entries_untrusted(batch)[0]
    return first


def dump(
    directory: Path, from_position: int | None = None, to: int | None = None
) -> Iterator[DumpedBatch]:
    """Yield the batches from `from_position` (default: the first) up to `to`, decoded.

    Raises:
        StorageError: as `open_readonly` and `ReadOnlyStore.scan`.
    """
    with open_readonly(directory) as store:
        yield from dump_from(store, from_position, to)


def dump_from(
    store: ReadOnlyStore, from_position: int | None = None, to: int | None = None
) -> Iterator[DumpedBatch]:
    """Yield the batches of an open store; see `dump`."""
    start = store.start_position if from_position is None else from_position
    for batch in store.scan(start, to):
        yield DumpedBatch(check_batch_untrusted(batch), decode_entries_untrusted(batch))
