"""The demo's clients: they write every file of a folder, whatever happens to the members.

Several workers take one file after another, each over a connection to a different member. A write
counts when the reply is OK. After any other outcome (a lost connection, an error, no answer in
time) the write may or may not have happened. So the worker goes to the next member and writes the
same file again; it is safe to repeat SET. Nothing else is needed to get through an election.
"""

import itertools
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from ..client.resp import RespClient, RespError
from ..node.requests.status import MemberAddress

__all__ = ["Loader", "compare", "library_files"]

WORKERS: Final = 8
ANSWER_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.02
GIVE_UP_SECONDS: Final = 60.0
"""A write that takes longer fails the demo. Smaller: a slow election fails it. Larger: the user
waits longer for the bad news."""
COMPARE_AT_ONCE: Final = 64


def library_files(root: Path) -> list[str]:
    """Return all Python files below a folder, without installed packages, as sorted paths."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in {"site-packages", "dist-packages"}]
        found += [
            os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118 - os.walk yields text
            for name in names
            if name.endswith(".py") and os.path.isfile(os.path.join(folder, name))  # noqa: PTH113, PTH118
        ]
    return sorted(found)


class Loader:
    """Writes files into the cluster.

    Args:
        root: the folder.
        files: relative paths in it, which are also the keys.
        addresses: the members.
    """

    def __init__(
        self, root: Path, files: Sequence[str], addresses: Sequence[MemberAddress]
    ) -> None:
        self._root = root
        self._left = deque(files)
        self._addresses = addresses
        self._changed = trio.Event()
        self.files = len(files)
        self.bytes = 0
        self.retried = 0
        self.acknowledged: list[float] = []
        """When each acknowledged write was answered; trio's clock."""

    async def run(self) -> None:
        """Write all files; return when every write has been acknowledged.

        Raises:
            TimeoutError: a write was not acknowledged for a minute.
        """
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS):
                nursery.start_soon(self._work, number)

    async def reached(self, count: int) -> None:
        """Wait until `count` writes have been acknowledged."""
        while len(self.acknowledged) < count:
            await self._changed.wait()

    def longest_gap(self, since: float) -> float:
        """Return the longest time after `since` without an acknowledged write, in seconds."""
        times = [since, *(at for at in self.acknowledged if at > since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    async def _work(self, number: int) -> None:
        writer = _Writer(self._addresses, number)
        try:
            while self._left:
                name = self._left.popleft()
                value = (self._root / name).read_bytes()
                with trio.move_on_after(GIVE_UP_SECONDS) as giving_up:
                    while not await writer.write(os.fsencode(name), value):
                        self.retried += 1
                        await trio.sleep(RETRY_SECONDS)
                if giving_up.cancelled_caught:
                    raise TimeoutError(f"{name} was not acknowledged for {GIVE_UP_SECONDS:g} s")
                self._count(len(value))
        finally:
            writer.close()

    def _count(self, size: int) -> None:
        self.acknowledged.append(trio.current_time())
        self.bytes += size
        self._changed.set()
        self._changed = trio.Event()


class _Writer:
    """One connection, to the next member after each failure."""

    def __init__(self, addresses: Sequence[MemberAddress], first: int) -> None:
        self._addresses = itertools.islice(itertools.cycle(addresses), first, None)
        self._client: RespClient | None = None

    async def write(self, key: bytes, value: bytes) -> bool:
        """Return whether the write was acknowledged; if not, its outcome is unknown."""
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                if self._client is None:
                    address = next(self._addresses)
                    self._client = await RespClient.connect(address.host, address.client_port)
                return await self._client.call(b"SET", key, value) == b"OK"
            except (OSError, RespError):
                pass
        self.close()
        return False

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None


async def compare(root: Path, files: Sequence[str], address: MemberAddress) -> list[str]:
    """Read every key from one member's own state, and return the names of the files that differ.

    Raises:
        OSError: the connection to the member is lost.
        RespError: the member refuses to read from its own state.
    """
    client = await RespClient.connect(address.host, address.client_port)
    different: list[str] = []
    try:
        await client.call("READONLY")
        for start in range(0, len(files), COMPARE_AT_ONCE):
            names = files[start : start + COMPARE_AT_ONCE]
            replies = await client.pipeline([(b"GET", os.fsencode(name)) for name in names])
            different += [
                name
                for name, reply in zip(names, replies, strict=True)
                if reply != (root / name).read_bytes()
            ]
    finally:
        client.close()
    return different
