"""A machine of the simulated world: a real member runs on it, loses its power, and runs again.

The member is the one of production, with its store in LMDB and every message through the wire
codec. What is simulated is under its seams: the network lies in memory, the disk writes on the trio
thread after a virtual latency, time and chance are injected.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import attrs
import trio

from ..node import Service, State, open_member
from ..storage import InlineExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ..node import Member, NodeConfig
    from ..storage.store import Write
    from ..transport import MemoryNetwork

EPOCH_MS = 1_700_000_000_000
"""Where the members' wall clocks stand when a run begins, in milliseconds since the epoch."""

S_co = TypeVar("S_co", bound=Service, covariant=True)


@attrs.frozen
class Place:
    """Where a service is made: what it may use of its machine.

    Args:
        cluster: name of the cluster.
        member_id: of which member it is the state.
        directory: for its own files, if it has any; they outlive crashes.
    """

    cluster: str
    member_id: int
    directory: Path


class ServiceFactory(Protocol[S_co]):
    """How a host gets its service, at each start: the class of a volatile one, or a function."""

    def __call__(self, place: Place) -> S_co:
        """Return the service as it is after a start."""
        ...


@attrs.define(eq=False)
class Host(Generic[S_co]):
    """A machine on which a member runs, again and again, with the same disk.

    Attributes:
        config: what the member is told, from its next start on.
        member: the member while it runs.
        disk: what writes its log, of this start or the last.
        fsync: seconds that a write takes, from the next start on.
        starts: how often it was started.
    """

    config: NodeConfig
    network: MemoryNetwork
    make_service: ServiceFactory[S_co]
    seed: object
    fsync: float
    member: Member | None = None
    disk: InlineExecutor[Write] | None = None
    starts: int = 0
    _service: S_co | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _gone: trio.Event = attrs.field(factory=trio.Event)

    @property
    def member_id(self) -> int:
        """Whose machine it is."""
        return self.config.member_id

    @property
    def name(self) -> str:
        """Its name in the network."""
        return self.config.own.host

    @property
    def running(self) -> Member:
        """The member, which must be running."""
        assert self.member is not None
        return self.member

    @property
    def service(self) -> S_co:
        """The state machine, of this start or the last; there must have been one."""
        assert self._service is not None
        return self._service

    @property
    def state(self) -> State:
        """Where the running member's election stands."""
        return State[self.running.status().state]

    async def run(
        self,
        attend: Callable[[Member], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the member until it is killed or fails; `attend` is called before it does anything.

        Raises:
            Exception: what ended it, if that was not the loss of its power.
        """
        self.starts += 1
        self._scope, self._gone = trio.CancelScope(), trio.Event()
        directory = self.config.directory / "service"
        self._service = self.make_service(Place(self.config.cluster, self.member_id, directory))
        name = f"{self.seed}/{self.member_id}/{self.starts}"
        try:
            with self._scope:
                async with open_member(
                    self.config,
                    self._service,
                    rng=random.Random(name),
                    clock_ms=lambda: EPOCH_MS + int(trio.current_time() * 1000),
                    network=self.network.host(self.name),
                    executor=self._make_disk,
                ) as member:
                    self.member = member
                    attend(member)
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.member = None
            self._gone.set()

    def cut_power(self) -> None:
        """Lose what is not written yet, and stop; then wait for :meth:`gone`."""
        if self.disk is not None:
            self.disk.cut_power()
        self._scope.cancel()

    async def gone(self) -> None:
        """Wait until the member does not run any more."""
        if self.member is not None:
            await self._gone.wait()

    def _make_disk(
        self, write: Callable[[Sequence[Write]], None], *, delivered: Callable[[], None]
    ) -> InlineExecutor[Write]:
        self.disk = InlineExecutor(write, delivered=delivered, latency=self.fsync)
        return self.disk
