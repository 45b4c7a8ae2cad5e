"""`quorate member`: its requests, what it prints, its exit statuses, and how it waits."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from rich.console import Console

from quorate.cli import member_wait
from quorate.cli.member_show import advice, render
from quorate.local.cluster import HOST
from quorate.local.member_list import MEANINGS
from quorate.local.survey import at
from quorate.node.config.config import MemberConfig, NodeConfig, load_config
from tests.cli.test_member_list import answer, listed, seat
from tests.cli.test_status_command import status_of
from tests.support.real import quorate
from tests.support.servers import FakeConnection, FakeStore, serving

DONE = {"version": 8, "member": 4, "done": "member 4 has a seat, since version 8"}
JOINING: dict[str, Any] = {"state": "joining", "instance": "0" * 16, "waits": "not-claimed"}


class FakeLeader(FakeStore):
    """Answers requests about members, and for its status.

    Args:
        lists: the answers to `member list`, one after the other; the last one for ever.
        change: the answer to any other request, or the words of an error reply.
    """

    def __init__(self, *lists: dict[str, Any], change: dict[str, Any] | str = DONE) -> None:
        super().__init__()
        self.lists = list(lists) or [answer()]
        self.change = change
        self.asked: list[str] = []
        self.activity = ""

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        if command[0] == b"QUORATE.STATUS":
            said = status_of(1, snapshot_activity=self.activity)
            status: dict[str, object] = attrs.asdict(said)
            return _bulk(json.dumps(status | {"topology": {"members": []}}))
        if command[0] == b"PING":
            return b"+PONG\r\n"
        words = b" ".join(command[1:]).decode()
        self.asked.append(words)
        if words == "member list":
            return _bulk(json.dumps(self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]))
        if isinstance(self.change, str):
            return f"-{self.change}\r\n".encode()
        return _bulk(json.dumps(self.change))


def _bulk(text: str) -> bytes:
    return f"${len(text.encode())}\r\n{text}\r\n".encode()


@asynccontextmanager
async def asking(leader: FakeLeader) -> AsyncGenerator[tuple[str]]:
    async with serving(leader) as address:
        yield (at(address),)


async def typed(leader: FakeLeader, *words: str) -> tuple[int, str, str]:
    """Run a command line; return its exit status and what it prints."""
    async with asking(leader) as (connect,):
        command = partial(quorate, "member", *words, "--connect", connect)
        done = await trio.to_thread.run_sync(command)
    return done.returncode, done.stdout, done.stderr


NEW = ("--host", "10.0.0.9", "--port", "17000", "--client-port", "7000")
ADDRESS = "host=10.0.0.9 member_port=17000 client_port=7000"
ALL = "--redirect-port 7060 --priority 2 --even"


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("promote 4", "promote 4"),
        ("promote 4 --even --if-version 7", "promote 4 even if_version=7"),
        ("demote 2", "demote 2"),
        ("remove 2 --if-version 0", "remove 2 if_version=0"),
        ("move 2 --host db3", "move 2 host=db3"),
        ("move 2 --port 1 --client-port 2", "move 2 member_port=1 client_port=2"),
        ("move 2 --redirect-port 0", "move 2 redirect_port=0"),
        ("move 2 --client-port 0 --tls-port 3", "move 2 client_port=0 tls_port=3"),
        ("add NEW --tls-port 7443", f"add {ADDRESS} tls_port=7443"),
        (
            "add --host h --port 1 --tls-port 2 --priority 3",
            "add host=h member_port=1 tls_port=2 priority=3",
        ),
        ("add NEW", f"add {ADDRESS}"),
        (f"add NEW {ALL}", f"add {ADDRESS} redirect_port=7060 priority=2 even"),
        ("add NEW --role witness", f"add {ADDRESS} role=witness"),
        ("replace 2 --host 10.0.0.9", f"add {ADDRESS} replaces=2"),
        (
            "replace 1 --host 10.0.0.9 --redirect-port 7061 --if-version 7",
            f"add {ADDRESS} redirect_port=7061 priority=4 replaces=1 if_version=7",
        ),
        ("replace 9 NEW", f"add {ADDRESS} replaces=9"),
    ],
    ids=str,
)
async def test_each_verb_asks_in_the_words_of_the_leader(words: str, request_: str) -> None:
    seats = seat(0), seat(1, priority=4, redirect_port=7060), seat(2), seat(4, **JOINING)
    leader = FakeLeader(answer(*seats))
    status, _, err = await typed(leader, *words.replace("NEW", " ".join(NEW)).split())
    assert status == 0, err
    assert [each for each in leader.asked if each != "member list"] == [f"member {request_}"]


async def test_a_new_member_gets_its_file_on_standard_output(tmp_path: Path) -> None:
    leader = FakeLeader(answer(seat(0), seat(1), seat(4, **JOINING)))
    status, out, err = await typed(leader, "add", *NEW)
    assert (status, err) == (0, "member 4 has a seat, since version 8\n")
    (tmp_path / "node.toml").write_text(out)
    config = load_config(tmp_path / "node.toml")
    assert (config.cluster, config.member_id, config.join) == ("orders", 4, True)


async def test_a_new_member_gets_its_file_where_it_is_wanted(tmp_path: Path) -> None:
    leader = FakeLeader(answer(seat(0), seat(1), seat(4, **JOINING | {"host": "10.0.0.9"})))
    file = tmp_path / "node.toml"
    status, out, _ = await typed(leader, "add", *NEW, "--out", str(file), "--json")
    assert status == 0
    said = {"request": "member add", "outcome": "done", "words": DONE["done"]}
    assert json.loads(out) == said | {"version": 8, "member": 4}
    assert load_config(file).member_id == 4
    written = file.read_text()
    status, out, _ = await typed(leader, "add", *NEW, "--out", str(file))
    assert (status, file.read_text()) == (0, written)  # a command may be repeated
    assert out.startswith(f"Its file is {file}. Put it into an empty directory on the machine of ")


@pytest.mark.parametrize("name", ["other.toml", "words.toml", "nowhere/node.toml"])
async def test_a_file_of_another_member_is_never_overwritten(tmp_path: Path, name: str) -> None:
    others = tuple(MemberConfig(n, "10.0.0.8", 100 + n, 200 + n) for n in range(3))
    (tmp_path / "other.toml").write_text(NodeConfig("orders", 1, Path(), others).to_toml())
    (tmp_path / "words.toml").write_text("mine")
    leader = FakeLeader()
    status, _, err = await typed(leader, "add", *NEW, "--out", str(tmp_path / name))
    assert (status, leader.asked) == (64, [])  # nothing is asked before it is known to fit
    assert "expected a new file" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", "--host", "a b", "--port", "1", "--client-port", "2"), 'host = "a b": expected'),
        (("add", "--host", "a", "--port", "0", "--client-port", "2"), "member_port = 0: expected"),
        (
            ("add", "--host", "bücher", "--port", "1", "--client-port", "2"),
            'address: host = "bücher": expected ASCII, such as xn--bcher-kva',
        ),
        (("move", "2", "--host", "é" * 70), "expected ASCII\n"),
        (("move", "2"), "expected --host, --port, --client-port, --redirect-port or"),
        (("move", "2", "--port", "70000"), "member_port = 70000: expected a port number"),
    ],
)
async def test_what_no_member_can_have_is_not_asked_for(words: tuple[str, ...], text: str) -> None:
    leader = FakeLeader()
    status, _, err = await typed(leader, *words)
    assert (status, leader.asked) == (64, [])
    assert text in err


@pytest.mark.parametrize("word", ["in-flight", "last-voter", "would-lose-quorum"])
async def test_a_refusal_is_explained(word: str) -> None:
    leader = FakeLeader(change=f"REFUSED {word}: it can't be now")
    status, out, err = await typed(leader, "remove", "1")
    assert (status, out) == (1, "")
    assert err == f"{word}: it can't be now\n{MEANINGS[word]}\n"
    status, out, _ = await typed(leader, "remove", "1", "--json")
    said = {"request": "member remove 1", "outcome": "refused", "word": word}
    assert (status, json.loads(out)) == (1, said | {"words": f"{word}: it can't be now"})


async def test_a_member_is_replaced_only_if_that_makes_sense() -> None:
    leader = FakeLeader(answer(seat(0), seat(1, role="standby", state="standby")))
    status, _, err = await typed(leader, "replace", "1", "--host", "h")
    assert (status, leader.asked) == (1, ["member list"])
    assert "role: member 1 is a standby" in err
    assert "quorate member remove 1" in err
    status, _, err = await typed(leader, "replace", "8", "--host", "h")
    assert status == 1
    assert "unknown-member: there is no member 8" in err
    assert MEANINGS["unknown-member"] in err
    status, _, err = await typed(leader, "replace", "3", "--host", "h")
    assert (status, "removed: member 3 was removed" in err) == (1, True)
    status, _, err = await typed(leader, "replace", "0", "--host", "10.0.0.1")
    assert (status, "member 0 itself is at this address" in err) == (1, True)


async def test_a_member_that_leaves_is_not_the_one_that_is_asked() -> None:
    leader = FakeLeader()
    other = FakeLeader()
    async with asking(leader) as (leaving,), asking(other) as (stays,):
        seats: list[dict[str, object]] = []
        for member_id, connect in ((1, leaving), (2, stays)):
            host, _, port = connect.rpartition(":")
            seats.append(seat(member_id, host=host, client_port=int(port)))
        leader.lists = other.lists = [answer(*seats)]
        command = partial(quorate, "member", "remove", "1", "--connect", leaving)
        done = await trio.to_thread.run_sync(command)
    assert done.returncode == 0, done.stderr
    assert (leader.asked, other.asked) == (["member list"], ["member remove 1"])


async def test_a_silent_member_is_named_once() -> None:
    leader = FakeLeader(answer(seat(0), seat(1), seat(4, **JOINING)))
    async with asking(leader) as (connect,):
        words = ("add", *NEW, "--connect", f"{HOST}:1", "--connect", connect)
        done = await trio.to_thread.run_sync(partial(quorate, "member", *words))
    assert done.returncode == 0
    assert done.stderr.count(f"{HOST}:1: ") == 1


async def test_a_member_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.cli.control.ANSWER_SECONDS", 0.1)
    listening = await trio.open_tcp_listeners(0, host=HOST)
    port = listening[0].socket.getsockname()[1]
    async with asking(FakeLeader()) as (connect,):
        words = ("list", "--connect", f"{HOST}:{port}", "--connect", connect)
        done = await trio.to_thread.run_sync(partial(quorate, "member", *words))
    assert done.returncode == 0
    assert done.stderr == f"{HOST}:{port}: connection timed out\n"
    await listening[0].aclose()


async def test_the_end_of_waiting_has_an_object_of_its_own(tmp_path: Path) -> None:
    new = {"host": "10.0.0.9"}
    joining = answer(seat(0), seat(1), seat(2), seat(4, **JOINING | new | {"replaces": 2}))
    leader = FakeLeader(joining, joining, answer(seat(0), seat(1), seat(4, **new), version=10))
    words = ("replace", "2", "--host", "10.0.0.9", "--out", str(tmp_path / "n"), "--wait", "--json")
    status, out, _ = await typed(leader, *words)
    first, last = map(json.loads, out.splitlines())
    assert status == 0
    assert (first["request"], first["outcome"], first["version"]) == ("member replace 2", "done", 8)
    assert (last["request"], last["outcome"], last["version"]) == ("member replace 2", "done", 10)
    assert last["words"].startswith("Member 4 is a voter in the place of member 2, after ")


async def test_an_unknown_outcome_and_a_missing_leader_have_their_own_status() -> None:
    status, _, err = await typed(FakeLeader(change="UNKNOWN may be done"), "remove", "1")
    assert status == 2
    assert "may be done\nIt may be done or not. The command may be repeated" in err
    assert "\nTo see what there is: quorate member list --connect " in err
    leader = FakeLeader(change="CLUSTERDOWN no leader was found in time; nothing was done")
    status, _, err = await typed(leader, "remove", "1")
    assert status == 2
    assert "nothing was done\nToo few voters run" in err
    status, _, err = await typed(FakeLeader(change={"a": 1}), "remove", "1")
    assert status == 2
    assert "no answer of a leader" in err
    nowhere = partial(quorate, "member", "list", "--connect", f"{HOST}:1", "--json")
    done = await trio.to_thread.run_sync(nowhere)
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (2, "unreachable")


async def test_the_list_is_printed_as_a_table_and_for_programs() -> None:
    leader = FakeLeader()
    status, out, _ = await typed(leader, "list")
    assert status == 0
    assert out.splitlines()[0].split() == ["id", "state", "clients", "members", "live", *WIDE]
    assert out.splitlines()[2].split()[:4] == ["1", "voter,", "leads", "10.0.0.2:7000"]
    status, out, _ = await typed(leader, "list", "--json")
    found = json.loads(out)
    assert (found.pop("request"), found.pop("outcome")) == ("member list", "done")
    assert found.pop("words") == "Version 7: member 1 leads term 4; 3 voters."
    assert found == answer()


WIDE = ["behind", "waits"]


def shown(*seats: dict[str, object], width: int = 160, **changes: object) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        render(listed(*seats, **changes), ("db1:7000",), console)
    return captured.get()


def test_each_state_of_a_member_is_shown() -> None:
    text = shown(
        seat(0, role="leaving", state="leaving"),
        seat(1),
        seat(2, role="witness", state="witness"),
        seat(3, role="standby", state="standby", behind=2048),
        seat(4, **JOINING | {"replaces": 0}),
        joint=True,
    )
    rows = [line.split("  ") for line in text.splitlines()[1:6]]
    states = [[cell.strip() for cell in row if cell][1] for row in rows]
    assert states == ["leaving", "voter, leads", "witness", "standby", "joining as voter"]
    assert "2.0 KiB" in text
    assert "not-claimed, replaces 0" in text
    summary = "Version 7: member 1 leads term 4; 2 voters, 1 standby, 1 member joins, 1 member"
    assert f"{summary} leaves. The voters are changing now." in text
    assert f"Member 4 waits: not-claimed. {MEANINGS['not-claimed']}" in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_narrow_terminal_loses_whole_columns(width: int) -> None:
    lines = shown(seat(0), seat(1), width=width).splitlines()[:3]
    assert all(len(line.rstrip()) <= width for line in lines)
    assert all("10.0.0." in line for line in lines[1:])


def test_a_member_that_is_gone_has_the_command_that_replaces_it() -> None:
    gone = tuple(advice(listed(seat(0), seat(1), seat(2, live=False)), ("db1:7000",)))
    assert "If it comes back, there is nothing to do." in gone[0]
    assert gone[1] == "    quorate member replace 2 --connect db1:7000 --host HOST"
    ports = "--port 17000 --client-port 7000"
    standby = seat(2, live=False, role="standby", state="standby")
    assert tuple(advice(listed(seat(1), standby), ("db1:7000",)))[1:] == (
        "    quorate member remove 2 --connect db1:7000",
        f"    quorate member add --connect db1:7000 --role standby --host HOST {ports}",
    )
    unused = seat(2, live=False, role="spare", state="standby", instance="0" * 16)
    (words,) = advice(listed(seat(1), unused), ())
    assert words == f"Member 2 waits: not-claimed. {MEANINGS['not-claimed']}"
    (words,) = advice(listed(seat(1), seat(2, state="joining", waits="even")), ("db1:7000",))
    assert words.endswith("allow it: `quorate member promote 2 --connect db1:7000 --even`.")
    replaced = listed(seat(1), seat(2, live=False), seat(4, state="joining", replaces=2))
    assert tuple(advice(replaced, ())) == ("Member 2 is not live; member 4 is to replace it.",)


# --- waiting --------------------------------------------------------------------------------------


async def waited(
    leader: FakeLeader,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    **changes: Any,
) -> tuple[int, list[str]]:
    monkeypatch.setattr(member_wait, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(member_wait, "REPEAT_SECONDS", 0.0)
    async with asking(leader) as connect:
        with trio.fail_after(5):
            waited = await member_wait.wait_for(connect, 4, **changes)
    return waited.status, capsys.readouterr().err.splitlines()


async def test_a_joining_member_is_followed_until_it_votes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = {"state": "joining", "waits": "behind"}
    steps = [
        seat(4, **JOINING),
        seat(4, **JOINING),
        seat(4, **behind, match=1, behind=8 << 20),
        seat(4, **behind, match=4 << 20, behind=4 << 20),
        seat(4),
    ]
    lists = [answer(seat(0), seat(1), step, joint=step is steps[-1]) for step in steps]
    leader = FakeLeader(*lists, answer(seat(0), seat(1), seat(4)))
    status, lines = await waited(leader, capsys, monkeypatch)
    assert status == 0
    assert lines[0] == f"Member 4 waits: not-claimed. {MEANINGS['not-claimed']}"
    assert lines.count(lines[0]) == 1
    assert f"Member 4 waits: behind. {MEANINGS['behind']}" in lines
    assert "Member 4: behind, 8.0 MiB behind" in lines
    (last,) = [line for line in lines if line.startswith("Member 4: behind, 4.0 MiB behind, ")]
    assert "/s, about 0." in last
    assert "Member 4: the voters change now" in lines
    assert lines[-1].startswith("Member 4 is a voter, after ")


async def test_a_snapshot_that_is_fetched_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = FakeLeader()
    leader.activity = "fetching a snapshot, 120 of 900 MiB"
    async with asking(leader) as (connect,):
        host, _, port = connect.rpartition(":")
        fetches = JOINING | {"waits": "lagging", "match": 0, "behind": 1 << 30}
        fetches |= {"host": host, "client_port": int(port)}
        leader.lists = [answer(seat(4, **fetches))] * 3 + [answer(seat(4))]
        _, lines = await waited(leader, capsys, monkeypatch)
    assert lines[1:4] == ["Member 4: lagging", *["Member 4: lagging, " + leader.activity] * 2]


async def test_a_replacement_ends_once_the_old_member_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = FakeLeader(answer(seat(1), seat(2), seat(4)), answer(seat(1), seat(4)))
    status, lines = await waited(leader, capsys, monkeypatch, replaced=2)
    assert (status, len(leader.asked)) == (0, 2)
    assert lines[-1].startswith("Member 4 is a voter in the place of member 2, after ")


async def test_a_standby_is_there_once_it_follows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = {"role": "standby", "state": "standby"}
    waits = seat(4, **standby | {"instance": "0" * 16, "live": False})
    leader = FakeLeader(answer(seat(1), waits), answer(seat(1), seat(4, **standby)))
    status, lines = await waited(leader, capsys, monkeypatch)
    assert (status, len(leader.asked)) == (0, 2)
    assert lines[-1].startswith("Member 4 follows as a standby, after ")


async def test_a_member_that_loses_its_seat_is_waited_for_no_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = FakeLeader(answer(seat(1), seat(4, **JOINING)), answer(seat(1)))
    status, lines = await waited(leader, capsys, monkeypatch)
    assert (status, lines[-1]) == (1, "Member 4 has no seat any more: it was removed.")


async def test_a_missing_leader_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = FakeLeader({}, {}, answer(seat(1), seat(4)))
    status, lines = await waited(leader, capsys, monkeypatch)
    assert status == 0
    assert lines[0] == "No leader answers. The change goes on once there is one."
    assert len(lines) == 2
