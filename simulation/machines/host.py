"""A machine of the simulated world: a real member runs on it, loses its power, and runs again.

The member is the one of production, with its store in LMDB and every message through the wire
codec. The simulation replaces what lies under its seams: the network is in memory, the disk writes
on the trio thread after a virtual latency, time and chance are injected.

The life of a member ends in one of three ways:

- :meth:`Host.kill` is ``kill -9``: bytes already sent still arrive, and the kernel closes the
  connections.
- :meth:`Host.cut_power` is a power loss: no peer notices it, and the write in flight may be on the
  disk whole, in parts or not at all.
- The member itself fails.

:meth:`Host.pause` stops a member as ``SIGSTOP`` does.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, runtime_checkable

import attrs
import trio

from ...node import Service, State, open_member
from ...storage import Identity, VotingRight, VotingStatus, make_store
from .clock import Clock
from .disk import Disk, Fate
from .tasks import Pauses, StepTrap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import Self

    from ...node import Member, NodeConfig
    from ...transport.testing import MemoryNetwork
    from .disk import LaneFactory

LITTER: Final = ("log/notes.txt", "service/photo.jpg", "snapshots/snapshot-of-monday.bak")

S_co = TypeVar("S_co", bound=Service, covariant=True)


@attrs.frozen
class Place:
    """Where a service is made: what it may use of its machine.

    Args:
        cluster: name of the cluster.
        member_id: the member whose state machine it is.
        directory: for its own files, if it has any; they outlive crashes.
        executor: writes them on the simulated disk; fits ``executor`` of `keyvalue` and `storage`.
    """

    cluster: str
    member_id: int
    directory: Path
    executor: LaneFactory


class ServiceFactory(Protocol[S_co]):
    """How a host gets its service, at each start: the class of a volatile one, or a function."""

    def __call__(self, place: Place, /) -> S_co:
        """Return the service as it is after a start."""
        ...


@runtime_checkable
class Closing(Protocol):
    """A service that must be closed after its end."""

    def close(self) -> None:
        """Close it."""
        ...


@attrs.define(eq=False)
class Host(Generic[S_co]):
    """A machine on which a member runs, again and again, with the same disk.

    Attributes:
        config: the member's configuration, from its next start on.
        member: the member while it runs.
        disk: what its stores lie on.
        accompany: runs next to the member, in its process; None for nothing.
        clock: what it takes the time from.
        starts: how often it was started.
        paused: it stands still.
        littered: there are files in its folders that are not quorate's.
        retired: its member was removed from the cluster; nobody asks or starts it any more, unless
            to see what it does then.
        ended: is set when this life of the member is over, or the last; the next has its own.
    """

    config: NodeConfig
    network: MemoryNetwork
    make_service: ServiceFactory[S_co]
    seed: object
    pauses: Pauses
    disk: Disk
    accompany: Callable[[Member, Service], Awaitable[None]] | None = None
    clock: Clock = attrs.field(factory=Clock)
    member: Member | None = None
    starts: int = 0
    paused: bool = False
    littered: bool = False
    retired: bool = False
    ended: trio.Event = attrs.field(factory=trio.Event)
    _service: S_co | None = None
    _starting: bool = False
    _root: trio.lowlevel.Task | None = None
    _trap: StepTrap | None = None
    _resumed: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _up: trio.Event = attrs.field(factory=trio.Event)

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

    # --- lives

    def __attrs_post_init__(self) -> None:
        """Nothing runs yet."""
        self.ended.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing of the member runs, be it that it starts or that it ends."""
        return self._root is None and not self._starting

    @property
    def ending(self) -> bool:
        """Whether the member was killed and is not gone yet."""
        return self._root is not None and self._scope.cancel_called

    async def run(self, attend: Callable[[Member], None]) -> None:
        """Run the member until it is killed or fails; `attend` is called before it does anything.

        Raises:
            Exception: what ended it, if it was not killed.
        """
        self.starts += 1
        self.network.plug(self.name)
        self._scope, self.ended = trio.CancelScope(), trio.Event()
        self._root, self._starting = trio.lowlevel.current_task(), False
        folder = self.config.directory
        try:
            with self._scope:
                await self._live(folder, attend)
        finally:
            if self._trap is not None:
                self._trap.remove()
            self.disk.settle()
            self.resume()
            self.member = self._root = self._trap = None
            self._up.set()
            self.ended.set()

    async def _live(self, folder: Path, attend: Callable[[Member], None]) -> None:
        place = folder / "service"
        self._service = service = self.make_service(
            Place(self.config.cluster, self.member_id, place, self.disk.lane(place))
        )
        try:
            config = attrs.evolve(self.config, timeouts=self.clock.stretch(self.config.timeouts))
            async with open_member(
                config,
                service,
                rng=random.Random(f"{self.seed}/{self.member_id}/{self.starts}"),
                clock_ms=lambda: self.clock.now_ms(),  # noqa: PLW0108 - the clock may be replaced
                network=self.network.host(self.name),
                executor=self.disk.lane(folder / "log"),
                free=lambda _: self.disk.room,
            ) as member:
                self.member = member
                attend(member)
                self._up.set()
                if self.accompany is not None:
                    await self.accompany(member, service)
                await trio.sleep_forever()
        finally:
            if isinstance(service, Closing):
                service.close()

    # --- ends

    def kill(self) -> None:
        """Kill the process: what it has sent arrives, what it was writing is lost; see `gone`."""
        self.network.mute(self.name)
        self.disk.cut_power(Fate.LOST)
        self._end()

    def cut_power(self, fate: Fate = Fate.LOST) -> None:
        """Cut the power: nothing more is sent or written, and nobody hears of it; see `gone`."""
        self.network.unplug(self.name)
        self.disk.cut_power(fate)
        self._end()

    def _end(self) -> None:
        self._scope.cancel()
        self.resume()

    async def start(self, nursery: trio.Nursery, run: Callable[[Self], Awaitable[object]]) -> None:
        """Have `run` called with this host, which calls :meth:`run`; wait until the member is up.

        Or until it has ended before it was.
        """
        assert self.stopped, f"member {self.member_id} runs already"
        self._starting = True
        up = self._up = trio.Event()
        nursery.start_soon(run, self)
        await up.wait()

    async def gone(self) -> None:
        """Wait until the member does not run any more."""
        await self.ended.wait()

    def crash_after(self, steps: int, crash: Callable[[], None]) -> None:
        """Call `crash` before one of the member's next steps, be it at whichever await."""
        if self._root is not None and self._trap is None:
            self._trap = StepTrap(self._root, steps, crash)
            trio.lowlevel.add_instrument(self._trap)

    def disarm(self) -> None:
        """Take back a `crash_after` that has not come."""
        if self._trap is not None:
            self._trap.remove()
            self._trap = None

    def wipe(self) -> None:
        """Lose the disk; the member must be gone. An operator has it recover."""
        assert self.stopped, f"member {self.member_id} still runs"
        shutil.rmtree(self.config.directory)
        if self.littered:
            self.litter()
        rng = random.Random(f"{self.seed}/wiped/{self.member_id}/{self.starts}")
        self.make_store(rng.getrandbits(64), VotingRight.RECOVERING)

    def litter(self) -> None:
        """Put into the member's folders what people and file systems put there."""
        for path in self._litter:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"not quorate's")
        self.littered = True

    def deleted(self) -> list[str]:
        """Return what has gone of that."""
        return [path.name for path in self._litter if self.littered and not path.exists()]

    @property
    def _litter(self) -> list[Path]:
        return [self.config.directory / name for name in LITTER]

    def make_store(
        self, instance_id: int, kind: VotingRight, founders: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """Make the store, unless there is one, before the member runs."""
        identity = Identity(self.config.cluster, self.member_id, instance_id)
        make_store(self.config.directory / "log", identity, VotingStatus(kind, founders))

    # --- pauses

    def pause(self) -> None:
        """Stop the process where it is; time goes on."""
        if self._root is not None and not self.paused:
            self.paused, self._resumed = True, trio.Event()
            self.pauses.pause(self._root)

    def resume(self) -> None:
        """Let it go on: all timers that are over fire at once, and all that has come is there."""
        if self.paused and self._root is not None:
            self.pauses.resume(self._root)
            self.paused = False
            self._resumed.set()

    async def awake(self) -> None:
        """Wait until the process is not paused."""
        while self.paused:
            await self._resumed.wait()
