"""Reads the committed log of a running cluster over the network, preferably from a follower.

It is for Spark's tasks, which have no event loop: each request runs one, and keeps no connection.
When a member is lost in the middle, another one continues after the last batch received. The client
verifies each batch (:mod:`quorate.node.readers.replay_client`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...errors import ConfigurationError, PrunedError, TransportError
from ...node.config.security import Security, load_security
from ...node.follower.snapshot_install import fetch_snapshot
from ...node.readers.replay_client import PATIENCE_SECONDS, ReplayClient, fetch
from ...node.upkeep.access import open_reader_access
from ...storage import SnapshotFolder, SnapshotRow, TermRow
from ...storage.snapshots.file import SnapshotReader
from ...transport import CONNECTION_ERRORS, Address, TcpNetwork
from .members import standing
from .reading import Facts, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ...node.readers.replay_client import Batch
    from ...storage import BatchHeader, SnapshotHead
    from ...transport import BackupResponse
    from .origin import Connect

T = TypeVar("T")

__all__ = ["RemoteLog", "member_ids"]

_STANDSTILL_SECONDS: Final = 60.0
"""Seconds without any new data before a read fails. Smaller: an election, or the wait for one of a
member's few streams for readers, ends the read. Larger: a lost cluster is noticed later."""

_CHUNK_BYTES: Final = 16 << 20
"""Bytes of log fetched at once and held in memory. Smaller: more requests. Larger: more memory in
each task."""

_PAUSE_SECONDS: Final = 0.2
_NAME: Final = "snapshot-over-the-wire"


class RemoteLog(Log):
    """The log of a running cluster, up to its present commit position.

    Raises:
        ConfigurationError: the cluster has no such member.
        TransportError: no member answers.
    """

    def __init__(self, connect: Connect) -> None:
        said = standing(connect.members)
        only = connect.member
        addresses = [
            Address(one.host, one.member_port)
            for one in said.topology.members
            if one.member_port and only in {None, one.member_id}
        ]
        if not addresses:
            raise ConfigurationError(f"cluster {said.cluster!r} has no member {only}")
        self._client = _client(said.cluster, addresses, connect.security)
        self._member_id = -1 if only is None else only
        self._last: BatchHeader | None = None
        self.facts = self._patiently(self._ask)

    def _ask(self) -> Facts:
        answers = trio.run(self._client.ask)
        return Facts(
            cluster=self._client.cluster,
            member_id=self._member_id,
            start=min(one.start_position for one in answers),
            committed=max(one.commit_position for one in answers),
            snapshots=_snapshots(answers),
        )

    def reach(self, position: int) -> None:
        """Wait until reachable members know of a commit position that a lost member reported."""

        def ask() -> Facts:
            found = self._ask()
            if found.committed < position:
                raise TransportError(
                    f"{found.whose}: position {position} is wanted, the members that answer know "
                    f"of {found.committed} that it is committed"
                )
            return found

        if self.facts.committed < position:
            self.facts = self._patiently(ask)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call until the call succeeds.

        Raises:
            TransportError, OSError: no call succeeded for a minute.
        """
        end = time.monotonic() + _STANDSTILL_SECONDS  # noqa: TID251 - no member runs here
        while True:
            try:
                return call()
            except (*CONNECTION_ERRORS, TransportError):
                if time.monotonic() > end:  # noqa: TID251 - likewise
                    raise
                time.sleep(_PAUSE_SECONDS)

    def header(self, position: int) -> BatchHeader:
        """Return the header of the batch that covers a position."""
        if self._last is None or not self._last.position <= position < self._last.end:
            self._last = self._some(position, position + 1, 1)[0].header
        return self._last

    def _some(self, position: int, stop: int, limit_bytes: int) -> list[Batch]:
        """Fetch committed batches; the first one covers a position."""

        def ask() -> list[Batch]:
            arguments = self._client, position, stop, limit_bytes
            found = trio.run(partial(fetch, *arguments, covering=True))
            if not found:  # this member is behind the one that reported the commit position
                raise TransportError(f"no member answers that has the log at {position}")
            return found

        return self._patiently(ask)

    def _edge(self, position: int) -> int:
        return position  # the reader of a range finds where its first batch begins

    def batches(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the batches that begin in a range; at most about 16 MiB of them are in memory."""
        if begin < self.facts.start:
            raise PrunedError(f"{self.facts.whose}: the log begins at {self.facts.start}")
        position = begin
        while position < end:
            found = self._some(position, end, _CHUNK_BYTES)
            for batch in found:
                if batch.header.position >= begin:
                    yield batch.data
            position = found[-1].header.end

    def terms(self) -> tuple[TermRow, ...]:
        """Return the terms of the kept log; their times are those of their first batches."""
        rows: list[TermRow] = []
        base, committed = self.facts.start, self.facts.committed
        while base < committed:
            header = self.header(base)
            end = self.of_term(header.term, header.term)[1]
            until = end if end < committed else None
            rows.append(TermRow(header.term, base, until, header.timestamp_ms))
            base = end
        return tuple(rows)

    @contextmanager
    def snapshot(self, row: SnapshotRow) -> Generator[SnapshotReader]:
        """Fetch a snapshot from a member that has it as its newest one, and open it."""
        with TemporaryDirectory(prefix="quorate-snapshot-") as name:
            place = Path(name)
            head = self._patiently(lambda: self._fetch(row, place))
            with SnapshotReader(place / head.name) as reader:
                yield reader

    def _fetch(self, row: SnapshotRow, place: Path) -> SnapshotHead:
        return trio.run(_snapshot, self._client, row.position, SnapshotFolder(place))


def member_ids(members: str) -> list[int]:
    """Return the ids of all members of a running cluster, ascending.

    Raises:
        TransportError: no member answers.
    """
    return sorted(one.member_id for one in standing(members).topology.members)


def _client(cluster: str, addresses: list[Address], file: str) -> ReplayClient:
    """Return a client that proves who it is by what a file says, if one is given."""
    security = load_security(Path(file)) if file else Security()
    access = open_reader_access(security, cluster=cluster, network=TcpNetwork())
    return ReplayClient(cluster, addresses, network=access.network, security=access.security)


def _snapshots(answers: list[BackupResponse]) -> tuple[SnapshotRow, ...]:
    """Return each member's newest snapshot; its time is known only after opening it."""
    found = {
        (one.snapshot_position, one.snapshot_term): None
        for one in answers
        if one.snapshot_position >= 0
    }
    return tuple(SnapshotRow(*each, 0, _NAME) for each in sorted(found))


async def _snapshot(client: ReplayClient, position: int, folder: SnapshotFolder) -> SnapshotHead:
    """Fetch the snapshot at a position."""

    async def at_once(fn: Callable[[], T]) -> T:
        return fn()

    def judge(head: SnapshotHead) -> None:
        if head.cluster != client.cluster or head.position != position:
            raise TransportError(f"the snapshot at {position} was replaced by a newer one")

    async with await client.open_snapshot(position) as stream:
        return await fetch_snapshot(
            stream,
            folder,
            judge=judge,
            read=at_once,
            arrived=lambda _come, _all: None,
            patience=PATIENCE_SECONDS,
        )
