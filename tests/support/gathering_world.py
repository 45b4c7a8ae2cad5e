"""Tasks whose SETs are gathered, and a member that keeps the requests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from quorate.errors import RequestError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.gathering import Gathering
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import RESP3, PayloadParser
from quorate.node.requests.request import UNSTAMPED, Request, Stamp

OK = resp.OK


class Member:
    """Keeps the requests of each turn in a list; a single command is applied at once.

    Attributes:
        turns: the requests of each turn, until `take`.
        alone: payloads of commands that were not gathered.
        at_once: the result of every request, if it is set.
    """

    def __init__(self) -> None:
        self.turns: list[list[Request]] = []
        self.alone: list[bytes] = []
        self.at_once: bytes | RequestError | None = None

    def submit_all(self, requests: list[Request]) -> None:
        self.turns.append(requests)
        for request in requests:
            if self.at_once is not None:
                request.done(self.at_once)

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        assert (flags, stamp) == (RESP3, UNSTAMPED)
        self.alone.append(payload)
        return OK

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        raise NotImplementedError

    def take(self) -> list[Request]:
        """Return the requests of the one turn since the last call."""
        (requests,) = self.turns
        self.turns.clear()
        return requests


class Tasks:
    """Tasks that set keys, and the result of each."""

    def __init__(self, member: Member, gathering: Gathering, nursery: trio.Nursery) -> None:
        self.member = member
        self.kv = KeyValue(member, gathering)
        self.results: dict[str, bool | RequestError | str] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._over = set[str]()
        self._nursery = nursery

    async def _set(self, key: str, value: str) -> None:
        with trio.CancelScope() as self._scopes[key]:
            try:
                self.results[key] = await self.kv.set(key, value)
            except RequestError as error:
                self.results[key] = error
        if self._scopes[key].cancelled_caught:
            self.results[key] = "cancelled"

    def set(self, *keys: str, value: str = "x") -> None:
        """Start a task for each key that sets it."""
        for key in keys:
            self._nursery.start_soon(self._set, key, value)

    def cancel(self, *keys: str) -> None:
        for key in keys:
            self._scopes[key].cancel()

    @property
    def waiting(self) -> list[str]:
        """Return the keys whose tasks still wait."""
        return [key for key in self._scopes if key not in self._over]

    async def seen(self) -> dict[str, bool | RequestError | str]:
        """Return the results since the last call."""
        await wait_all_tasks_blocked()
        results, self.results = self.results, {}
        self._over |= results.keys()
        return results


@asynccontextmanager
async def tasks_at(member: Member, request_bytes: int = 1 << 20) -> AsyncGenerator[Tasks]:
    """Yield tasks whose SETs are gathered; tasks that still wait at the end are cancelled."""
    gathering = Gathering(member, request_bytes)
    async with trio.open_nursery() as running, trio.open_nursery() as nursery:
        await running.start(gathering.run)
        yield Tasks(member, gathering, nursery)
        nursery.cancel_scope.cancel()
        running.cancel_scope.cancel()


def keys_of(request: Request) -> list[str]:
    """Return the keys that a request sets."""
    commands = PayloadParser().parse_untrusted(request.payload)
    assert all(len(command) == 3 for command in commands)
    return [key.decode() for _, key, _ in commands]
