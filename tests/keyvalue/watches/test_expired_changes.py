"""Which keys expire at which end of a batch follows from the log alone."""

import random
from pathlib import Path

import pytest
from trio.testing import MockClock

from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.state import store as store_module
from quorate.keyvalue.state.changes import Change
from tests.support.service_world import open_service, running
from tests.support.watch_world import KeptHistory, feed, some_batches


@pytest.mark.parametrize("seed", range(6))
async def test_members_that_restart_or_load_snapshots_see_the_same_changes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(store_module, "MAX_EXPIRED_PER_BATCH", 2)  # so that many are due
    rng = random.Random(seed)
    async with running(open_service(tmp_path / "first")) as fed:
        kept = KeptHistory(fed.service)
        for _ in range(12):
            some_batches(kept, rng, rng.randrange(1, 12))
            await kept.snapshot()
        expected = fed.service.changes.after(0, b"")
        assert {change.kind.value for change in expected} >= {"set", "deleted", "expired"}
        assert await _seen_by_another(tmp_path / "second", kept, rng) == expected


async def _seen_by_another(directory: Path, kept: KeptHistory, rng: random.Random) -> list[Change]:
    """Return the changes that a member sees that begins anew at each snapshot."""
    found: list[Change] = []
    start = 0
    for snapshot in kept.snapshots:
        async with running(open_service(directory)) as fed:
            assert fed.service.position == start
            found += _fed(fed.service, kept, start, snapshot.position)
            if rng.random() < 0.5:
                await fed.service.load(
                    snapshot.pieces or iter(()), snapshot.position, snapshot.timestamp_ms
                )
        start = snapshot.position
    return found


def _fed(service: KeyValueService, kept: KeptHistory, start: int, end: int) -> list[Change]:
    for batch in kept.log:
        if start <= batch.header.position < end:
            feed(service, batch)
    return service.changes.after(start, b"")
