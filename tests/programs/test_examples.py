"""The examples run, and the documents that are drawn from code are up to date."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import quorate
from quorate.local.cluster import free_client_port
from quorate.node import diagram
from quorate.simulation import Plan, simulate

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_counter_example_adds_up_on_every_member(tmp_path: Path) -> None:
    assert await load("counter").main(tmp_path) == [55, 55, 55]


async def test_the_bank_example_pays_on_every_member(tmp_path: Path) -> None:
    assert await load("bank").main(tmp_path) == [55, 55, 55]


@pytest.mark.parametrize("payload", [b"x", b"", b"\xff", b"1.5", b"9" * 19, b"9" * 5000])
async def test_the_counter_example_survives_bad_input(tmp_path: Path, payload: bytes) -> None:
    first = free_client_port(2)
    alone = (quorate.MemberConfig(0, "127.0.0.1", first, first + 1),)
    config = quorate.NodeConfig("counters", 0, tmp_path, alone, "test")
    for total in (5, 10):
        async with quorate.open_node(config, load("counter").Counter()) as node:
            assert (await node.command(payload)).startswith(b"error: ")
            assert await node.command(b"5") == b"%d" % total, "replayed, too"


async def test_the_reminders_come_at_one_position_on_every_member(tmp_path: Path) -> None:
    one, *others = await load("reminders").main(tmp_path)
    assert others == [one, one]
    bread, tea = one.split("\n")
    assert bread.endswith(" bread: take it out")
    assert tea.endswith(" tea: it has drawn")
    assert int(bread.split()[0]) < int(tea.split()[0])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_reminders_pass_the_simulation(seed: int) -> None:
    """With restarts and snapshots; a reminder that came elsewhere, or twice, would be found."""
    plan = Plan(seed, 3, 0.01, scenario="snapshots", service="examples.reminders:Reminders")
    outcome = simulate(plan)
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 10


async def test_saved_reminders_are_loaded() -> None:
    reminders = load("reminders").Reminders
    one, other = reminders(), reminders()
    for number, line in enumerate((b"set a 0 first", b"set b 50 second", b"set c 99 third")):
        command = quorate.Command(line, 0, 0, 0, 1, 32 * number, 0, 1000)
        assert one.apply(command) == b"ok"
    one.advance(96, 1000)
    await other.load(iter(list(await one.save())), 96, 1000)
    assert other.state() == one.state() == one.dump() != b""
    assert other.next_deadline_ms() == 1050
    other.advance(128, 1098)
    assert other.query(b"", 0) == b"96 a: first\n128 b: second"
    for wrong in (b"set a x y", b"set a 5", b"", b"cancel a", b"x" * 201, b"set a 5 x\ny"):
        assert other.apply(quorate.Command(wrong, 0, 0, 0, 1, 128, 0, 1)).startswith(b"error: ")


def test_the_drawn_election_is_the_one_in_the_code() -> None:
    assert diagram() in (ROOT / "docs" / "election.md").read_text()


def test_the_turnstile_passes_the_simulation() -> None:
    outcome = simulate(Plan(1, 3, 0.01, service="examples.turnstile:Turnstile"))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 10


def test_the_lottery_passes_the_simulation_and_its_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/simulation.md tells it."""
    right, wrong = "chance = Random(command.position + command.index)", "chance = Random()"
    document = (ROOT / "docs" / "simulation.md").read_text()
    assert right in document
    assert wrong in document
    outcome = simulate(Plan(0, 3, 0.01, service="examples.lottery:Lottery"))
    assert outcome.violation is None, outcome.story
    source = (ROOT / "examples" / "lottery.py").read_text()
    assert right in source
    (tmp_path / "mistaken.py").write_text(source.replace(right, wrong))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    outcome = simulate(Plan(0, 3, 0.01, service="mistaken:Lottery"))
    assert "StateMachineSafety" in str(outcome.violation)
