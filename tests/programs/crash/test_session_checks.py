"""The torture's clients with sessions find out a store that does a command not just once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.histories.history import HistoryWriter
from quorate.histories.linearizability import Verdict
from quorate.torture.clients import Clients
from quorate.torture.plan import check_history
from quorate.torture.sessions import SessionClients
from tests.support.servers import FakeConnection, FakeStore, serving

if TYPE_CHECKING:
    from pathlib import Path

ENOUGH = 300


class Sessions(FakeStore):
    """A store with sessions, right; it loses every seventh answer. A subclass breaks it."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = 0
        self.kept: dict[tuple[bytes, bytes], bytes] = {}

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        await trio.lowlevel.checkpoint()
        match command:
            case [b"QUORATE.SESSION", b"OPEN", _]:
                self.sessions += 1
                return b":%d\r\n" % self.sessions
            case [b"QUORATE.SESSION", *_]:
                return b"+OK\r\n"
            case [b"QUORATE.ONCE", session, sequence, *words]:
                reply = await self.once(connection, (session, sequence), words)
                return b"-UNKNOWN lost\r\n" if self.commands % 7 == 0 else reply
            case _:
                return await super().answer(connection, command)

    async def once(
        self, connection: FakeConnection, stamp: tuple[bytes, bytes], words: list[bytes]
    ) -> bytes:
        self.commands += 1
        if stamp not in self.kept:
            self.kept[stamp] = await super().answer(connection, words)
        return self.kept[stamp]


class Repeating(Sessions):
    """Does a command again when it comes again, now and then."""

    async def once(
        self, connection: FakeConnection, stamp: tuple[bytes, bytes], words: list[bytes]
    ) -> bytes:
        if self.commands % 11 == 0:
            self.kept.pop(stamp, None)
        return await super().once(connection, stamp, words)


class Hiding(Sessions):
    """Does a command again, but answers as if it had not."""

    async def once(
        self, connection: FakeConnection, stamp: tuple[bytes, bytes], words: list[bytes]
    ) -> bytes:
        known, before = self.kept.get(stamp), self.state.get(words[1])
        reply = await super().once(connection, stamp, words)
        if known is not None and self.commands > ENOUGH and before == self.state[words[1]]:
            self.execute(words[0].decode().lower(), words[1], words[2:])
        return reply


class Forgetting(Sessions):
    """Loses what a key held, once, and answers what it should."""

    lost = False

    async def once(
        self, connection: FakeConnection, stamp: tuple[bytes, bytes], words: list[bytes]
    ) -> bytes:
        reply = await super().once(connection, stamp, words)
        if self.commands >= ENOUGH and not self.lost:
            self.lost = True
            del self.state[words[1]]
        return reply


class Ended(Sessions):
    """Ends a session that is in use."""

    async def once(
        self, connection: FakeConnection, stamp: tuple[bytes, bytes], words: list[bytes]
    ) -> bytes:
        self.commands += 1
        if self.commands > ENOUGH:
            return b"-NOSESSION it has ended\r\n"
        return await super().once(connection, stamp, words)


async def judge(store: Sessions, tmp_path: Path) -> tuple[SessionClients, list[str]]:
    """Let clients with sessions work on a store; give what was found."""
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        async with serving(store) as address, trio.open_nursery() as nursery:
            clients = Clients([address], HistoryWriter(file), seed=1)
            sessions = SessionClients(clients, seed=1)
            nursery.start_soon(sessions.run)
            while store.commands < 2 * ENOUGH and not clients.violations:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        async with serving(store) as address:
            clients.addresses = [address]
            await sessions.finish()
            found = dict(zip(clients.keys, await clients.read_all(), strict=True))
    return sessions, [*clients.violations, *sessions.check(found)]


async def test_a_right_store_is_found_right(tmp_path: Path) -> None:
    sessions, found = await judge(Sessions(), tmp_path)
    assert found == []
    assert check_history(tmp_path / "history.jsonl").verdict is Verdict.LINEARIZABLE
    assert sessions.sent > sessions.answered > ENOUGH / 2


@pytest.mark.parametrize("store", [Repeating, Hiding, Forgetting, Ended])
async def test_a_broken_store_is_found_out(store: type[Sessions], tmp_path: Path) -> None:
    _, found = await judge(store(), tmp_path)
    assert found
