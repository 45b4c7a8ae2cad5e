"""The store of one member: its log, term table, vote and identity, in one directory.

The idea
--------
Every change is a value (`changes`): the state that holds once it is durable, and the LMDB
operations that make it so. The store therefore keeps two states of one type::

    submitted    what all calls so far lead to; new calls are checked against it
    recorded     what is durable; the properties show it

The second follows the first when the executor reports a group as durable, on trio's thread. Calls
become durable in the order in which they were made.

The naive way, and why it fails
-------------------------------
Write, wait for the disk, then update the state. A leader could then append one batch per sync, and
a follower could not check the next batch before the disk has the one before. With two states the
caller goes on at once, and a slow disk only makes larger groups.

What belongs together
---------------------
Some facts must never be on disk one without the other; each is one change, so one transaction:

- the first batch of a term and the term's row: a batch without a row has no known leader;
- a snapshot's row and the empty log behind it (`install`);
- a truncation and the term table that it leaves;
- a configuration of the cluster and its row (`rows.membership`), in all that is done to the log.

A process killed at any moment finds exactly a prefix of its changes.

What we do not do
-----------------
- No change is undone. A cancelled call may still take effect: what was submitted is written.
- Nothing becomes durable unless `run` is running.
- The store checks its callers, with assertions. It does not know why a log is truncated, or whether
  a vote is wise: :mod:`quorate.node` does.
"""

from __future__ import annotations

import functools
import logging
import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import StorageError
from ...log_events import log_event
from ..lmdb.environment import INITIAL_MAP_BYTES, Environment
from ..rows.databases import MAX_DBS, Databases
from ..rows.identity import Identity, check_identity
from ..rows.meta_rows import load_identity
from ..rows.term_table import SnapshotRow, TermRow, row_of, with_term
from ..writing.group_commit import ThreadExecutor
from . import changes
from .batch import BatchHeader, decode_header_untrusted
from .journal import JOURNAL_BYTES, Journal
from .mending import mend
from .reader import CHUNK_BYTES
from .recorder import Recorder, Write, carry_over
from .state import Recorded, StateView, initialise, load
from .upgrade import upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Never, Self

    from ...metrics import Histogram
    from ..rows.vote import NodeState
    from ..rows.voting_status import VotingStatus
    from ..writing.executor import ExecutorFactory
    from .changes import Change

log = logging.getLogger("quorate.storage")

PRUNE_STEP: Final = 512
"""Batches that one transaction of `drop_prefix` deletes. More of them hold up appends for longer;
fewer cost more syncs."""


