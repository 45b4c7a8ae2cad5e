"""A store opened for reading only: for tools and exports, while the member runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .environment import Environment
from .reader import LogReader
from .state import MAX_DBS, Databases, StateView, load, load_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from .identity import Identity
    from .state import Recorded


class ReadOnlyStore(StateView):
    """The store; made by `open_readonly`. Its properties show what was durable at `refresh`.

    A damaged last batch does not hinder the opening: the log is then taken to end in front of
    it, and to be committed up to its start only, for want of a better witness.

    Attributes:
        identity: whose it is.
        environment: the LMDB environment.
        dbs: its sub-databases.
    """

    def __init__(
        self, environment: Environment, dbs: Databases, identity: Identity, recorded: Recorded
    ) -> None:
        super().__init__(recorded)
        self.identity = identity
        self.environment = environment
        self.dbs = dbs
        self._reader = LogReader(environment, dbs, identity.member_id)

    def refresh(self) -> None:
        """Read again what is durable now.

        Raises:
            StorageError: something of it is damaged.
        """
        self._recorded = _load(self.environment, self.dbs, self.identity)

    def boundary(self, position: int) -> int:
        """Return where the batch begins that covers `position`.

        That is the first kept position for one that is pruned, and the end for one behind it.
        """
        return self._reader.boundary(self._recorded, position)

    def scan(self, position: int, stop: int | None = None) -> Iterator[bytes]:
        """Yield the checked batches from `position` to `stop`, by default the end.

        Raises:
            PrunedError: `position` is below the first one kept.
            StorageError: no batch begins at `position`.
            DamagedRecordError: a batch is damaged or missing.
        """
        return self._reader.scan(self._recorded, position, stop)

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
        StoreBusyError: this very process has it open.
        StorageError: its tables are damaged.
    """
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    with environment.opening():
        dbs = environment.databases(Databases)
        identity = environment.read(lambda txn: load_identity(txn, dbs))
        return ReadOnlyStore(environment, dbs, identity, _load(environment, dbs, identity))


def _load(environment: Environment, dbs: Databases, identity: Identity) -> Recorded:
    return environment.read(lambda txn: load(txn, dbs, identity.member_id, lenient=True))
