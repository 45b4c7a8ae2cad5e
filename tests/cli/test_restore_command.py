"""What `quorate restore` refuses by the file of the member that it is to restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from quorate.cli.app import run
from quorate.local.cluster import local_configs
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.machines import scheduler

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def _begin(directory: Path) -> None:
    async with open_ledgers(directory) as world:
        await world.start()
        assert await world.attempt(await world.settled(), b"one")


def test_a_founder_is_not_restored_with_the_file_of_a_joiner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, place = tmp_path / "there", tmp_path / "member-0"
    there.mkdir()
    scheduler.run(_begin, there, seed=1)
    config, *_ = local_configs(3, tmp_path, cluster="new")
    (place / "node.toml").write_text(attrs.evolve(config, join=True).to_toml())
    words = ["restore", "--from", str(there / "member-0"), "--to", str(place)]
    assert run(words) == 78
    assert "delete the line join = true in all" in capsys.readouterr().err
    assert not (place / "log").exists()
    (place / "node.toml").write_text(config.to_toml())
    assert run(words) == 0
