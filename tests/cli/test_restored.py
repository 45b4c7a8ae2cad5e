"""Restored members are started once, together, before they are said to be good."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import StorageError
from quorate.local.cluster import lay_out
from quorate.local.restored import start_once
from quorate.node.election.context import ElectionContext
from quorate.node.state_machine.service import KEY_VALUE
from quorate.storage import Entry, EntryKind, Store, encode_batch, open_readonly, verify
from quorate.storage.log.recorder import Write
from quorate.storage.testing import InlineExecutor
from quorate.storage.tools.restore import plan_restore, restore

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node import NodeConfig


async def restored(directory: Path, *, members: int, made: int) -> tuple[list[NodeConfig], int]:
    """Restore members of a new cluster with a log of term 0; give them, and where it ends."""
    store = Store.open(
        directory / "old" / "log",
        cluster="old",
        member_id=-1,
        rng=random.Random(0),
        executor=InlineExecutor[Write],
    )
    with closing(store):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            entries = [Entry(EntryKind.NEW_LEADERSHIP_TERM)]
            opening = encode_batch(entries, term=0, position=0, timestamp_ms=1, commit_position=0)
            await store.append_durably(opening)
            await store.save_service(KEY_VALUE)
            await store.save_committed(store.append_position)
            end = store.append_position
            nursery.cancel_scope.cancel()
    configs = lay_out(directory / "new", members=members, client_port=7000, cluster="new")[:made]
    for config in configs:
        await restore(
            plan_restore(directory / "old"),
            config.directory,
            cluster="new",
            member_id=config.member_id,
            rng=random.Random(config.member_id),
            executor=InlineExecutor[Write],
        )
    return configs, end


async def start(configs: list[NodeConfig], end: int, *, elect: bool) -> None:
    await start_once(configs, end, random.Random(0), elect=elect, executor=InlineExecutor[Write])


@pytest.mark.parametrize("members", [1, 3])
async def test_a_whole_cluster_elects_a_leader_of_a_term_above_all_in_the_log(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    configs, end = await restored(tmp_path, members=members, made=members)
    await start(configs, end, elect=True)
    for config in configs:
        assert verify(config.directory / "log").ok
        with open_readonly(config.directory / "log") as store:
            assert store.append_position > end
            assert [row.term for row in store.terms] == [0, 1]
        assert not (config.directory / "tables").exists()


async def test_members_without_the_others_are_opened(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    configs, end = await restored(tmp_path, members=3, made=1)
    await start(configs, end, elect=False)
    with open_readonly(configs[0].directory / "log") as store:
        assert store.append_position == end


async def test_a_start_that_fails_is_told_with_the_directory(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, end = await restored(tmp_path, members=1, made=1)

    def term_of_the_log(ctx: ElectionContext) -> int:
        return ctx.store.log_term

    monkeypatch.setattr(ElectionContext, "next_term", property(term_of_the_log))
    with pytest.raises(StorageError, match="member-0: restored and sound, but the first start"):
        await start(configs, end, elect=True)
