"""Mutants with wrong rules of recording, reporting, counting, truncating and committing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import trio

from quorate.node.follower.following import Following
from quorate.node.follower.log_guard import LogGuard
from quorate.node.leader import log_clock
from quorate.node.leader.commit import Commit
from quorate.node.leader.disk_watch import DiskWatch
from quorate.node.protocol.quorum import Quorums
from quorate.node.state_machine.applier import Applier
from quorate.storage import SnapshotFolder, TermRow
from quorate.storage.log import changes, store
from quorate.storage.log.changes import Change
from quorate.storage.log.store import Store
from quorate.storage.rows import term_table
from quorate.transport import AppendFlags, AppendPosition, NewLeadershipTerm

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from quorate.node.protocol.log_matching import WayToJoin
    from quorate.storage import BatchHeader, SnapshotRow
    from quorate.storage.lmdb.environment import Transaction
    from quorate.storage.log.state import Recorded
    from quorate.storage.rows.databases import Databases


def report_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Report received positions instead of durable ones."""

    def report(self: Following, *, timed: bool = True) -> None:
        del timed
        self.links.send(
            self.leader_id,
            AppendPosition(
                leadership_term_id=self.term,
                log_position=self.store.submitted_position,
                follower_member_id=self.state.member_id,
                flags=self.flags,
                confirm_id=self._confirm_id,  # pyright: ignore[reportPrivateUsage]
            ),
        )

    patch.setattr(Following, "report", report)


def count_itself_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Let a leader count its own log up to the written position, not the durable one."""
    patch.setattr(Commit, "advance", _advance_with(Commit.advance))


def _advance_with(advance: object) -> object:
    def _advance(self: Commit) -> None:
        store = self._store  # pyright: ignore[reportPrivateUsage]
        recorded = store.recorded
        pretended = attrs.evolve(recorded, append_position=store.submitted_position)
        store.recorded = pretended
        try:
            advance(self)  # type: ignore[operator]
        finally:
            if store.recorded is pretended:
                store.recorded = recorded

    return _advance


def be_ready_at_once(patch: pytest.MonkeyPatch) -> None:
    """Report READY without the term in the recording log: F3 removed at the follower."""
    report = Following.report

    def report_ready(self: Following, *, timed: bool = True) -> None:
        self.flags = AppendFlags.READY
        report(self, timed=timed)

    patch.setattr(Following, "report", report_ready)


def skip_the_truncation(patch: pytest.MonkeyPatch) -> None:
    """Follow a leader without truncating entries that the leader does not have."""

    async def truncate(self: LogGuard, position: int, last_term: int) -> None:
        del position, last_term
        self._applier.forget()  # pyright: ignore[reportPrivateUsage]

    patch.setattr(LogGuard, "truncate", truncate)


def truncate_too_much(patch: pytest.MonkeyPatch) -> None:
    """Truncate to the beginning of the last term, even if more is committed."""

    async def truncate(self: LogGuard, position: int, last_term: int) -> None:
        store = self._store  # pyright: ignore[reportPrivateUsage]
        base = store.terms[-1].base if store.terms else 0
        await store.truncate(min(position, base), last_term=last_term)

    patch.setattr(LogGuard, "truncate", truncate)


def commit_with_a_minority(patch: pytest.MonkeyPatch) -> None:
    """Use the highest position as the quorum's."""

    def position(self: Quorums[int], reached: Mapping[int, int]) -> int:
        return max((reached.get(voter, 0) for voter in self.voters), default=0)

    patch.setattr(Quorums, "position", position)


def commit_what_is_received(patch: pytest.MonkeyPatch) -> None:
    """Let a follower regard everything that is durable on its disk as committed."""

    def raise_commit(self: Following) -> None:
        self.applier.commit(self.store.append_position)

    patch.setattr(Following, "_raise_commit", raise_commit)


def commit_before_comparing(patch: pytest.MonkeyPatch) -> None:
    """Regard the log as equal to the leader's before the comparison, while fetching a snapshot."""
    init = Following.__init__

    def made(self: Following, message: NewLeadershipTerm, *, way: WayToJoin, **parts: Any) -> None:
        init(self, message, way=way, **parts)
        self.compared = True
        self._raise_commit()  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Following, "__init__", made)


def lead_with_a_hanging_disk(patch: pytest.MonkeyPatch) -> None:
    """Ignore a hanging disk of one's own, both as a winner and as a leader."""

    async def run(_watch: DiskWatch, *_parts: object) -> None:
        await trio.sleep_forever()

    patch.setattr(DiskWatch, "run", run)


def write_the_row_late(patch: pytest.MonkeyPatch) -> None:
    """Record the first entry of a term before the term's row, which follows later or never.

    This removes F7 below the store's own checks, which would refuse it.
    """
    append = changes.append

    def append_alone(dbs: Databases, old: Recorded, batch: bytes, header: BatchHeader) -> Change:
        change = append(dbs, old, batch, header)
        if change.after.terms is old.terms:
            return change

        def apply(txn: Transaction) -> None:
            change.apply(txn)
            put_terms(txn, dbs, change.after.terms, old.terms)

        return Change(change.after, apply)

    put_terms = changes.put_terms  # pyright: ignore[reportPrivateUsage]
    patch.setattr(changes, "append", append_alone)


def forget_bytes_at_a_power_cut(patch: pytest.MonkeyPatch) -> None:
    """Let a store report a write as durable when it was only submitted (sync after ack)."""
    append = Store.append

    def append_at_once(self: Store, batch: bytes, **more: object) -> None:
        append(self, batch, **more)  # type: ignore[arg-type]
        self.recorded = self.submitted

    patch.setattr(Store, "append", append_at_once)


def let_the_commit_position_go_back(patch: pytest.MonkeyPatch) -> None:
    """Let a member's commit position go back to the one that its leader sends."""
    commit = Applier.commit

    def commit_back(self: Applier, position: int) -> None:
        if position < self.commit_position:
            self.commit_position = position
        else:
            commit(self, position)

    patch.setattr(Applier, "commit", commit_back)


def delete_what_no_row_names(patch: pytest.MonkeyPatch) -> None:
    """Remove every file from the folder of snapshots that the store does not name."""
    clear_up = SnapshotFolder.open

    def empty(
        self: SnapshotFolder, rows: tuple[SnapshotRow, ...], **more: Any
    ) -> list[SnapshotRow]:
        names = {row.name for row in rows}
        for path in self.directory.iterdir() if self.directory.exists() else ():
            if path.suffix != ".part" and path.name not in names:
                path.unlink()
        return clear_up(self, rows, **more)

    patch.setattr(SnapshotFolder, "open", empty)


def fill_skipped_terms(patch: pytest.MonkeyPatch) -> None:
    """Record a row for each term that was skipped."""
    build = term_table.with_term

    def with_term(rows: tuple[TermRow, ...], added: TermRow) -> tuple[TermRow, ...]:
        first = rows[-1].term + 1 if rows else 0
        for term in range(first, added.term):
            rows = build(rows, TermRow(term, added.base, added.base, added.timestamp_ms))
        return build(rows, added)

    patch.setattr(changes, "with_term", with_term)
    patch.setattr(store, "with_term", with_term)


def leave_the_last_commit_untold(patch: pytest.MonkeyPatch) -> None:
    """Do not record the last commit position when the log becomes idle."""
    patch.setattr(log_clock, "IDLE_SECONDS", math.inf)
