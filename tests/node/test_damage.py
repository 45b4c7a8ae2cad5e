"""A member that meets damage in its own recording stops: it neither sends nor skips it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lmdb
import pytest
import trio

from quorate.errors import DamagedRecordError
from quorate.simulation.peers import ME
from quorate.simulation.script import Script, open_script
from quorate.storage.recording import KEY
from quorate.transport import CatchupPosition, ReplayRequest, StreamPurpose

from .test_safety import LOG

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.transport import FrameStream


async def damage_first_batch(s: Script) -> None:
    """Flip a bit while the member is down; the last batch, which is checked at a start, is good."""
    s.pull_plug()
    await s.power_is_off()
    with lmdb.open(str(s.config.directory / "log"), max_dbs=8, map_size=1 << 30) as environment:
        db = environment.open_db(b"log", create=False)
        with environment.begin(write=True) as txn:
            key = KEY.pack(0, 0)
            found = txn.get(key, db=db)
            assert found is not None
            txn.put(key, bytes([*found[:-1], found[-1] ^ 1]), db=db)
    await s.start()


def stops() -> pytest.RaisesGroup[DamagedRecordError]:
    words = "member 0: damaged record at term 0, position 0: batch: checksum"
    return pytest.RaisesGroup(
        pytest.RaisesExc(DamagedRecordError, match=words), flatten_subgroups=True
    )


async def test_a_leader_does_not_catch_a_follower_up_from_a_damaged_record(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with stops():
        async with open_script(tmp_path, batches=LOG) as s:
            await damage_first_batch(s)

            async def take(_hello: object, stream: FrameStream) -> None:
                assert await stream.receive() is None

            setattr(s.peers[1], "on_stream", take)  # noqa: B010 - of this one peer
            term = await s.lead()
            s.peers[1].say(CatchupPosition(term, 0, 1, "h1:7000"))
            await trio.sleep(1.0)


async def test_a_member_does_not_replay_a_damaged_record(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with stops():
        async with open_script(tmp_path, batches=LOG) as s:
            await damage_first_batch(s)
            stream = await s.peers[1].links.open_stream(ME, purpose=StreamPurpose.REPLAY)
            await stream.send(ReplayRequest(0, 192))
            assert await stream.receive() is None
            await trio.sleep(1.0)
