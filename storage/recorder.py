"""Makes changes durable: what is only appended in the journal, all else in LMDB.

The order is that of the calls, whichever of the two a change goes to: LMDB gets what the journal
holds together with the next change that the journal can't take. Used by one writer; `tail` may be
read by anybody.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ..errors import StoreFullError
from .journal import JOURNAL_FILE, load_generation, read_journal, save_generation
from .reader import LogReader
from .recording import last_record, put_record
from .state import LOST_KEY, encode_lost, load_lost, load_origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .changes import Change
    from .environment import Environment, Transaction
    from .identity import Identity
    from .journal import Journal
    from .recording import Record
    from .state import Databases

log = logging.getLogger("quorate.storage")


class Recorder:
    """The writing half of an open store.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        journal: of the store, empty.
    """

    def __init__(self, environment: Environment, dbs: Databases, journal: Journal) -> None:
        self.environment = environment
        self.dbs = dbs
        self._journal = journal
        self._tail: list[Record] = []  # grows, or is replaced: a reader never sees it shrink

    def reader(self, member_id: int) -> LogReader:
        """Return what reads all that was made durable."""
        return LogReader(self.environment, self.dbs, member_id, self.tail)

    def tail(self) -> Sequence[Record]:
        """Return what the journal holds and LMDB does not."""
        return tuple(self._tail)

    def write(self, changes: Sequence[Change]) -> None:
        """Make changes durable, all or none of them.

        Raises:
            StoreFullError: the disk has no room; nothing of them was written.
            StorageError: the disk failed.
        """
        records = [change.record for change in changes if change.record is not None]
        length = sum(len(record.batch) for record in records)
        if records and len(records) == len(changes) and self._journal.has_room(length):
            self._journal.write(records)
            self._tail += records
            return
        tail, generation = self._tail, self._journal.generation + 1

        def apply(txn: Transaction) -> None:
            for record in tail:
                put_record(txn, self.dbs, record)
            for change in changes:
                change.apply(txn)
            if tail:
                save_generation(txn, self.dbs, generation)

        self.environment.write(apply)
        if tail:
            self._journal.begin_anew(generation)
            self._tail = []

    def rest(self) -> None:
        """Carry over what the journal holds, since there is nothing else to write.

        Damage in LMDB is told from what a power cut has torn; in the journal's last group it is
        not. So nothing stays there for long.
        """
        if self._tail:
            with contextlib.suppress(StoreFullError):  # it is durable where it is
                self.write(())

    def close(self) -> None:
        """Close the journal and the environment; idempotent."""
        self._journal.close()
        self.environment.close()


def carry_over(environment: Environment, dbs: Databases, identity: Identity, *, peers: bool) -> int:
    """Put into LMDB what the journal of a store holds that is opened; return a new generation.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        identity: whose it is.
        peers: there are other members, from whom what is damaged comes back; it is noted as lost
            until then (see :mod:`.mending`).

    Raises:
        DamagedRecordError: the journal is damaged.
        StoreFullError: there is no room.
    """
    member_id = identity.member_id
    found = read_journal(environment.directory)

    def look(txn: Transaction) -> tuple[int, int]:
        with txn.cursor(dbs.log) as cursor:
            last = last_record(cursor, member_id)
        end = load_origin(txn, dbs)[0] if last is None else last.end
        return end, load_generation(txn, dbs)

    end, generation = environment.read(look)
    tail = found.tail(member_id, identity.instance_id, generation, end)
    if tail.damage is not None:
        if not peers:
            raise tail.damage
        log.error(
            "%s. What was in it may have been acknowledged: this member votes for nobody who lacks "
            "it, until another one has sent it again",
            tail.damage,
        )
    if not (environment.directory / JOURNAL_FILE).exists():
        return generation

    def apply(txn: Transaction) -> None:
        for record in tail.records:
            put_record(txn, dbs, record)
        if tail.damage is not None:
            txn.put(LOST_KEY, encode_lost(max(load_lost(txn, dbs), tail.lost)), db=dbs.meta)
        save_generation(txn, dbs, generation + 1)

    environment.write(apply)
    return generation + 1
