"""What members say and do in the scenarios of the protocol is what the transcripts say.

``pytest tests/conformance --regenerate`` writes them anew; the difference is to be understood
before it is committed. ``player.py`` tells how a script is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.player import UnexpectedError, transcribe

if TYPE_CHECKING:
    from trio.testing import MockClock

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_transcript_is_what_happens(
    name: str,
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    found = await transcribe(SCRIPTS[name], tmp_path, monkeypatch)
    if request.config.getoption("--regenerate"):
        (FOLDER / f"{name}.txt").write_text(found)
    else:
        assert found.splitlines() == SCRIPTS[name].splitlines()


@pytest.mark.parametrize("name", ["a_member_returns", "ping_pong"])
async def test_without_scouting_the_leader_is_unseated(
    name: str, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnexpectedError):
        await transcribe(SCRIPTS[name], tmp_path, monkeypatch, scouting=False)
