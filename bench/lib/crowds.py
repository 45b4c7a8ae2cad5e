"""Starts crowds of clients, reads their results, and checks these against the members' stores."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from bench.lib.acknowledged import Numbers, numbered
from bench.lib.checking import Member, Stretch, check_stretch
from quorate.node.requests.status import MemberAddress


@attrs.frozen
class Told:
    """The results of a crowd.

    Args:
        lines: one line for each second, see :mod:`crowd`.
        unanswered: number of clients that had no reply at the end.
        clients: for each key, the numbers sent and those not acknowledged.
    """

    lines: list[dict[str, Any]]
    unanswered: int
    clients: dict[bytes, Numbers]

    @property
    def errors(self) -> dict[str, int]:
        """Return the number of error replies by code."""
        found: dict[str, int] = {}
        for line in self.lines:
            for code, count in line["errors"].items():
                found[code] = found.get(code, 0) + count
        return found

    @property
    def dropped(self) -> int:
        """Commands whose connection ended in place of a reply."""
        return sum(int(line["dropped"]) for line in self.lines)

    @property
    def acknowledged(self) -> int:
        """Commands that were done."""
        return sum(int(line["answers"]) for line in self.lines) - sum(self.errors.values())


async def run_crowd(
    port: int,
    clients: int,
    seconds: float,
    *,
    value_bytes: int = 256,
    name: str = "crowd",
    until: trio.Event | None = None,
) -> Told:
    """Load a member with clients for some seconds, or until an event."""
    words = map(str, (port, clients, seconds, value_bytes, name))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "bench.lib.crowd", *words], stdout=subprocess.PIPE
    )
    assert process.stdout is not None

    async def end() -> None:
        if until is not None:
            await until.wait()
            process.terminate()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            text = b"".join([chunk async for chunk in process.stdout])
            nursery.cancel_scope.cancel()
        if await process.wait():
            raise RuntimeError(f"crowd.py ended with exit status {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
    *lines, last = map(json.loads, text.decode().splitlines())
    numbers = {
        key.encode(): Numbers(sent, set(unanswered))
        for key, (sent, unanswered) in last["clients"].items()
    }
    return Told(lines, last["unanswered"], numbers)


async def check_crowd(
    told: Told,
    members: Sequence[Member],
    stretch: Stretch,
    value_bytes: int = 256,
    addresses: Sequence[MemberAddress] = (),
) -> None:
    """Check that all logs have each acknowledged value, and all states the last one.

    Args:
        told: the results of the crowd.
        members: the members; they have applied everything.
        stretch: the part of the log that holds all writes of the crowd.
        value_bytes: length of each value.
        addresses: addresses of more members; only their states are read.

    Raises:
        LostError: an acknowledged value is missing, or there is one that no client sent.
    """
    await check_stretch(members, stretch, numbered(told.clients, value_bytes), addresses)
