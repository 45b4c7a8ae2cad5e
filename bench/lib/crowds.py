"""Crowds as the benches use them: started, listened to, and checked against what is stored."""

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
    """What a crowd has told.

    Args:
        lines: one for each second, see :mod:`crowd`.
        unanswered: clients that waited for a reply in vain at the end.
        clients: for each key what was sent, and what of it was not acknowledged.
    """

    lines: list[dict[str, Any]]
    unanswered: int
    clients: dict[bytes, Numbers]

    @property
    def errors(self) -> dict[str, int]:
        """Error replies, by their code."""
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
    """Have so many clients load a member for so long, or until something happens."""
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
    """See that all members have each value that was acknowledged, and hold the last one.

    Args:
        told: what the crowd has told.
        members: all of them; they have applied everything.
        stretch: of the log, since before the crowd.
        value_bytes: of each value.
        addresses: of more members, of which the state alone is looked at.

    Raises:
        LostError: something acknowledged is lost, or something made up.
    """
    await check_stretch(members, stretch, numbered(told.clients, value_bytes), addresses)
