"""`quorate top`: what is known, how it is drawn, and how it plays a recording."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from quorate.cli.app import run
from quorate.cli.watch import feeds, top
from quorate.cli.watch.drawing import draw
from quorate.cli.watch.feeds import Members
from quorate.cli.watch.lines import as_json
from quorate.cli.watch.model import Cluster
from quorate.local.survey import Answer, Survey
from quorate.node.requests.status import EtcdStatus, MemberAddress
from quorate.recordings import Event
from tests.cli.test_status_command import ADDRESSES, status_of

RECORDING = Path(__file__).parents[2] / "web" / "data" / "leader-dies.qtrace"
EMPTY = b'{"quorate_trace":2,"source":"live","clock":"wall","cluster":"a"}\n'


def report(at: float, member: int, **changes: object) -> Event:
    status = attrs.asdict(status_of(member, **changes))  # type: ignore[arg-type]
    return Event(at, member, "status", {"status": status})


def cluster_of(*events: Event) -> Cluster:
    cluster = Cluster(started_ms=1_000_000)
    for event in events:
        cluster.apply(event)
    return cluster


def three(at: float = 1.0, **changes: object) -> Cluster:
    return cluster_of(*(report(at, member, **changes) for member in range(3)))


def drawn(cluster: Cluster, width: int = 80, *, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, highlight=False)
    console.print(draw(cluster, console))
    file.seek(0)
    text = file.read()
    assert "\x1b" not in text
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    return text


def joined(text: str) -> str:
    """A picture as one line: long lines are wrapped."""
    return " ".join(text.split())


def row(text: str, member: int) -> str:
    (found,) = [line for line in text.splitlines() if line.startswith(f"{member}  ")]
    return " ".join(found.split())


@pytest.mark.parametrize("width", [80, 120])
def test_a_cluster_that_is_well(width: int) -> None:
    text = drawn(three(), width)
    assert 'Cluster "orders": member 1 leads term 4; one more may fail.' in text
    positions = " 4,096 4,096 4,096" if width == 120 else ""
    assert row(text, 1) == f"1 leader 12 s 4 {'█' * 12}{positions} none itself 0.00 s"
    assert row(text, 2) == f"2 follower 12 s 4 {'█' * 12}{positions} none 0.02 s 0.00 s"
    assert "STALE" not in text


def test_a_terminal_without_blocks_gets_plain_signs() -> None:
    text = drawn(three(), encoding="ascii")
    assert text.isascii()
    assert "#" * 12 in text


def test_a_narrow_terminal_loses_whole_columns_and_says_which() -> None:
    assert "Too narrow for: heard, log." in drawn(three(), 48)


def test_positions_are_bars_on_one_axis() -> None:
    behind = {"append_position": 600_000, "commit_position": 500_000, "applied_position": 400_000}
    full = dict.fromkeys(behind, 1_000_000)
    cluster = cluster_of(report(1, 0, **behind), report(1, 1, **full), report(1, 2, **full))
    text = drawn(cluster)
    assert "▓▓░░········" in row(text, 0)
    assert "390.6 KiB" in row(text, 0)
    assert "of 400,000 to 1,000,000" in text


def test_a_member_that_does_not_answer_is_stale_and_its_figures_are_old() -> None:
    cluster = three()
    cluster.miss(2, 1.5, "connection refused")
    for member in (0, 1):
        cluster.apply(report(9.0, member))
    text = drawn(cluster)
    assert "member 1 leads term 4; none may fail." in text
    assert "was follower" in row(text, 2)
    assert "unknown" in row(text, 2)
    assert row(text, 2).endswith("STALE 8.0 s")
    assert "Member 2: connection refused." in text


def test_a_member_that_never_answered_is_unknown() -> None:
    cluster = cluster_of(report(1, 0), report(1, 1))
    assert row(drawn(cluster), 2) == "2 unknown - - unknown unknown 0.02 s never"
    assert "old figures" not in drawn(cluster)
    line = json.loads(as_json(cluster, 0))["members"][2]
    assert (line["stale"], line["as_of"], line["append"]) == (True, None, None)


def test_silence_alone_makes_all_stale() -> None:
    cluster = three()
    cluster.now = 60.0
    text = drawn(cluster)
    assert "no member answers, the leader is unknown; how many may fail is unknown." in joined(text)
    assert text.count("STALE 59 s") == 3
    assert "those are old figures" in text


def test_two_that_claim_to_lead_are_both_shown() -> None:
    cluster = cluster_of(report(1, 0, leader_id=0, term=3), report(1, 1), report(1, 2))
    text = joined(drawn(cluster))
    assert "2 MEMBERS SAY THAT THEY LEAD, member 0 in term 3 and member 1 in term 4" in text
    assert "They disagree about the leader: member 0 says 0, member 1 says 1" in text
    assert json.loads(as_json(cluster, 0))["leaders"] == [0, 1]


def test_what_an_old_leader_said_before_the_new_one_began_is_no_second_claim() -> None:
    old = report(1.0, 0, leader_id=0, term=3)
    cluster = cluster_of(old, report(1.4, 1, state_age_s=0.2), report(1.4, 2, state_age_s=0.2))
    assert [each.member_id for each in cluster.leaders] == [1]


def test_one_that_hears_nobody_has_no_lag_that_is_known() -> None:
    cluster = three(role="follower")
    assert cluster.lag(cluster.members[0]) == 0, "all report: the longest log is known"
    for member in (1, 2):
        cluster.miss(member, 1.5, "no answer within 2 s")
    assert cluster.lag(cluster.members[0]) is None
    assert "unknown" in row(drawn(cluster), 0)


def test_without_a_quorum_it_says_how_many_report() -> None:
    cluster = cluster_of(report(1, 1, leader_id=None, state="CANVASS", role="candidate"))
    text = drawn(cluster)
    assert "no member leads; 1 of 3 voters report, writes need 2." in text
    assert row(text, 1).startswith("1 CANVASS 12 s 4")


def test_steps_and_rates_come_from_the_difference_of_two_answers() -> None:
    cluster = three()
    cluster.sample()
    for member in range(3):
        changes: dict[str, Any] = {"entries": 1007, "commit_position": 4096 + 2048}
        state = "NOMINATE" if member == 2 else "CLOSED"
        cluster.apply(report(2.0, member, state=state, state_age_s=0.25, **changes))
    cluster.sample()
    text = drawn(cluster)
    assert "1,000 entries/s, 2.0 KiB/s of log  █" in text
    assert "00:16:41.7Z  member 2  CLOSED → NOMINATE" in text
    line = json.loads(as_json(cluster, 0))
    assert (line["entries_per_second"], line["bytes_per_second"]) == (1000, 2048)
    (step,) = line["transitions"]
    assert (step["member"], step["after"], step["at"]) == (2, "NOMINATE", 1.75)
    assert json.loads(as_json(cluster, 1))["transitions"] == []


def test_what_a_recording_says_is_no_command_for_the_terminal() -> None:
    fields = {"before": "INIT", "after": "[red]\x1b[2J", "reason": "x\ny[/]", "term": 1}
    text = drawn(cluster_of(Event(1, 0, "enters", fields)))
    assert "[red]?[2J: x?y[/]" in text


def test_a_screen_has_room_for_all_of_it() -> None:
    cluster = three()
    for number in range(40):
        fields = {"before": "INIT", "after": "CANVASS", "reason": "x" * 200, "term": number}
        cluster.apply(Event(2.0, 2, "enters", fields))
    file = io.StringIO()
    console = Console(file=file, width=80, height=18, highlight=False)
    console.print(draw(cluster, console, keys="q ends"))
    assert len(file.getvalue().splitlines()) == 18


# --- members that are asked ----------------------------------------------------------------------


class Asked:
    """Members that answer, each after some time; `silent` ones do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent = set[int]()
        self.asked = list[int]()
        self.incarnation = 7
        self.steps: list[dict[str, Any]] = []
        monkeypatch.setattr(feeds, "ask", self.ask)
        monkeypatch.setattr(feeds, "survey", self.survey)

    async def ask(self, address: MemberAddress, since: int | None = None) -> Answer:
        self.asked.append(address.member_id)
        if address.member_id in self.silent:
            await trio.sleep(2)
            return Answer(address, None, "no answer within 2 s")
        found = next(each for each in ADDRESSES if each.client_port == address.client_port)
        etcd = EtcdStatus(9, 0, 3, 2, 1, 4) if found.member_id else None
        said = status_of(found.member_id, incarnation=self.incarnation, etcd=etcd)
        count = len(self.steps)
        recent = {
            "rates": {"commands": 1000.0 * found.member_id},
            "quantiles": {"command": {"p50": 0.0012, "p99": 0.0345}},
            "loop_delay": 0.002,
            "steps": self.steps[since:] if found.member_id == 1 else [],
            "step_count": count if found.member_id == 1 else 0,
        }
        return Answer(found, said, None, ADDRESSES, 0, None if since is None else recent)

    async def survey(self, addresses: Sequence[MemberAddress]) -> Survey:
        return Survey(tuple([await self.ask(address) for address in addresses]))


