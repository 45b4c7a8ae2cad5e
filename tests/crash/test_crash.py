"""The short form of the crash test; `make crash` is the long one."""

from pathlib import Path

from .harness import crash_test

KILLS = 12


async def test_kills_and_pauses_under_load_lose_nothing(tmp_path: Path) -> None:
    report = await crash_test(tmp_path, kills=KILLS, seconds=0.0, seed=1, tell=print)
    assert report.violations == ()
    assert report.kills >= KILLS
    assert report.pauses > 0
    assert report.acknowledged > 500
    assert report.reads > 100
    assert report.terms > 1
