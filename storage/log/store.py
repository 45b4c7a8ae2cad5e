"""The store of one member: log, recording log, votes and identity in one LMDB environment.

Everything is written in the order of the calls, in groups, by the executor (see :mod:`.recorder`);
what belongs together (the first batch of a term and the term's row) is durable together, and a
process killed at any moment finds exactly the last durable batch. The store keeps two values of one
type: what was submitted, against which calls are checked, and what is durable, which the properties
show. The second follows the first when a write is reported, on trio's thread.

`run` must be running for anything to become durable. An awaiting call that is cancelled may
still take effect: what was submitted is written.
"""

from __future__ import annotations

import functools
import logging
import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import StorageError
from ..lmdb.environment import INITIAL_MAP_BYTES, Environment
from ..writing.group_commit import ThreadExecutor
from . import changes
from .batch import BatchHeader, decode_header_untrusted
from .commit import Recorder, Write, carry_over
from .databases import MAX_DBS, Databases
from .identity import Identity, check_identity
from .journal import JOURNAL_BYTES, Journal
from .mending import mend
from .meta_rows import load_identity
from .reader import CHUNK_BYTES
from .state import Recorded, StateView, initialise, load
from .term_table import SnapshotRow, TermRow, row_of, with_term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Never, Self

    from ..writing.group_commit import ExecutorFactory
    from .changes import Change
    from .vote import NodeState
    from .voting_status import VotingStatus

log = logging.getLogger("quorate.storage")

PRUNE_STEP: Final = 512  # batches that one transaction of `drop_prefix` deletes


