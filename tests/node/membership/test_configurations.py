"""Which configurations of a log count: not those of the history before a cluster was founded."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node.config.config import MemberConfig, NodeConfig
from quorate.node.configurations import Configurations
from quorate.node.protocol.membership import Membership, Seat, encode_membership
from quorate.node.protocol.quorum import VoterId
from quorate.storage import Entry, EntryKind, LogEnd, Store, VotingRight, VotingStatus, encode_batch

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS = tuple(MemberConfig(n, "127.0.0.1", 7100 + n, 7000 + n) for n in range(3))
SEATS = (Seat(7, "10.0.0.7", 17000, 7000, instance=7),)
VALUE = Membership(SEATS, (VoterId(7, 7),), version=5, next_id=8)


async def test_a_restored_log_has_none_that_counts_until_the_cluster_changes_its_members(
    tmp_path: Path,
) -> None:
    config = NodeConfig("c", 1, tmp_path, MEMBERS)
    store = Store.open(tmp_path, cluster="c", member_id=1, rng=random.Random(1))
    entry = Entry(EntryKind.MEMBERSHIP, encode_membership(VALUE))
    batch = encode_batch([entry], term=0, position=0, timestamp_ms=1, commit_position=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.append_durably(batch)
        found = Configurations(config, store)
        assert store.voting_status.kind is VotingRight.NEW
        assert found.in_force.version == 0
        end = LogEnd(0, len(batch))
        await store.save_voting_status(VotingStatus(VotingRight.VOTER, ((1, 1),), end))
        assert (found.in_force.version, found.end) == (0, 0)
        first = attrs.evolve(VALUE, version=1, founders=((1, 1),), floor=end)
        above = Entry(EntryKind.MEMBERSHIP, encode_membership(first))
        position = len(batch)
        later = encode_batch(
            [above], term=0, position=position, timestamp_ms=1, commit_position=position
        )
        await store.append_durably(later)
        assert (found.in_force, found.end) == (first, position + len(later))
        assert found.before.version == 0
        nursery.cancel_scope.cancel()
    store.close()


async def test_the_store_of_a_standby_stays_new_and_obeys_its_log(tmp_path: Path) -> None:
    standby = attrs.evolve(MEMBERS[1], standby=True)
    config = NodeConfig("c", 1, tmp_path, (MEMBERS[0], standby))
    store = Store.open(tmp_path, cluster="c", member_id=1, rng=random.Random(1))
    entry = Entry(EntryKind.MEMBERSHIP, encode_membership(VALUE))
    batch = encode_batch([entry], term=0, position=0, timestamp_ms=1, commit_position=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.append_durably(batch)
        assert Configurations(config, store).in_force == VALUE
        nursery.cancel_scope.cancel()
    store.close()
