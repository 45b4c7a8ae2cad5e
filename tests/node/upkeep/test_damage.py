"""Damage in a member's own recording is mended from others; else it stops, and never sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import lmdb
import pytest
import trio

from quorate.errors import DamagedRecordError, LostStoreError, StorageError, leaves
from quorate.keyvalue.service import KeyValueService
from quorate.node.protocol.ballots import consider
from quorate.simulation import Ledger
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.observer import Observer
from quorate.simulation.world import Setting, open_world
from quorate.storage import (
    EMPTY_LOG,
    Entry,
    EntryKind,
    decode_header_untrusted,
    encode_batch,
    verify,
)
from quorate.storage.log.log_table import KEY
from quorate.transport import CatchupPosition, ReplayRequest, RequestVote, StreamPurpose, VoteReason
from tests.node.protocol.test_safety import LOG
from tests.support.damage import back, filled, spoil, whole_again, write
from tests.support.peers import ME
from tests.support.script import Script, open_script

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.machines.host import Place
    from quorate.transport import FrameStream, Hello


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
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_script(tmp_path, batches=LOG) as s:
        await damage_first_batch(s)
        ended = trio.Event()

        async def take(hello: Hello, stream: FrameStream) -> None:
            if hello.purpose is StreamPurpose.CATCHUP:  # else it asks us for what it lacks
                assert await stream.receive() is None
                ended.set()

        setattr(s.peers[1], "on_stream", take)  # noqa: B010 - of this one peer
        term = await s.lead()
        s.peers[1].say(CatchupPosition(term, 0, 1, "h1:7000"))
        await ended.wait()
        assert "asking the other members for it" in caplog.text


async def test_a_member_does_not_replay_a_damaged_record(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with stops():
        async with open_script(tmp_path, batches=LOG) as s:
            await damage_first_batch(s)
            stream = await s.peers[1].links.open_stream(ME, purpose=StreamPurpose.REPLAY)
            await stream.send(ReplayRequest(0, 192))
            assert await stream.receive() is None
            await trio.sleep(5.0)


# What others have ---------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
async def test_what_is_damaged_is_fetched_from_another_member_and_applied(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, *, missing: bool
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await filled(world, 20)
        for victim in (world.others(leader)[0], leader):
            await world.kill(victim)
            folder = world.hosts[victim].config.directory
            places = spoil(folder, [3, 4, 9], missing=missing)
            assert not verify(folder / "log").ok
            await back(world, victim)
            for place in places:
                assert f"at {place} is mended, by member" in caplog.text
            assert world.hosts[victim].running.repair.count >= 2
            await whole_again(world, victim)


async def test_a_member_that_sends_its_log_mends_it_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        late, other = world.others(leader)
        await world.kill(late)
        await write(world, leader, 20)
        await world.kill(leader)
        spoil(world.hosts[leader].config.directory, [5])
        world.hosts[leader].make_service = lambda _place: Ledger()
        await back(world, leader, late)
        await world.kill(*world.hosts)
        for i in (leader, late, other):
            assert verify(world.hosts[i].config.directory / "log").ok


# The end of the log -------------------------------------------------------------------------------


async def test_a_damaged_end_comes_back_from_another_member(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path, observer=Observer([0, 1, 2])) as world:
        leader = await filled(world, 20)
        for victim in (world.others(leader)[0], leader):
            await world.kill(victim)
            folder = world.hosts[victim].config.directory
            spoil(folder, [-2, -1])
            await back(world, victim)
            assert f"member {victim}: the end of the log is mended" in caplog.text
            await whole_again(world, victim)


async def test_who_has_lost_the_end_of_its_log_votes_for_nobody_who_lacks_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It had acknowledged an entry that its leader has committed, and a third lacks."""
    async with open_ledgers(tmp_path, observer=Observer([0, 1, 2])) as world:
        leader = await filled(world, 5)
        holder, late = world.others(leader)
        await world.kill(late)
        assert await world.attempt(leader, b"last")
        await world.kill(leader, holder)
        spoil(world.hosts[holder].config.directory, [-1])
        for _ in range(2):  # it remembers
            await world.start(holder, late)
            await trio.sleep(20.0)
            assert world.leaders() == []
            behind = world.hosts[late].running.state.log_end
            asked = RequestVote(behind.term, behind.position, 99, late, even_if_behind=True)
            voter = world.hosts[holder].running.voter.view(0)
            decision = consider(asked, voter, in_ballot=True, leader_alive=False)
            damage = world.hosts[holder].running.status().damage
            assert damage.startswith(f"the end of its log, from {behind.position} on, was damaged")
            assert decision.reason is VoteReason.LOG_NEWER  # not even if an operator asks for it
            await world.kill(holder, late)
        await world.start(late, leader)
        assert await world.settled() == leader
        await world.start(holder)
        await equal(world, [*(b"%d" % i for i in range(5)), b"last"])
        assert world.hosts[holder].running.election.may_stand
        assert not world.hosts[holder].running.status().damage


