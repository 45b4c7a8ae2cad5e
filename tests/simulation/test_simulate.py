"""Whole runs: every scenario, fixed seeds, no violation; and services that are wrong are found."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from quorate.errors import ConfigurationError
from quorate.node.follower import replay_receiver
from quorate.node.follower.replay_receiver import ReplayReceiver
from quorate.recordings import KINDS
from quorate.simulation import SCENARIOS, Ledger, Plan, Sample, simulate
from quorate.simulation.faults import BETWEEN_MEMBERS, FAULTS, STRIKES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.node import Command
    from quorate.storage import BatchHeader

SHORT = 0.02  # virtual hours
SHORTER = 0.01
"""For what a storm has, too. Most of its faults come within a minute."""
HERE = "tests.simulation.test_simulate"


WHOLE = ("storm", "members")


# A storm has every fault of the other scenarios; those look at each alone, in make test-all.
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=() if name in WHOLE else pytest.mark.slow) for name in SCENARIOS],
)
def test_a_scenario_passes(scenario: str) -> None:
    hours = SHORT if scenario in WHOLE else SHORTER
    outcome = simulate(Plan(1, 3, hours, scenario))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 10
    assert bool(outcome.faults) == (scenario != "calm")


@pytest.mark.parametrize("seed", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_five_members_pass(seed: int) -> None:
    outcome = simulate(Plan(seed, 5, SHORTER))
    assert outcome.violation is None, outcome.story


def test_a_storm_passes_over_a_member_that_is_alone() -> None:
    # As a cluster may be that has shrunk: there is nothing between members to break.
    outcome = simulate(Plan(3, 1, 0.005, "storm"))
    assert outcome.violation is None, outcome.story
    assert outcome.faults
    assert BETWEEN_MEMBERS.isdisjoint(outcome.faults)


@pytest.mark.parametrize("seed", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_members_that_record_a_replay_in_pieces_pass(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    take = ReplayReceiver.take

    def counted(one: ReplayReceiver) -> list[tuple[BatchHeader, bytes]]:
        batches = take(one)
        together.append(len(batches))
        return batches

    monkeypatch.setattr(ReplayReceiver, "take", counted)
    monkeypatch.setattr(replay_receiver, "TOGETHER_BYTES", 500)  # nobody lacks 4 MiB here
    outcome = simulate(Plan(seed, 3, SHORT))
    assert outcome.violation is None, outcome.story
    assert sum(number > 1 for number in together) > 5


def test_every_fault_is_part_of_the_storm() -> None:
    faults = SCENARIOS["members"].faults
    assert {name for name, weight in faults.items() if weight} == {
        *FAULTS,
        *(f"{name} at a transition" for name in STRIKES),
    }


def test_a_calm_cluster_holds_one_election_and_serves() -> None:
    outcome = simulate(Plan(1, 3, 0.005, "calm"))
    assert outcome.violation is None, outcome.story
    assert outcome.terms <= 2
    assert outcome.acknowledged > 0.9 * outcome.operations


def test_an_unknown_scenario_is_told() -> None:
    with pytest.raises(ConfigurationError, match="expected one of storm, standby"):
        simulate(Plan(1, scenario="fair"))


# --- services of one's own ------------------------------------------------------------------------


class Sums(Ledger):
    """Adds numbers up."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def apply(self, command: Command) -> bytes:
        super().apply(command)
        self.total += int(command.payload)
        return b"%d" % self.total

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        await super().load(pieces, position, timestamp_ms)
        self.total = sum(map(int, self.payloads))

    def query(self, payload: bytes, flags: int) -> bytes:
        return b"%d" % self.total

    @staticmethod
    def sample(rng: random.Random) -> Sample:
        return Sample(b"%d" % rng.randrange(10), query=rng.random() < 0.3)


class Chancy(Sums):
    """Adds numbers up, and now and then takes one from elsewhere: members differ."""

    def apply(self, command: Command) -> bytes:
        self.total += random.SystemRandom().randrange(2)
        return super().apply(command)


@pytest.mark.parametrize("members", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_service_of_ones_own_passes(members: int) -> None:
    outcome = simulate(Plan(1, members, SHORT / 2, service=f"{HERE}:Sums"))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 10


def test_a_service_that_is_not_deterministic_is_found() -> None:
    outcome = simulate(Plan(1, 3, SHORT, "calm", f"{HERE}:Chancy"))
    assert outcome.violation is not None
    assert "StateMachineSafety" in outcome.violation
    assert "member 0:" in outcome.story


@pytest.mark.parametrize("name", ["nowhere:Nothing", f"{HERE}:Nothing", f"{HERE}:SHORT", HERE])
def test_what_is_no_service_is_told(name: str) -> None:
    with pytest.raises(ConfigurationError, match="service"):
        simulate(Plan(1, service=name))


# --- the recording --------------------------------------------------------------------------------


def test_the_recording_holds_every_event_and_changes_nothing() -> None:
    file = io.StringIO()
    plan = Plan(5, 3, 0.005)
    outcome = simulate(plan, file)
    head, *events = [json.loads(line) for line in file.getvalue().splitlines()]
    assert head["quorate_trace"] == 2
    assert (head["seed"], len(head["members"])) == (5, 3)
    assert [each["at"] for each in events] == sorted(each["at"] for each in events)
    kinds = Counter[str](each["kind"] for each in events)
    # What is not in the digest is there, too.
    only_shown = {"sends", "link", "positions", "keyframe", "leads"}
    told = sum(each["kind"] not in only_shown and each.get("status") != "called" for each in events)
    # The ends of all members, at the end of the world, are no part of the run.
    assert outcome.events - 3 <= told <= outcome.events
    assert kinds.keys() >= only_shown
    assert kinds.keys() >= {"starts", "enters", "hears", "durable", "fault", "client"}
    assert kinds.keys() <= KINDS.keys()
    for each in events:
        assert each.keys() - {"at", "member", "kind"} <= {*KINDS[each["kind"]]}, each
    assert simulate(plan).digest == outcome.digest


def test_what_is_heard_was_sent() -> None:
    file = io.StringIO()
    simulate(Plan(6, 3, 0.005), file)
    under_way: dict[tuple[int, int, int, int], tuple[object, ...]] = {}
    heard = 0
    for line in file.getvalue().splitlines():
        event = json.loads(line)
        what = tuple(event.get(name) for name in ("type", "term", "position"))
        if event.get("kind") == "sends":
            under_way[event["member"], event["to"], event["link"], event["n"]] = what
        elif event.get("kind") == "hears":
            arrow = event["sender"], event["member"], event["link"], event["n"]
            assert under_way.pop(arrow) == what
            heard += 1
    assert heard > 100
