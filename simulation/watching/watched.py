"""A service under observation: any state machine, wrapped so that what it does is seen.

Clients of the simulation number what they send. The wrapper removes the number before the service
gets a command, and puts the command's place in the log in front of the reply. That place is removed
again before a workload sees the reply. So the invariants know the place of every command, whatever
the service makes of the bytes. All applied commands and their replies go into a digest, which must
be equal on all members at equal positions.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Generic, Protocol, runtime_checkable

import trio

from ...node import Command
from ...node.state_machine.service import (
    PatientService,
    RuledService,
    SnapshotService,
    TermService,
)
from ..machines.host import Closing, S_co
from ..machines.scheduler import Jumping
from .facts import Applied, Holds, Point, Probed, Reached, Stamped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..machines.host import Place, ServiceFactory
    from .facts import Fact

_SERIAL: Final = struct.Struct(">Q")
_POINT: Final = struct.Struct(">qi")
_NOBODYS: Final = 2**64 - 1
DIGEST_BYTES: Final = 12
PROBE_EVERY: Final = 8
"""At one batch end of so many, chosen by its position, the service is asked what it holds."""


@runtime_checkable
class Stateful(Protocol):
    """A service that reports its state, so that members can be compared by it."""

    def state(self) -> bytes:
        """Return what stands for everything by which it will ever answer."""
        ...


def seal(serial: int, payload: bytes) -> bytes:
    """Number a command."""
    return _SERIAL.pack(serial) + payload


def unseal(reply: bytes) -> tuple[Point, bytes]:
    """Give where something took effect, and the service's reply."""
    return Point(*_POINT.unpack_from(reply)), reply[_POINT.size :]


def _opened(payload: bytes) -> tuple[int, bytes]:
    """Take the number off a command, if it has one."""
    if len(payload) < _SERIAL.size:
        return _NOBODYS, payload
    return _SERIAL.unpack_from(payload)[0], payload[_SERIAL.size :]


class Digests(Protocol):
    """Knows the digest of each position that anybody has reached."""

    def digest_at(self, position: int) -> bytes:
        """Return it."""
        ...


class Watched(Generic[S_co]):
    """A service that reports every call of its methods.

    Args:
        service: the real one.
        member: whose state it is.
        tell: receives the facts.
        digests: know that of the service's position.
        probes: queries whose answers must be equal on all members at equal positions.
        seconds: of virtual time that a command takes to be applied.
    """

    def __init__(
        self,
        service: S_co,
        member: int,
        tell: Callable[[Fact], None],
        *,
        digests: Digests,
        probes: Sequence[bytes] = (),
        seconds: float = 0.0,
    ) -> None:
        self.service = service
        self._member = member
        self._tell = tell
        self._digest = digests.digest_at(service.position)
        self._probes = probes
        self._seconds = seconds
        self._position = service.position
        self._digests = digests

    @property
    def position(self) -> int:
        """See `Service`."""
        return self.service.position

    @property
    def rules(self) -> int:
        """See `RuledService`."""
        return self.service.rules if isinstance(self.service, RuledService) else 0

    def apply(self, command: Command) -> bytes:
        """See `Service`."""
        serial, payload = _opened(command.payload)
        reply = self.service.apply(
            Command(
                payload,
                command.flags,
                command.session,
                command.sequence,
                command.term,
                command.position,
                command.index,
                command.timestamp_ms,
                principal=command.principal,
            )
        )
        if self._seconds:
            _take(self._seconds)
        point = Point(command.position, command.index)
        self._tell(Applied(self._member, serial, point, command.principal))
        noted = self._noted(command.payload, point, reply)
        if command.session:
            self._tell(Stamped(self._member, command.session, command.sequence, reply))
        return noted

    def _noted(self, payload: bytes, point: Point, reply: bytes) -> bytes:
        """Take an applied command into the digest; return its place and the reply."""
        place = _POINT.pack(point.position, point.index)
        text = b"%d %b %b %b" % (len(reply), self._digest, payload, reply)
        self._digest = blake2b(place + text, digest_size=DIGEST_BYTES).digest()
        return place + reply

    def begin_term(self, timestamp_ms: int) -> None:
        """See `TermService`."""
        if isinstance(self.service, TermService):
            self.service.begin_term(timestamp_ms)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """See `Service`."""
        self.service.advance(position, timestamp_ms)
        self._position = position
        self._tell(Reached(self._member, position, self._digest))
        if (position // 32) % PROBE_EVERY == 0:
            if isinstance(self.service, Stateful):
                self._tell(Holds(self._member, position, self.service.state()))
            for probe in self._probes:
                answer = self.service.query(probe, 0)
                self._tell(Probed(self._member, position, probe, answer))

    def put_off(self, *, wanted: bool) -> None:
        """See `PatientService`."""
        if isinstance(self.service, PatientService):
            self.service.put_off(wanted=wanted)

    def query(self, payload: bytes, flags: int) -> bytes:
        """See `Service`."""
        return _POINT.pack(self._position, -1) + self.service.query(payload, flags)

    def next_deadline_ms(self) -> int | None:
        """See `Service`."""
        return self.service.next_deadline_ms()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Service`."""
        await self.service.run(task_status=task_status)

    def close(self) -> None:
        """Close the service, if it wants that."""
        if isinstance(self.service, Closing):
            self.service.close()


class WatchedSnapshots(Watched[S_co]):
    """A service under observation that has snapshots."""

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """See `SnapshotService`."""
        assert isinstance(self.service, SnapshotService)
        return await self.service.save(task_status=task_status)

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """See `SnapshotService`; the digest comes from the member that made the snapshot."""
        assert isinstance(self.service, SnapshotService)
        await self.service.load(pieces, position, timestamp_ms)
        self._position, self._digest = position, self._digests.digest_at(position)


def _take(seconds: float) -> None:
    """Let time go on for everybody, as if this took so long."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, Jumping)
    clock.jump(seconds)


def watch(
    make: ServiceFactory[S_co],
    tell: Callable[[Fact], None],
    digests: Digests,
    *,
    probes: Sequence[bytes] = (),
    seconds: float = 0.0,
) -> ServiceFactory[Watched[S_co]]:
    """Have every service that is made be watched."""

    def make_watched(place: Place) -> Watched[S_co]:
        service = make(place)
        kind: type[Watched[S_co]] = Watched
        if isinstance(service, SnapshotService):
            kind = WatchedSnapshots
        return kind(service, place.member_id, tell, digests=digests, probes=probes, seconds=seconds)

    return make_watched
