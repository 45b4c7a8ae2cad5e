"""The ways in which the upstream rules can lose data, each played twice: with its fix and without.

Each schedule is deterministic. With our rules nothing comes of it. With just that fix taken out
(:mod:`.hazards.mutations`) the harm shows: an acknowledged entry is lost, or states differ. So
these tests show that the fixes are needed, and that the schedules would find their loss. Where two
fixes cover each other, the harm shows when both are out, and not when one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.simulation import Observer
from quorate.simulation.ledger import open_ledgers
from tests.simulation.hazards import mutations, schedules
from tests.simulation.hazards.harm import DIVERGED, LOST, harm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

    Schedule = Callable[[World[Ledger]], Awaitable[None]]
    Mutation = Callable[[pytest.MonkeyPatch], None]

WITHOUT_F1, WITHOUT_F2, WITHOUT_F3 = (
    mutations.without_f1,
    mutations.without_f2,
    mutations.without_f3,
)
WITHOUT_F6, WITHOUT_F8, WITHOUT_F9 = (
    mutations.without_f6,
    mutations.without_f8,
    mutations.without_f9,
)
OPEN_TERMS = mutations.with_ends_of_open_terms

HARMLESS = [
    pytest.param(schedules.stale_leader, [], id="H1"),
    pytest.param(schedules.divergent_position, [], id="H2"),
    pytest.param(schedules.unrecorded_term, [], id="H3"),
    pytest.param(schedules.unrecorded_term, [WITHOUT_F6], id="H3-F3-covers-F6"),
    pytest.param(schedules.unrecorded_term, [WITHOUT_F3], id="H3-F6-covers-F3"),
    pytest.param(schedules.crashes_while_joining, [], id="H4"),
    pytest.param(schedules.delayed_message, [], id="H5"),
    pytest.param(schedules.delayed_message, [OPEN_TERMS], id="H5-F8-covers-ends"),
    pytest.param(schedules.delayed_message, [WITHOUT_F8], id="H5-open-ends-cover-F8"),
    pytest.param(schedules.figure_eight, [], id="H16"),
]

HARMFUL = [
    pytest.param(schedules.stale_leader, [WITHOUT_F1], LOST, id="H1-without-F1"),
    pytest.param(schedules.divergent_position, [WITHOUT_F2], LOST, id="H2-without-F2"),
    pytest.param(
        schedules.unrecorded_term, [WITHOUT_F3, WITHOUT_F6], DIVERGED, id="H3-without-F3-and-F6"
    ),
    pytest.param(schedules.delayed_message, [OPEN_TERMS, WITHOUT_F8], LOST, id="H5-without-F8"),
    pytest.param(schedules.figure_eight, [WITHOUT_F9], DIVERGED, id="H16-without-F9"),
]


async def play(
    directory: Path, schedule: Schedule, out: list[Mutation], patch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """Play a schedule with those fixes taken out; give the harm, and the invariants broken."""
    for mutate in out:
        mutate(patch)
    observer = Observer([0, 1, 2], fatal=False)
    async with open_ledgers(directory, observer=observer, contain=True) as stage:
        await schedule(stage)
        return harm(stage), observer.violations


@pytest.mark.parametrize(("schedule", "out"), HARMLESS)
async def test_the_rules_withstand_the_hazard(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Schedule,
    out: list[Mutation],
) -> None:
    done, broken = await play(tmp_path, schedule, out, monkeypatch)
    assert done == []
    if not out:
        assert broken == []


@pytest.mark.parametrize(("schedule", "out", "expected"), HARMFUL)
async def test_without_the_fix_the_hazard_does_its_harm(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    schedule: Schedule,
    out: list[Mutation],
    expected: str,
) -> None:
    done, _ = await play(tmp_path, schedule, out, monkeypatch)
    assert [words for words in done if words.startswith(expected)] != []


async def test_without_f7_the_store_refuses_to_record(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing can go wrong silently: an entry whose term has no row stops the member."""
    mutations.without_f7(monkeypatch)
    async with open_ledgers(tmp_path, contain=True) as stage:
        await schedules.crashes_while_joining(stage)
        (failure,) = stage.failures.values()
        assert "its term is not in the term table" in repr(failure)


async def test_without_f3_a_leader_writes_in_a_term_that_it_alone_knows_of(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broken = await play(tmp_path, schedules.unrecorded_term, [WITHOUT_F3], monkeypatch)
    assert "which only" in broken[0]
