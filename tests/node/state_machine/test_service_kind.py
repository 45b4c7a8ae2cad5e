"""A store is of one kind of service for ever, and a cluster too."""

from __future__ import annotations

from contextlib import closing
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import ConfigurationError, StorageError, StoreMismatchError, leaves
from quorate.keyvalue.service import KeyValueService
from quorate.node.follower.snapshot_install import check_service_of
from quorate.node.state_machine.service import KEY_VALUE, OWN, kind_of
from quorate.node.store_opening import check_service
from quorate.simulation import Ledger
from quorate.simulation.ledger import open_ledgers
from quorate.storage import SnapshotReader, Store, open_readonly
from quorate.storage.lmdb.file_check import DATA_FILE
from quorate.storage.testing import InlineExecutor
from quorate.storage.tools.restore import plan_restore, restore

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


class Draws(Ledger):
    """A service that says what it is."""

    kind = "lottery"


def test_a_service_says_its_kind_or_is_one_of_ones_own() -> None:
    assert kind_of(Ledger()) == OWN
    assert kind_of(Draws()) == "lottery"
    assert KeyValueService.kind == KEY_VALUE


@pytest.mark.parametrize("kind", ["", "x" * 65])
def test_a_kind_is_a_few_words(kind: str) -> None:
    service = Ledger()
    service.kind = kind  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigurationError, match="expected 1 to 64 bytes"):
        kind_of(service)


async def test_a_store_is_refused_to_another_service_and_both_are_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, contain=True) as world:
        await world.start()
        leader = await world.settled()
        host, store = world.hosts[leader], world.hosts[leader].running.store
        assert store.recorded.service == OWN
        check_service(host.config, store, Ledger())
        with pytest.raises(StoreMismatchError, match=f"of {OWN!r}, opened with 'lottery'"):
            check_service(host.config, store, Draws())
        await world.kill(leader)
        host.make_service = lambda _place: Draws()
        await world.start(leader)
        (refused,) = leaves(world.failures.pop(leader))
        assert isinstance(refused, StoreMismatchError)
        host.make_service = lambda _place: Ledger()
        await world.start(leader)
        await world.settled()


async def test_a_new_member_with_another_service_gets_nothing(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        other = world.others(leader)[0]
        await world.wipe(other)
        assert await world.attempt(leader, b"x")
        world.hosts[other].make_service = lambda _place: Draws()
        await world.start(other)
        await trio.sleep(5.0)
        assert world.hosts[other].running.store.append_position == 0
        assert f"a lottery, expected a {OWN}, as this cluster is" in caplog.text
        assert await world.attempt(leader, b"y")


async def test_an_older_store_beside_tables_is_one_of_the_key_value_store(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        config = world.hosts[0].config
        tables = config.directory / "tables" / DATA_FILE
        tables.parent.mkdir(parents=True)
        tables.touch()
        with closing(
            Store.open(tmp_path / "old", cluster="simulated", member_id=0, rng=Random(0))
        ) as store:
            with pytest.raises(StoreMismatchError, match=f"{KEY_VALUE!r}, opened with 'lottery'"):
                check_service(config, store, Draws())
            tables.unlink()  # a folder of that name alone says nothing
            check_service(config, store, Draws())


async def test_a_snapshot_of_another_service_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.hosts[leader].running.control("snapshot")
        store = world.hosts[leader].running.store
        await world.until(lambda: bool(store.snapshots))
        path = world.hosts[leader].config.directory / "snapshots" / store.snapshots[0].name
        with closing(SnapshotReader(path)) as reader:
            head = reader.head
        assert head.service == OWN
        check_service_of(head, store)
        check_service_of(attrs.evolve(head, service=""), store)  # of an older version
        with pytest.raises(StorageError, match=f"of a lottery, expected one of a {OWN}"):
            check_service_of(attrs.evolve(head, service="lottery"), store)


async def test_what_is_restored_is_of_the_same_service(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path / "old") as world:
        await world.start()
        leader = await world.settled()
        assert await world.attempt(leader, b"x")
        await world.kill(*world.hosts)
        source = world.hosts[leader].config.directory
    plan = plan_restore(source)
    target = tmp_path / "new"
    await restore(plan, target, cluster="anew", member_id=0, rng=Random(1), executor=InlineExecutor)
    with open_readonly(target / "log") as store:
        assert store.recorded.service == OWN
