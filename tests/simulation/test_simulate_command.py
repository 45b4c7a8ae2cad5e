"""`quorate simulate` when something does not hold: it can be seen again, by anybody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.cli.app import EX_USAGE, run
from quorate.cli.simulate import simulate_seeds
from quorate.simulation import Ledger, Sample

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from quorate.node import Command

SERVICE = "tests.simulation.test_simulate_command:Timely"


class Timely(Ledger):
    """Replies with the time of the machine, so members differ, in every run in the same way."""

    def apply(self, command: Command) -> bytes:
        super().apply(command)
        return b"%d" % (1e6 * trio.current_time())

    @staticmethod
    def sample(rng: Random) -> Sample:
        return Sample(b"x", query=rng.random() < 0.1)


def test_a_violation_is_told_with_all_that_is_needed_to_see_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert simulate_seeds(seeds=3, first=5, hours=0.01, service=SERVICE) == 1
    told = capsys.readouterr().out.replace("\n", " ")
    assert "seed 5: VIOLATION, digest " in told
    assert "ViolationError: StateMachineSafety: members " in told
    for member in range(3):
        assert f"member {member}:" in told
    assert "CANVASS -> NOMINATE: " in told
    assert "seed 6" not in told, "it ends there"
    assert "every event: quorate-5.qtrace look at it: quorate view quorate-5.qtrace" in told
    again = "--seed 5 --members 3 --hours 0.01 --scenario storm --service"
    assert told.rstrip().endswith(f"again: quorate simulate {again} {SERVICE}")
    check_recording(tmp_path / "quorate-5.qtrace", told)
    assert simulate_seeds(seed=5, hours=0.01, members=3, scenario="storm", service=SERVICE) == 1
    assert _verdict(capsys.readouterr().out) == _verdict(told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seed", "1", "--seeds", "2"], "--seeds 2: --seed 1 runs that one alone"),
        (["--seed", "1", "--first", "0"], "--first 0: --seed 1 runs that one alone"),
        (["--seed", "-1"], "Must be >= 0"),
        (["--first", "-1"], "Must be >= 0"),
    ],
)
def test_seeds_that_do_not_fit_together_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == EX_USAGE
    found = capsys.readouterr()
    assert told in found.out + found.err


def check_recording(path: Path, told: str) -> None:
    """The recording says what was run, and its last event is the violation."""
    head, *events = [json.loads(line) for line in path.read_text().splitlines()]
    assert (head["quorate_trace"], head["seed"]) == (2, 5)
    assert f"again: {head['command']}" in told
    assert {"starts", "enters", "sends", "hears", "durable"} <= {each["kind"] for each in events}
    last = events[-1]
    assert (last["kind"], last["invariant"]) == ("violation", "StateMachineSafety")
    assert last["text"] in told
    assert f"{last['at'] / 3600:.3f} h" in told


def _verdict(told: str) -> str:
    """Give what a run is told by: seed, verdict and digest."""
    return told[: told.index("faults")]
