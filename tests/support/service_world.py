"""A key-value service that a test feeds with log entries, as a member would."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from quorate.keyvalue.protocol import resp
from quorate.keyvalue.service import KeyValueService
from quorate.node.state_machine.service import Command
from quorate.storage.testing import InlineExecutor

START_MS = 1_900_000_000_000
BATCH_BYTES = 320

Line = str | Sequence[str | bytes]


def encode(*lines: Line) -> bytes:
    """Encode commands; text is split at blanks."""
    split = [line.split(" ") if isinstance(line, str) else line for line in lines]
    return b"".join(map(resp.encode_command, split))


def open_service(directory: Path, *, partition: bool = False) -> KeyValueService:
    return KeyValueService.open(
        directory, cluster="test", member_id=1, executor=InlineExecutor, partition=partition
    )


class Fed:
    """A service and the log that it is fed with, one batch for each entry.

    `service.run` need not run.
    """

    def __init__(self, service: KeyValueService) -> None:
        self.service = service
        self.position = service.position
        self.now = START_MS
        self.log: list[Command] = []

    def apply(self, *lines: Line, flags: int = 0) -> bytes:
        """Apply commands as one log entry, at the present time; return the reply."""
        command = Command(encode(*lines), flags, 0, 0, 1, self.position, 0, self.now)
        return self.replay(command)

    def replay(self, command: Command) -> bytes:
        """Apply an entry as a batch of its own; return the reply."""
        self.log.append(command)
        reply = self.service.apply(command)
        self.position = command.position + BATCH_BYTES
        self.service.advance(self.position, command.timestamp_ms)
        return reply

    def query(self, *lines: Line, flags: int = 0) -> bytes:
        return self.service.query(encode(*lines), flags)

    def pass_time(self, milliseconds: int) -> None:
        """Move log time by a batch without commands."""
        self.now += milliseconds
        self.position += BATCH_BYTES
        self.service.advance(self.position, self.now)


@asynccontextmanager
async def running(service: KeyValueService) -> AsyncGenerator[Fed]:
    """Run a service for the duration of the block, then stop and close it."""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            yield Fed(service)
            nursery.cancel_scope.cancel()
    finally:
        service.close()