class Store(StateView):
    """The store; made by `Store.open`. Its properties show what is durable.

    Attributes:
        identity: whose it is.
        submitted: the state with what was submitted and is not durable yet.
        executor: what writes it.
        recorder: what makes it durable, on whichever thread the executor has it done.
        commits: groups of writes that became durable since it was opened.
        on_durable: set by the owner; called with the append position after each that held a batch.
    """

    def __init__(
        self,
        recorder: Recorder,
        identity: Identity,
        recorded: Recorded,
        executor: ExecutorFactory[Write],
    ) -> None:
        super().__init__(recorded)
        self.identity = identity
        self.executor = executor(recorder.write, delivered=self._delivered, idle=recorder.rest)
        self.executor.by_spans(recorder.begin, recorder.end)
        self.on_durable: Callable[[int], None] = lambda _position: None
        self.recorder = recorder
        self._dbs = recorder.dbs
        self._reader = recorder.reader(identity.member_id)
        self.submitted = recorded
        self._grown = False
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
        """Open the store in `directory`; make one, durably, when there is none.

        What is damaged is mended if it can be (:mod:`.mending`), more of it with `peers`.

        Raises:
            StoreMismatchError: it is of another cluster, member or format.
            StoreBusyError: it is open already.
            StoreFullError: there is no room to make it.
            DamagedRecordError: the log's end or the recording log is damaged beyond that.
            LostStoreError: its vote, or whether it has one, is damaged.
        """
        draw = random.Random(rng.getrandbits(64)).getrandbits  # noqa: S311 - no two of a seed
        new = Identity(cluster, member_id, draw(64))
        environment = Environment.open(
            directory,
            max_dbs=MAX_DBS,
            initialise=functools.partial(initialise, identity=new),
            map_bytes=map_bytes,
        )
        with environment.opening():
            dbs = environment.databases(Databases)
            identity = environment.read(lambda txn: load_identity(txn, dbs))
            check_identity(identity, cluster=cluster, member_id=member_id)
            row = carry_over(environment, dbs, identity, peers=peers)
            mend(environment, dbs, member_id, peers=peers)
            recorded = environment.read(lambda txn: load(txn, dbs, member_id))
        journal = Journal(directory, row, salt=draw(64), size=journal_bytes)
        return cls(Recorder(environment, dbs, journal), identity, recorded, executor)

    def close(self) -> None:
        """Close the store, after `run` has ended; idempotent."""
        self.recorder.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled; what was submitted until then is written first.

        Raises:
            StoreFullError: the disk has no room; nothing of the last group was written.
            StorageError: the disk failed.
        """
        await self.executor.run(task_status=task_status)

    @property
    def appended_position(self) -> int:
        """End of the log with what was submitted and is not durable yet."""
        return self.submitted.append_position

    @property
    def unsynced(self) -> int:
        """Bytes of the log that were submitted and are not durable yet."""
        return self.submitted.append_position - self.recorded.append_position

    def append(
        self,
        batch: bytes,
        *,
        header: BatchHeader | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Append a batch that begins at `appended_position`; `done` is called when it is durable.

        Its bytes were checked by the caller, who may have its header at hand. The first batch
        of a term makes the row of that term, durable together with it; it closes the term before.

        Raises:
            WireError: no header is given, and `batch` has none of a batch.
        """
        before = self.submitted
        header = header or decode_header_untrusted(batch)
        change = changes.append(self._dbs, before, batch, header)
        after = change.after
        regained = after.lost != before.lost

        def written() -> None:
            self.recorded = after
            self._grown = True
            if regained:
                log.error(
                    "member %d: the end of the log is mended: it goes to %d in term %d again",
                    self.identity.member_id,
                    after.append_position,
                    after.terms[-1].term,
                )
            if done is not None:
                done()

        self.submitted = after
        self.executor.submit(Write(change, written))

    async def append_durably(self, batch: bytes) -> None:
        """Append a batch and return when it is durable; see `append`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        written = trio.Event()
        self.append(batch, done=written.set)
        await written.wait()

    async def save_node_state(self, state: NodeState) -> None:
        """Make a vote durable; it is never changed within its term, nor does that decrease."""
        await self._durably(lambda dbs, old: changes.set_node_state(dbs, old, state))

    async def ensure_coherent(
        self, *, term: int, base: int, end: int | None, timestamp_ms: int
    ) -> None:
        """Make sure that `term` is in the recording log, and closed at `end` if that is given.

        A new term begins where the term before ends, and not inside of the log; an open term
        before is closed there.
        """
        row = TermRow(term, base, end, timestamp_ms)
        await self._durably(lambda dbs, old: changes.set_terms(dbs, old, with_term(old.terms, row)))

    async def save_voting_status(self, status: VotingStatus) -> None:
        """Make durable whether this store has a vote; one that has keeps it."""
        await self._durably(lambda dbs, old: changes.set_voting_status(dbs, old, status))

    async def add_snapshot(self, row: SnapshotRow) -> None:
        """Record that a snapshot exists."""
        await self._durably(lambda dbs, old: changes.add_snapshot(dbs, old, row))

    async def remove_snapshots(self, *rows: SnapshotRow) -> None:
        """Record that snapshots do not exist any more."""
        await self._durably(lambda dbs, old: changes.remove_snapshots(dbs, old, rows))

    async def regain(self) -> None:
        """Record that the log has again what was damaged at its end."""
        await self._durably(changes.regained)

    async def save_suspended(self, *, suspended: bool) -> None:
        """Record whether an operator has suspended the cluster, as the applied log says."""
        await self._durably(lambda dbs, old: changes.set_suspended(dbs, old, suspended=suspended))

    def opened_with(self, kind: str) -> None:
        """Note with what kind of service it was opened: durable with the next row of a term."""
        self._dbs.service = kind
        self.submitted = self.recorded = attrs.evolve(self.recorded, service=kind)

    async def save_service(self, kind: str) -> None:
        """Record of what kind the service is."""
        await self._durably(lambda dbs, old: changes.set_service(dbs, old, kind))

    async def save_committed(self, position: int) -> None:
        """Record that the log up to a position is committed, whatever its batches say."""
        await self._durably(lambda dbs, old: changes.set_committed(dbs, old, position))

    async def install(
        self, snapshot: SnapshotRow, terms: tuple[TermRow, ...], *, suspended: bool = False
    ) -> None:
        """Drop the whole log and let it begin, empty, at the position of a snapshot.

        The vote stays. `terms` is the recording log up to there, its last row open.

        Raises:
            StorageError: the snapshot is older than what is known to be committed here.
        """
        await self.settled()
        if snapshot.position < (known := self.submitted.last_commit_position):
            raise StorageError(f"{snapshot} is older than the commit position {known}")
        await self._durably(
            lambda dbs, old: changes.install(dbs, old, snapshot, terms, suspended=suspended)
        )

    async def replace(self, batch: bytes) -> None:
        """Put a batch, checked by the caller, in the place of a damaged or missing one.

        Raises:
            StorageError: it does not fit between its neighbours, or is no part of this log.
        """
        await self.carried_over()
        old, header = self.submitted, decode_header_untrusted(batch)
        row = row_of(old.terms, header.term)
        if row is None or header.position < max(row.base, old.start_position):
            raise StorageError(f"{header} is no part of this log")
        end = await self.executor.read(lambda: self._reader.next_position(header))
        if header.end > (old.append_position if end is None else end):
            raise StorageError(f"{header} ends behind where the next batch begins, at {end}")
        await self._durably(lambda dbs, old: changes.replace(dbs, old, batch))

    async def truncate(self, position: int, *, last_term: int | None = None) -> None:
        """Drop the batches at and behind `position`, which is the end or where a batch begins.

        Terms that begin behind it are dropped, and those behind `last_term` if it is given; the
        last one that is left is open again.

        Raises:
            PrunedError: `position` is below the first one kept.
            StorageError: `position` is not a boundary.
        """
        await self.settled()
        old = self.submitted
        self._reader.check_range(old, position)
        if position > old.append_position:
            raise StorageError(f"can't truncate to {position}: log ends at {old.append_position}")
        commit, timestamp = old.last_commit_position, old.last_timestamp_ms
        if position < old.append_position:
            commit, timestamp = await self.executor.read(
                lambda: self._reader.ending_at(old, position)
            )
        await self._durably(
            lambda dbs, old: changes.truncate(
                dbs, old, position, last_term, commit_position=commit, timestamp_ms=timestamp
            )
        )

    async def drop_prefix(self, position: int) -> None:
        """Drop the batches that end at or before `position`, step by step.

        The recording log keeps their terms. Cancelled, it leaves what was not dropped yet.
        """
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
        """Return durable batches from `position` on, each one checked; none at the end of the log.

        At least one if there is any, then as many as fit in `limit_bytes` and begin before `end`.

        Raises:
            PrunedError: `position` is below the first one kept.
            StorageError: no batch begins at `position`.
            DamagedRecordError: a batch is damaged or missing.
        """
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
            if self.submitted is self.recorded is recorded:
                raise self._reader.missing(recorded, position)
            await self.settled()  # it may just have been truncated or pruned

    async def boundary(self, position: int) -> int:
        """Return where the durable batch begins that covers `position`, the end behind all."""
        recorded = self.recorded
        return await self.executor.read(lambda: self._reader.boundary(recorded, position))

    async def last_batch(self) -> bytes | None:
        """Return the last durable batch, checked; None if the log is empty.

        Raises:
            DamagedRecordError: it is damaged.
        """
        await self.settled()
        recorded = self.recorded
        if recorded.start_position == recorded.append_position:
            return None
        begin = await self.boundary(recorded.append_position - 1)
        return (await self.read(begin))[0]

    def scan(self, position: int) -> Iterator[bytes]:
        """Yield the checked batches from `position` to what is now the end; for tools.

        Raises:
            PrunedError, StorageError, DamagedRecordError: as `read`.
        """
        return self._reader.scan(self.recorded, position)

    async def settled(self) -> None:
        """Wait until everything submitted so far is durable."""
        if self.submitted is not self.recorded:
            await self._durably(changes.nothing)

    async def carried_over(self) -> None:
        """Wait until everything submitted so far is in LMDB."""
        if self.submitted is not self.recorded or self.recorder.tail().records:
            await self._durably(changes.nothing)

    async def _durably(self, make: Callable[[Databases, Recorded], Change]) -> None:
        """Submit a change and return when it is durable."""
        await trio.lowlevel.checkpoint_if_cancelled()
        change = make(self._dbs, self.submitted)
        durable = trio.Event()

        def written() -> None:
            self.recorded = change.after
            durable.set()

        self.submitted = change.after
        self.executor.submit(Write(change, written))
        await durable.wait()

    def _delivered(self) -> None:
        """Tell the owner, once per group."""
        self.commits += 1
        if self._grown:
            self._grown = False
            self.on_durable(self.recorded.append_position)