async def test_a_silent_member_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    asked = Asked(monkeypatch)
    members = Members(ADDRESSES[:1])
    assert await members.begin() == []
    asked.silent.add(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.run)
        await trio.sleep(10.1)
        members.advance()
        nursery.cancel_scope.cancel()
    assert asked.asked.count(1) > 18
    assert 4 <= asked.asked.count(2) <= 6
    text = drawn(members.cluster)
    assert row(text, 2).endswith("never")
    assert "Member 2 at 127.0.0.1:7002: no answer within 2 s." in text
    assert "STALE" not in row(text, 1)


async def test_members_report_steps_with_reasons_rates_and_durations(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    asked = Asked(monkeypatch)
    members = Members(ADDRESSES[:1])
    assert await members.begin() == []
    await members.ask_all()
    members.advance()
    step = {"before": "CLOSED", "after": "NOMINATE", "reason": "the leader is silent", "term": 3}
    asked.steps.append(step | {"ago": 0.3})
    asked.steps.append(step | {"ago": 0.1, "before": "NOMINATE", "after": "CLOSED", "reason": "b"})
    await trio.sleep(1)
    for _ in range(2):  # no step twice
        await members.ask_all()
    found = json.loads(as_json(members.cluster, 0))
    assert [(each["at"], each["after"], each["reason"]) for each in found["transitions"]] == [
        (0.7, "NOMINATE", "the leader is silent"),
        (0.9, "CLOSED", "b"),
    ]
    assert found["commands_per_second"] == 3000
    about = found["members"][2]
    assert (about["commands_per_second"], about["p50"], about["p99"]) == (2000, 0.0012, 0.0345)
    assert about["loop_delay"] == 0.002
    text = drawn(members.cluster, 80)
    assert "Clients: 3,000 commands/s at all members; p50 1.2 ms, p99 34.5 ms at member 2." in text
    assert "etcd: revision 9, 3 keys, 2 leases; 2 watches and 8 connections at 2 members." in text
    assert (found["members"][0]["etcd"], about["etcd"]["keys"]) == (None, 3)
    assert "member 1  CLOSED → NOMINATE: the leader is silent" in text
    # A member that has started again counts its steps anew.
    asked.incarnation, asked.steps = 8, [step | {"ago": 0.2, "reason": "a start"}]
    for _ in range(3):
        await members.ask_all()
    assert members.cluster.step_count == 3
    assert "CLOSED → NOMINATE: a start" in drawn(members.cluster)


def test_once_has_the_exit_status_of_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(monkeypatch)
    monkeypatch.setattr(top, "LOOK_SECONDS", 0.0)
    assert run(["top", "--once"]) == 0
    assert "one more may fail" in capsys.readouterr().out
    assert run(["top", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leader"] == 1

    async def nobody(addresses: Sequence[MemberAddress]) -> Survey:
        return Survey(tuple(Answer(each, None, "connection refused") for each in addresses))

    monkeypatch.setattr(feeds, "survey", nobody)
    assert run(["top", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == "127.0.0.1:1 does not answer: connection refused.\n"
    assert asked.asked


# --- recordings -----------------------------------------------------------------------------------


def test_a_recording_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--replay", str(RECORDING), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    leaders = [line["leader"] for line in lines]
    assert leaders[0] == leaders[1] == 0  # it is killed at 1.05 s
    assert leaders[-1] == 1
    dead = lines[2]["members"][0]
    assert (dead["stale"], dead["trouble"]) == (True, "killed")
    entered = [step["after"] for line in lines for step in line["transitions"]]
    assert entered.count("CLOSED") >= 6


def test_the_end_of_a_recording_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--replay", str(RECORDING), "--once"]) == 0
    text = capsys.readouterr().out
    assert 'Cluster "simulated": member 1 leads term 1; one more may fail.' in text
    assert "FOLLOWER_READY → CLOSED: following member 1 in term 1" in text


async def test_a_recording_is_played_at_a_speed(autojump_clock: MockClock) -> None:
    with feeds.open_replay(RECORDING, 4.0) as replay:
        assert replay.advance()
        await trio.sleep(0.2)
        assert replay.advance()
        assert replay.cluster.leader is replay.cluster.members[0]
        assert replay.cluster.now == pytest.approx(0.8)
        await trio.sleep(1)
        assert not replay.advance()
        assert replay.cluster.leader is replay.cluster.members[1]


def test_an_empty_recording_shows_that_nothing_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.qtrace").write_bytes(EMPTY)
    assert run(["top", "--replay", str(tmp_path / "a.qtrace"), "--once"]) == 0
    assert "the leader is unknown" in capsys.readouterr().out