class Store(StateView):
    """The open store; made by `Store.open`. Its properties show what is durable.

    Attributes:
        identity: of the store.
        submitted: the state that all calls so far lead to, durable or not.
        executor: runs the writes.
        recorder: makes a group durable, on the thread that the executor chooses.
        commits: groups that became durable since the store was opened.
        on_durable: set by the owner; called with the append position after each group with a batch.
        on_membership: set by the owner; called on trio's thread as soon as `submitted` has other
            configurations, durable or not.
    """

    def __init__(
        self,
        recorder: Recorder,
        identity: Identity,
        recorded: Recorded,
        executor: ExecutorFactory[Write],
    ) -> None:
        super().__init__(recorded)  # nothing is submitted yet, so both states are the same
        self.identity = identity
        self.executor = executor(recorder.write, delivered=self._delivered, idle=recorder.rest)
        # Groups that only append may bypass the writer thread, see `Recorder.begin`.
        self.executor.by_spans(recorder.begin, recorder.end)
        # One callback per group, set once by the member; no list of observers to call on this path.
        self.on_durable: Callable[[int], None] = lambda _position: None
        self.on_membership: Callable[[], None] = lambda: None
        self.recorder = recorder
        self._dbs = recorder.dbs
        self._reader = recorder.reader(identity.member_id)
        self.submitted = recorded
        self._grown = False  # the group being reported holds a batch
        self.commits = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster: str,
        member_id: int,
        rng: random.Random,
        executor: ExecutorFactory[Write] = ThreadExecutor,
        map_bytes: int = INITIAL_MAP_BYTES,
        peers: bool = False,
        journal_bytes: int = JOURNAL_BYTES,
    ) -> Self:
        """Open the store in `directory`; make one, durably, if there is none.

        Damage is mended where possible (:mod:`.mending`), and more of it with `peers`. A store of
        format 3 is upgraded (:mod:`.upgrade`).

        Raises:
            StoreMismatchError: it is of another cluster, member or format.
            StoreBusyError: another handle has it open.
            StoreFullError: there is no room to make it.
            DamagedRecordError: the log's end or the term table is damaged beyond mending.
            LostStoreError: the vote, whether there is one, or a configuration is damaged.
        """
        draw = random.Random(rng.getrandbits(64)).getrandbits  # noqa: S311 - simulations seed it
        # Drawn even if there is a store: the generator then goes on the same way in both cases.
        new = Identity(cluster, member_id, draw(64))
        environment = Environment.open(
            directory,
            max_dbs=MAX_DBS,
            initialise=functools.partial(initialise, identity=new),
            map_bytes=map_bytes,
        )
        with environment.opening():
            dbs = environment.databases(Databases)
            # First of all: nothing below may write into somebody else's store.
            identity = environment.read(lambda txn: load_identity(txn, dbs))
            check_identity(identity, cluster=cluster, member_id=member_id)
            identity = upgrade(environment, dbs, identity)
            # The journal before mending: its batches may continue a log whose end looks damaged.
            row = carry_over(environment, dbs, identity, peers=peers)
            mend(environment, dbs, member_id, peers=peers)
            # Only now is the state read: carrying over and mending change it.
            recorded = environment.read(lambda txn: load(txn, dbs, member_id))
        # The salt is drawn anew at each start, so no client can learn it from an old file.
        journal = Journal(directory, row, salt=draw(64), size=journal_bytes)
        return cls(Recorder(environment, dbs, journal), identity, recorded, executor)

    def close(self) -> None:
        """Close the store, after `run` has ended; idempotent."""
        # Journal first, then LMDB; neither may be written any more.
        self.recorder.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled; everything submitted by then is written first.

        Raises:
            StoreFullError: the disk is full; nothing of the last group was written.
            StorageError: the disk failed.
        """
        await self.executor.run(task_status=task_status)

    @property
    def submitted_position(self) -> int:
        """End of the log, counting what is submitted and not durable."""
        return self.submitted.append_position

    @property
    def syncs(self) -> Histogram:
        """How many seconds it took to make each group durable."""
        return self.executor.syncs

    @property
    def unsynced(self) -> int:
        """Bytes of the log that are submitted and not durable."""
        return self.submitted.append_position - self.recorded.append_position

    def append(
        self,
        batch: bytes,
        *,
        header: BatchHeader | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Append a batch that begins at `submitted_position`; returns at once.

        The first batch of a term makes the term's row, durable together with the batch, and closes
        the term before.

        Args:
            batch: one whole batch, checked by the caller.
            header: of the batch, if the caller has it at hand.
            done: called on trio's thread once the batch is durable.

        Raises:
            WireError: no header is given, and `batch` begins with none.
        """
        # This is the hot path: one call per batch, no await, no lock.
        before = self.submitted
        header = header or decode_header_untrusted(batch)
        change = changes.append(self._dbs, before, batch, header)
        after = change.after
        regained = after.lost != before.lost  # our log just passed what was once cut off

        def written() -> None:
            # Reported in the order of submission, so `recorded` never goes back.
            self.recorded = after
            self._grown = True
            if regained:
                self._log_mended(after)
            if done is not None:
                done()

        self.submitted = after
        self.executor.submit(Write(change, written))
        # Last: the owner may append in the callback, and that batch must be written behind this
        # one. By identity, since nearly no batch has a configuration.
        if after.memberships is not before.memberships:
            self.on_membership()

    def _log_mended(self, after: Recorded) -> None:
        log_event(
            log,
            logging.WARNING,
            "log_mended",
            "member %(member)d: the end of the log is mended: it goes to %(position)d in term "
            "%(term)d again",
            member=self.identity.member_id,
            position=after.append_position,
            term=after.terms[-1].term,
        )

    async def append_durably(self, batch: bytes) -> None:
        """Append a batch, and return once it is durable; see `append`."""
        # Checked once, before anything is submitted: a cancelled caller then knows nothing
        # happened.
        await trio.lowlevel.checkpoint_if_cancelled()
        written = trio.Event()
        self.append(batch, done=written.set)
        await written.wait()

    async def save_node_state(self, state: NodeState) -> None:
        """Make a vote durable. Within a term it never changes, and its term never decreases."""
        # Awaited by the caller before the vote is sent (I-2, I-3): a vote that a crash forgets can
        # be given twice (H7).
        await self._durably(lambda dbs, old: changes.set_node_state(dbs, old, state))

    async def ensure_coherent(
        self, *, term: int, base: int, end: int | None, timestamp_ms: int
    ) -> None:
        """Ensure that `term` has a row, and that the row ends at `end` if that is given.

        A new term begins where the term before ends, never inside the log. An open term before it
        is closed there. (Aeron: RecordingLog.ensureCoherent.)
        """
        # `with_term` makes this idempotent: a follower may call it for a term that has its row.
        row = TermRow(term, base, end, timestamp_ms)
        await self._durably(lambda dbs, old: changes.set_terms(dbs, old, with_term(old.terms, row)))

    async def save_voting_status(self, status: VotingStatus) -> None:
        """Make the voting status durable; a store that has a vote keeps it."""
        await self._durably(lambda dbs, old: changes.set_voting_status(dbs, old, status))

    async def add_snapshot(self, row: SnapshotRow) -> None:
        """Record that a snapshot exists."""
        await self._durably(lambda dbs, old: changes.add_snapshot(dbs, old, row))

    async def remove_snapshots(self, *rows: SnapshotRow) -> None:
        """Record that snapshots are gone; their files are removed afterwards."""
        await self._durably(lambda dbs, old: changes.remove_snapshots(dbs, old, rows))

    async def clear_lost(self) -> None:
        """Record that the log again has the batches that were damaged at its end."""
        await self._durably(changes.clear_lost)

    async def save_suspended(self, *, suspended: bool) -> None:
        """Record whether an operator has suspended the cluster, as the applied log says."""
        await self._durably(lambda dbs, old: changes.set_suspended(dbs, old, suspended=suspended))

    def opened_with(self, kind: str) -> None:
        """Note the kind of service that opened the store; durable with the next row of a term."""
        # Not written yet: before a first term there is nothing that services could mix up.
        self._dbs.service = kind
        self.submitted = self.recorded = attrs.evolve(self.recorded, service=kind)

    async def save_service(self, kind: str) -> None:
        """Record the kind of service that the log belongs to."""
        await self._durably(lambda dbs, old: changes.set_service(dbs, old, kind))

    async def save_committed(self, position: int) -> None:
        """Record that the log is committed up to a position, whatever its batches say."""
        await self._durably(lambda dbs, old: changes.set_committed(dbs, old, position))

    async def install(
        self,
        snapshot: SnapshotRow,
        terms: tuple[TermRow, ...],
        *,
        suspended: bool = False,
        membership: bytes = b"",
    ) -> None:
        """Drop the whole log; it begins anew, empty, at the position of a snapshot. The vote stays.

        Args:
            snapshot: from another member, its file already in place.
            terms: the term table up to there; its last row is open.
            suspended: an operator has suspended the cluster.
            membership: the configuration in force there, from the snapshot's head; empty if the
                log had none.

        Raises:
            StorageError: the snapshot is older than what is known to be committed here.
        """
        await self.settled()
        # An older snapshot would take back entries whose commit clients have seen (I-14).
        if snapshot.position < (known := self.submitted.last_commit_position):
            raise StorageError(f"{snapshot} is older than the commit position {known}")
        await self._durably(
            lambda dbs, old: changes.install(
                dbs, old, snapshot, terms, suspended=suspended, membership=membership
            )
        )

    async def replace(self, batch: bytes) -> None:
        """Replace a damaged or missing batch by an intact copy, checked by the caller.

        Raises:
            StorageError: it does not fit between its neighbours, or is no part of this log.
        """
        await self.carried_over()  # the place is looked up in LMDB alone
        # The header only: the caller has checked the bytes. Its place is checked here.
        header = decode_header_untrusted(batch)
        _check_place(self.submitted, header)
        end = await self.executor.read(lambda: self._reader.next_position(header))
        if end is not None and header.end > end:
            raise StorageError(f"{header} ends behind where the next batch begins, at {end}")

        def change(dbs: Databases, now: Recorded) -> Change:
            # Once more: a repair holds up nobody, so the log may have been cut or pruned since.
            _check_place(now, header)
            return changes.replace(dbs, now, batch)

        await self._durably(change)

    async def truncate(self, position: int, *, last_term: int | None = None) -> None:
        """Drop the batches at and behind `position`, which is the end or where a batch begins.

        Terms that begin behind it are dropped, and terms above `last_term` if that is given. The
        last term left is open again.

        Raises:
            PrunedError: `position` is below the first position kept.
            StorageError: no batch begins at `position`.
        """
        await self.settled()  # so that the batches that are to go can be found in a reader
        old = self.submitted
        self._reader.check_range(old, position)
        if position > old.append_position:
            raise StorageError(f"can't truncate to {position}: log ends at {old.append_position}")
        # Commit position and time of the state come from its last batch. After the cut another
        # batch is the last one.
        commit, timestamp = old.last_commit_position, old.last_timestamp_ms
        if position < old.append_position:
            commit, timestamp = await self.executor.read(
                lambda: self._reader.ending_at(old, position)
            )

        def change(dbs: Databases, now: Recorded) -> Change:
            # Only a role appends, and it has ended before the election truncates. What a snapshot
            # or an action may have changed since (`now` is not `old`) does not matter here.
            assert now.append_position == old.append_position, "appended during a truncation"
            return changes.truncate(
                dbs, now, position, last_term, commit_position=commit, timestamp_ms=timestamp
            )

        await self._durably(change)

    async def drop_prefix(self, position: int) -> None:
        """Drop the batches that end at or before `position`, step by step.

        Their terms keep their rows. If the call is cancelled, some of the batches may be left.
        """
        # In steps, so that appends get their turn: one transaction for a gigabyte takes seconds.
        while True:
            await self.carried_over()
            recorded = self.recorded
            prefix = await self.executor.read(
                functools.partial(self._reader.prefix, recorded, position, PRUNE_STEP)
            )
            if prefix is None:
                return
            key, start, timestamp = prefix
            await self._durably(
                functools.partial(changes.prune, key=key, position=start, timestamp_ms=timestamp)
            )

    async def read(
        self, position: int, *, limit_bytes: int = CHUNK_BYTES, end: int | None = None
    ) -> list[bytes]:
        """Return durable batches from `position` on, each checked; none at the end of the log.

        At least one if there is any, then as many as fit in `limit_bytes` and begin before `end`.

        Raises:
            PrunedError: `position` is below the first position kept.
            StorageError: no batch begins at `position`.
            DamagedRecordError: a batch is damaged or missing.
        """
        # A reader at the end of the log must still let other tasks run.
        await trio.lowlevel.checkpoint()
        while True:
            recorded = self.recorded
            stop = recorded.append_position if end is None else min(end, recorded.append_position)
            self._reader.check_range(recorded, position)
            if position >= stop:
                return []
            batches = await self.executor.read(
                functools.partial(self._reader.chunk, recorded.terms, position, stop, limit_bytes)
            )
            if batches is not None:
                return batches
            # No batch begins there. That is an error only if the state did not change while we
            # read: a truncation or a pruning may be on its way.
            if self.submitted is self.recorded is recorded:
                raise self._reader.missing_error(recorded, position)
            await self.settled()

    async def boundary(self, position: int) -> int:
        """Return where the durable batch that covers `position` begins; behind all, the end."""
        recorded = self.recorded  # one value for the whole read, however the log goes on
        # On the lane for reads: a disk that stands still must not hold up the event loop.
        return await self.executor.read(lambda: self._reader.boundary(recorded, position))

    async def last_batch(self) -> bytes | None:
        """Return the last durable batch, checked; None if the log is empty.

        Raises:
            DamagedRecordError: it is damaged.
        """
        await self.settled()  # else the batch may be only submitted, and in no reader
        recorded = self.recorded
        if recorded.start_position == recorded.append_position:
            return None
        begin = await self.boundary(recorded.append_position - 1)
        return (await self.read(begin))[0]

    def scan(self, position: int) -> Iterator[bytes]:
        """Yield the checked batches from `position` to the present end; blocks, for tools.

        Raises:
            PrunedError, StorageError, DamagedRecordError: as `read`.
        """
        return self._reader.scan(self.recorded, position)

    async def settled(self) -> None:
        """Wait until everything submitted so far is durable."""
        if self.submitted is not self.recorded:
            await self._durably(changes.nothing)  # an empty change: durable after all before it

    async def carried_over(self) -> None:
        """Wait until everything submitted so far is in LMDB, not only in the journal."""
        # An empty change is no append, so the recorder takes the way of LMDB.
        if self.submitted is not self.recorded or self.recorder.tail().records:
            await self._durably(changes.nothing)

    async def _durably(self, make: Callable[[Databases, Recorded], Change]) -> None:
        """Submit a change, and return once it is durable."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # Made against what was submitted, and no await before `submit`: nothing comes in between.
        before = self.submitted
        change = make(self._dbs, before)
        durable = trio.Event()

        def written() -> None:
            self.recorded = change.after
            durable.set()

        self.submitted = change.after
        self.executor.submit(Write(change, written))
        if change.after.memberships != before.memberships:
            self.on_membership()
        await durable.wait()

    def _delivered(self) -> None:
        """Report progress to the owner, once per group."""
        # Once per group, not per batch: the leader answers with one message for all of them.
        self.commits += 1
        if self._grown:
            # Cleared first: the callback may append, and a report of that must not be missed.
            self._grown = False
            self.on_durable(self.recorded.append_position)


def _check_place(state: Recorded, header: BatchHeader) -> None:
    """Refuse a batch that has no place in a log.

    Raises:
        StorageError: it is of no term of the log, or not between the ends of both.
    """
    row = row_of(state.terms, header.term)
    if row is None or header.position < max(row.base, state.start_position):
        raise StorageError(f"{header} is no part of this log")
    end = state.append_position if row.end is None else min(row.end, state.append_position)
    if header.end > end:
        raise StorageError(f"{header} ends behind the end of its term here, at {end}")
