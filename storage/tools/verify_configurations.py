"""Comparing the rows of configurations with the batches of the log.

Each batch with a configuration has a row with the same bytes, and each row that is not at or below
the start of the log has such a batch. The rows are read in the transaction in which the batches are
read: the member may be running, and change both.
"""

from __future__ import annotations

import bisect
import contextlib
from typing import TYPE_CHECKING

import attrs

from ...errors import DamagedRecordError
from ..log.batch import is_configuration
from ..log.changes import configuration_row
from ..rows.membership import MembershipRow, decode_membership_untrusted
from ..rows.meta_rows import load_unlisted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..lmdb.environment import Transaction
    from ..log.batch import BatchHeader
    from ..rows.databases import Databases


@attrs.define(eq=False)
class Configurations:
    """The rows as they were in one transaction.

    Args:
        rows: by position; None for a damaged one.
        positions: of the rows, ascending.
        unlisted: batches up to here need no row: the store was of format 3 when they were written.
    """

    rows: dict[int, MembershipRow | None] = attrs.field(factory=dict[int, MembershipRow | None])
    positions: Sequence[int] = ()
    unlisted: int = 0

    def contradictions(self, batch: bytes, header: BatchHeader) -> Iterator[str]:
        """Yield where the rows contradict an intact batch."""
        expected = configuration_row(batch, header) if is_configuration(batch, header) else None
        first = bisect.bisect_right(self.positions, header.position)
        behind = bisect.bisect_right(self.positions, header.end)
        for position in self.positions[first:behind]:
            if expected is None or position != expected.position:
                yield f"a row says that a configuration ends at {position}, where none does"
        if expected is None:
            return
        if expected.position not in self.rows:
            if expected.position > self.unlisted:
                yield "it holds a configuration, which has no row"
        # A damaged row was reported when the rows were read.
        elif self.rows[expected.position] not in {None, expected}:
            yield "it holds another configuration than its row"

    def behind(self, end: int) -> Sequence[int]:
        """Return the positions of the rows behind the end of the log."""
        return self.positions[bisect.bisect_right(self.positions, end) :]


def read_configurations(txn: Transaction, dbs: Databases, member_id: int) -> Configurations:
    """Read the rows; none in a store of format 3.

    Raises:
        StorageError: a row about them is damaged.
    """
    if not dbs.has_members:
        # Its log has none, either: they are not known to the version that writes it.
        return Configurations(unlisted=1 << 63)
    rows: dict[int, MembershipRow | None] = {}
    with txn.cursor(dbs.members) as cursor:
        for key, value in cursor:
            position = int.from_bytes(key[:8])
            rows[position] = None
            with contextlib.suppress(DamagedRecordError):
                rows[position] = decode_membership_untrusted(member_id, key, value)
    return Configurations(rows, sorted(rows), load_unlisted(txn, dbs))
