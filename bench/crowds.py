"""Crowds as the benches use them: started, listened to, and checked against what is stored."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from quorate.node.gateway import MemberAddress
from quorate.respclient import open_resp

PROGRAM: Final = Path(__file__).parent / "crowd.py"
KEYS_AT_ONCE: Final = 100
NUMBER: Final = slice(16)


@attrs.frozen
class Told:
    """What a crowd has told.

    Args:
        lines: one for each second, see :mod:`crowd`.
        unanswered: clients that waited for a reply in vain at the end.
        clients: for each key the last number that was acknowledged, and the last that was sent.
    """

    lines: list[dict[str, Any]]
    unanswered: int
    clients: dict[str, tuple[int, int]]

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
        [sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE
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
    return Told(lines, last["unanswered"], last["clients"])


async def check_crowd(told: Told, address: MemberAddress) -> None:
    """See that each client's key has the value that was acknowledged last, or one sent after it.

    Raises:
        ValueError: one has not; something acknowledged is lost, or something made up.
    """
    names = list(told.clients)
    async with open_resp(address.host, address.client_port) as client:
        for start in range(0, len(names), KEYS_AT_ONCE):
            group = names[start : start + KEYS_AT_ONCE]
            values = await client.call("MGET", *group)
            assert isinstance(values, list)
            for name, value in zip(group, values, strict=True):
                acknowledged, sent = told.clients[name]
                number = int(value[NUMBER]) if isinstance(value, bytes) else 0
                if not acknowledged <= number <= sent:
                    raise ValueError(
                        f"{name} has value {number}; {acknowledged} was acknowledged, {sent} sent"
                    )
