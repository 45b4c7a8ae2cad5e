"""Readers of the committed log: members that lie, and what is not committed."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import WireError
from quorate.node.readers.replay_client import ReplayClient, fetch
from quorate.transport import (
    PROTOCOL_VERSION,
    Address,
    BackupQuery,
    BackupResponse,
    CommitPosition,
    Connection,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    LogBatch,
    Message,
    ReplayRequest,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.streams import first_message, send_all
from quorate.transport.testing import MemoryNetwork
from tests.support.peers import batch, log
from tests.support.script import open_script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from trio.testing import MockClock

GOOD = [LogBatch(3, 0, each) for each in log((0, 96), (2, 192), (3, 288))]


def standing(member: int, *, leader: int = 0, start: int = 0, end: int = 288) -> BackupResponse:
    return BackupResponse(member, leader, 3, start, end)


async def serve(
    said: Message, messages: Sequence[Message], asked: list[Message], connection: Connection
) -> None:
    """Be a member that says what a test has written for it."""
    _, decoder, rest = await first_message(connection)
    await send_all(connection, encode(HelloReply(-1, HelloStatus.ACCEPTED, "", 0)))
    stream = FrameStream(connection, decoder, rest)
    assert isinstance(await stream.receive(), BackupQuery)
    await stream.send(said)
    if request := await stream.receive():
        asked.append(request)
        for message in messages:
            await stream.send(message)
        await stream.receive()


@asynccontextmanager
async def members(
    *scripts: tuple[Message, Sequence[Message]],
) -> AsyncGenerator[tuple[ReplayClient, list[list[Message]]]]:
    network = MemoryNetwork(random.Random(0))
    asked: list[list[Message]] = [[] for _ in scripts]
    addresses = [Address(f"h{i}", 7000) for i in range(len(scripts))]
    async with trio.open_nursery() as nursery:
        for script, heard, address in zip(scripts, asked, addresses, strict=True):
            handler = partial(serve, *script, heard)
            await nursery.start(network.host(address.host).serve, address, handler)
        yield ReplayClient("test", addresses, network=network.host("reader")), asked
        nursery.cancel_scope.cancel()


async def test_a_follower_with_the_most_log_is_preferred(autojump_clock: MockClock) -> None:
    scripts = [
        (standing(0), GOOD),
        (standing(1, end=192), GOOD),
        (standing(2), GOOD),
    ]
    async with members(*scripts) as (client, asked):
        assert [said.member_id for said in await client.ask()] == [2, 1, 0]
        found = await fetch(client, 0, 288, 1 << 20)
        assert [each.data for each in found] == [each.batch for each in GOOD]
        assert asked == [[], [], [ReplayRequest(0, 288)]]


async def test_the_leader_will_do_and_so_will_whoever_has_the_log(
    autojump_clock: MockClock,
) -> None:
    scripts = [(standing(0), GOOD), (standing(1, start=96), GOOD), (standing(2, start=96), GOOD)]
    async with members(*scripts) as (client, asked):
        assert len(await fetch(client, 0, 288, 1 << 20)) == 3
        assert asked == [[ReplayRequest(0, 288)], [], []]


async def test_who_knows_no_leader_is_asked_last_and_a_standby_first(
    autojump_clock: MockClock,
) -> None:
    standby = BackupResponse(4, 0, 3, 0, 192, standby=True)
    astray = BackupResponse(3, -1, 3, 0, 960, standby=True)
    scripts = [(each, GOOD) for each in (astray, standing(0), standing(1), standby)]
    async with members(*scripts) as (client, _):
        assert [said.member_id for said in await client.ask()] == [4, 1, 0, 3]


async def test_a_reader_takes_no_more_than_it_wants(autojump_clock: MockClock) -> None:
    async with members((standing(0), GOOD)) as (client, _):
        assert len(await fetch(client, 0, 288, 100)) == 2
        assert len(await fetch(client, 0, 97, 1 << 20)) == 2
        assert await fetch(client, 288, 1 << 30, 1 << 20) == []


LOG = log((0, 96), (0, 192), commit=96)
DAMAGED = bytearray(GOOD[1].batch)
DAMAGED[80] ^= 1
LIES: dict[str, list[Message]] = {
    "damaged": [GOOD[0], LogBatch(3, 0, bytes(DAMAGED))],
    "a hole": [GOOD[0], GOOD[2]],
    "twice": [GOOD[0], GOOD[0]],
    "an older term": [GOOD[0], GOOD[1], LogBatch(3, 0, batch(1, 192, 288))],
    "a term to come": [GOOD[0], LogBatch(3, 0, batch(4, 96, 192))],
    "not a batch": [GOOD[0], LogBatch(3, 0, b"what?")],
    "another message": [GOOD[0], ReplayRequest(0, 0)],
    "committed too early": [LogBatch(3, 0, batch(0, 0, 96, commit=96))],
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_is_not_the_log_is_not_handed_on_and_another_member_is_asked(
    lie: str, autojump_clock: MockClock
) -> None:
    async with members((standing(1), LIES[lie]), (standing(2), GOOD)) as (client, asked):
        with pytest.raises(WireError):
            await fetch(client, 0, 288, 1 << 20)
        assert len(await fetch(client, 0, 288, 1 << 20)) == 3
        assert [len(each) for each in asked] == [1, 1]


async def test_silence_is_trouble_and_a_sign_of_life_is_not(autojump_clock: MockClock) -> None:
    signs = [CommitPosition(3, 288, 0, 0)] * 3
    async with members((standing(1), [GOOD[0], *signs])) as (client, _):
        with pytest.raises(trio.TooSlowError):
            await fetch(client, 0, 288, 1 << 20)
    async with members((standing(1), [*signs, *GOOD])) as (client, _):
        assert len(await fetch(client, 0, 288, 1 << 20)) == 3


async def test_a_member_sends_a_reader_only_what_is_committed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        hello = Hello("test", -1, PROTOCOL_VERSION, 7, StreamPurpose.BACKUP)
        stream = await open_stream(s.network.host("reader"), Address("h0", 7000), hello)
        await stream.send(BackupQuery())
        said = await stream.receive()
        assert isinstance(said, BackupResponse)
        assert (said.member_id, said.start_position, said.commit_position) == (0, 0, 96)
        await stream.send(ReplayRequest(0, 192))
        assert await stream.receive() == LogBatch(0, 0, LOG[0])
        for _ in range(3):  # it stands at the commit position, and says so
            sign = await stream.receive()
            assert isinstance(sign, CommitPosition)
            assert sign.log_position == 96
        stream.close()


async def test_a_part_of_the_log_begins_with_the_batch_that_covers_its_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(
        tmp_path, batches=[batch(0, 0, 96), batch(0, 96, 192), batch(0, 192, 288, commit=192)]
    ) as s:
        address = Address("h0", 7000)
        client = ReplayClient("test", [address], network=s.network.host("reader"))
        for position, begin in ((0, 0), (95, 0), (96, 96), (150, 96)):
            found = await fetch(client, position, 192, 1, covering=True)
            assert found[0].header.position == begin
        with pytest.raises(WireError, match="expected the batch at 95"):
            await fetch(client, 95, 192, 1)
        assert await fetch(client, 192, 300, 1, covering=True) == []
    async with members((standing(1), GOOD)) as (liar, _):
        with pytest.raises(WireError, match="expected the batch at 100"):
            await fetch(liar, 100, 288, 1 << 20, covering=True)
