"""What a store expects of an executor: ordered durable writes, and blocking reads.

Two implementations exist: `ThreadExecutor` in `group_commit`, and `InlineExecutor` in
:mod:`quorate.storage.testing`, which has no thread and serves virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Never

    import trio

    from ...metrics import Histogram
    from .journal_writer import Span

MAX_GROUP_JOBS: Final = 256
"""Most jobs of one group. With more, the first job of a group waits for longer, and one transaction
gets longer; with fewer, more syncs. (Callers bound the bytes.)"""


class Job(Protocol):
    """Something to write; what it is, only its submitter and `write` know."""

    @property
    def done(self) -> Callable[[], None]:
        """Called on the trio thread once the job is durable; it must not raise."""
        ...


J = TypeVar("J", bound=Job)
F = TypeVar("F", bound=Job)
T = TypeVar("T")


class Executor(Protocol[J]):
    """Ordered writes in groups, and reads that never wait for them.

    Attributes:
        syncs: how many seconds it took to make each group durable.
    """

    syncs: Histogram

    # Not a coroutine: a leader submits a batch without a task switch.
    def submit(self, job: J) -> None:
        """Queue a job; returns at once. May be called before `run` has begun."""
        ...

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """Let groups that only need bytes written to a file bypass `write`.

        Args:
            begin: returns the bytes whose writing makes a group durable, or None if the group
                needs `write`. Called on the trio thread, while no group is being written.
            end: called there with the outcome: 0, or an errno, for which it raises.
        """
        ...

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn`, which blocks, without holding up the event loop; return its result."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None]) -> Never:
        """Write until cancelled; once in an executor's life.

        Raises:
            BaseException: whatever `write`, or `end` of spans, raised.
        """
        ...


# A factory, since a store knows what `write` is only once it is open.
class ExecutorFactory(Protocol[F]):
    """Makes the executor of a store: `ThreadExecutor`, or `InlineExecutor` for virtual time."""

    def __call__(
        self,
        write: Callable[[Sequence[F]], None],
        *,
        delivered: Callable[[], None],
        idle: Callable[[], None] = ...,
    ) -> Executor[F]:
        """Return an executor that calls `write` with each group."""
        ...


def nothing() -> None:
    """Do nothing: a callback that nobody needs."""
