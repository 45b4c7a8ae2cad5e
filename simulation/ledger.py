"""The simplest service: a list of all commands, in order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..node import Command
from .world import Setting, World, open_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from .machines.host import Place
    from .observer import Observer


class Ledger:
    """A volatile service: it remembers every command, and replies with their number.

    Attributes:
        commands: the applied commands, in order.
        timestamp_ms: log time.
        deadline_ms: set by a test that wants log time to advance; None once it is reached.
    """

    def __init__(self, place: Place | None = None, /) -> None:
        del place
        self.commands: list[Command] = []
        self.timestamp_ms = 0
        self.deadline_ms: int | None = None

    @property
    def position(self) -> int:
        """Always 0: it is volatile."""
        return 0

    def apply(self, command: Command) -> bytes:
        """Remember the command; reply with the number of commands."""
        self.commands.append(command)
        return b"%d" % len(self.commands)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note the log's time."""
        del position
        self.timestamp_ms = timestamp_ms
        if self.deadline_ms is not None and self.deadline_ms <= timestamp_ms:
            self.deadline_ms = None

    def query(self, payload: bytes, flags: int) -> bytes:
        """Reply with the number of commands."""
        del payload, flags
        return b"%d" % len(self.commands)

    def next_deadline_ms(self) -> int | None:
        """Return the deadline that the test has set."""
        return self.deadline_ms

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do nothing in the background."""
        task_status.started()
        await trio.sleep_forever()

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Yield the commands, a hundred in each piece."""
        commands = [*self.commands]
        task_status.started()
        return (
            json.dumps([_plain(command) for command in commands[start : start + _PIECE]]).encode()
            for start in range(0, len(commands), _PIECE)
        )

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the commands by those of a snapshot."""
        del position
        found: list[Command] = []
        for piece in pieces:
            for payload, *rest in json.loads(piece):
                found.append(Command(bytes.fromhex(payload), *rest))
            await trio.lowlevel.checkpoint()
        self.commands, self.timestamp_ms = found, timestamp_ms

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads of all commands, in order."""
        return [command.payload for command in self.commands]


_PIECE: Final = 100


def _plain(command: Command) -> list[object]:
    payload, *rest = attrs.astuple(command)
    return [payload.hex(), *rest]


async def equal(
    world: World[Ledger], payloads: list[bytes] | None = None, *, within: float = 30.0
) -> None:
    """Wait until all running members have applied the same commands (these, if given).

    Witnesses apply nothing.

    Raises:
        trio.TooSlowError: the wait takes too long.
    """
    alive = [host for host in world.hosts.values() if host.member and not host.config.own.witness]
    want = payloads
    if want is None:
        want = max((host.service.payloads for host in alive), key=len)
    await world.until(lambda: all(host.service.payloads == want for host in alive), within=within)


def open_ledgers(
    directory: Path,
    members: int = 3,
    *,
    seed: object = 0,
    contain: bool = False,
    standbys: int = 0,
    witnesses: int = 0,
    observer: Observer | None = None,
) -> AbstractAsyncContextManager[World[Ledger]]:
    """Open a world of ledgers; see `world.open_world` and `world.Setting`."""
    setting = Setting(
        members=members, standbys=standbys, witnesses=witnesses, seed=seed, contain=contain
    )
    return open_world(directory, Ledger, setting, observer=observer)


class Book(Ledger):
    """A ledger that reports when it has applied a batch.

    Attributes:
        patient: whether it was asked to defer work that can wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_advance: Callable[[int], None] = lambda _: None
        self.patient = False

    def put_off(self, *, wanted: bool) -> None:
        """See `PatientService`."""
        self.patient = wanted

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Report that a batch was applied."""
        super().advance(position, timestamp_ms)
        self.on_advance(position)