async def test_a_damaged_end_that_nobody_else_has_gives_way_to_a_new_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It was not committed: the others elect one of them without this member."""
    async with open_ledgers(tmp_path, observer=Observer([0, 1, 2])) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"one")
        await equal(world)
        world.isolate(leader)
        assert not await world.attempt(leader, b"nobody gets it")
        await world.kill(*world.hosts)
        world.mend()
        spoil(world.hosts[leader].config.directory, [-1])
        await world.start()
        assert await world.settled() != leader
        assert await world.attempt(await world.leader(), b"two")
        await equal(world, [b"one", b"two"])
        store = world.hosts[leader].running.store
        assert store.recorded.lost == EMPTY_LOG


async def test_tables_that_are_ahead_of_a_damaged_end_are_not_applied_to_twice(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def make(place: Place) -> KeyValueService:
        return KeyValueService.open(
            place.directory,
            cluster=place.cluster,
            member_id=place.member_id,
            executor=place.executor,
        )

    async with open_world(tmp_path, make, Setting(), observer=Observer([0, 1, 2])) as world:
        await world.start()
        leader = await world.settled()
        incr = b"*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n"
        for _ in range(3):
            await world.command(leader, incr)
        victim = world.others(leader)[0]
        applier = world.hosts[victim].running.applier
        await world.until(lambda: applier.applied_position == applier.commit_position)
        await world.hosts[victim].service.flush()
        ahead = world.hosts[victim].service.position
        await world.kill(victim)
        spoil(world.hosts[victim].config.directory, [-1])
        await world.start(victim)
        await world.settled()
        assert await world.command(leader, incr) == b":4\r\n"
        store = world.hosts[victim].running.store
        assert store.start_position < ahead < store.append_position
        get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
        await world.until(lambda: world.hosts[victim].running.stale_query(get, 0) == b"$1\r\n4\r\n")


async def test_a_member_alone_stops_at_a_damaged_end_and_says_what_to_type(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1, contain=True) as world:
        await world.start()
        await world.settled()
        await world.command(0, b"one")
        await world.kill(0)
        spoil(world.hosts[0].config.directory, [-1])
        await world.start(0)
        (failure,) = leaves(world.failures[0])
        assert isinstance(failure, DamagedRecordError)
        assert "quorate restore --from" in str(failure)


async def test_a_lost_vote_ends_the_member_and_it_says_what_to_type(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, contain=True) as world:
        await world.start()
        leader = await world.settled()
        for victim, row in zip(
            world.hosts, (b"node_state", b"standing", b"node_state"), strict=True
        ):
            if victim == leader:
                continue
            await world.kill(victim)
            folder = world.hosts[victim].config.directory
            with lmdb.open(str(folder / "log"), max_dbs=8, map_size=1 << 30) as environment:
                db = environment.open_db(b"meta", create=False)
                with environment.begin(write=True) as txn:
                    found = txn.get(row, db=db)
                    assert found is not None
                    txn.put(row, bytes([found[0] ^ 1, *found[1:]]), db=db)
            await world.start(victim)
            (failure,) = leaves(world.failures[victim])
            assert isinstance(failure, LostStoreError)
            assert row.decode() in str(failure)
            assert f"type: quorate recover {folder}/node.toml" in str(failure)


async def test_a_member_stops_if_nobody_has_what_is_damaged(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, contain=True) as world:
        await filled(world, 20)
        await world.kill(*world.hosts)
        for host in world.hosts.values():
            spoil(host.config.directory, [4])
        await world.start()
        await world.until(lambda: len(world.failures) == 3)
        for failure in world.failures.values():
            assert damage_of(failure) is not None


def damage_of(failure: BaseException) -> DamagedRecordError | None:
    if isinstance(failure, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", failure).exceptions
        return next((found for each in inner if (found := damage_of(each))), None)
    return failure if isinstance(failure, DamagedRecordError) else None


async def test_what_does_not_fit_is_not_put_in_its_place(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await filled(world, 5)
        store = world.hosts[0].running.store
        batches = list(store.scan(0))
        header = decode_header_untrusted(batches[2])
        for term, position, size in (
            (header.term, header.position, 500),
            (header.term + 7, header.position, 1),
            (header.term, header.end + 32, 1),
        ):
            batch = encode_batch(
                [Entry(EntryKind.COMMAND, bytes(size))],
                term=term,
                position=position,
                timestamp_ms=0,
                commit_position=0,
            )
            with pytest.raises(StorageError):
                await store.replace(batch)
        await store.replace(batches[2])
        await store.replace(batches[-1])
        assert list(store.scan(0)) == batches
