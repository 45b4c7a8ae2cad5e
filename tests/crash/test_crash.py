"""The short form of the crash test; `make crash` is the long one."""

from pathlib import Path

from .harness import crash_test

KILLS = 6
SECONDS = 12.0


async def test_kills_and_pauses_under_load_lose_nothing(tmp_path: Path) -> None:
    report = await crash_test(tmp_path, kills=KILLS, seconds=SECONDS, seed=1, tell=print)
    assert report.violations == ()
    assert report.kills >= KILLS
    assert report.acknowledged > 50 * KILLS
    assert report.terms > 1
