"""`quorate log` tells what a store holds, and names damage."""

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import lmdb
import pytest
import trio

from quorate.cli.app import EX_CONFIG, EX_USAGE, run
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.service import KeyValueService
from quorate.local.cluster import HOST
from quorate.node.config.config import MemberConfig, NodeConfig
from quorate.node.leader.term_event import TermEvent, encode_term_event
from quorate.node.state_machine.service import KEY_VALUE
from quorate.storage import Entry, EntryKind, Store, encode_batch
from quorate.storage.tables.tables import Tables
from quorate.storage.testing import InlineExecutor

BATCHES = 4
EVENT = TermEvent(2, 7, 0, 1, "leader heartbeat timeout", 1234, 2)
NEEDLE = b"a payload that is easily found"


async def record(directory: Path) -> None:
    store = Store.open(
        directory,
        cluster="orders",
        member_id=2,
        rng=random.Random(1),
        executor=InlineExecutor,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        position = 0
        for number in range(BATCHES):
            entries = [Entry(EntryKind.COMMAND, NEEDLE + b" %d" % number), Entry(EntryKind.TIMER)]
            if number == 0:
                entries[1] = Entry(EntryKind.COMMAND, NEEDLE + b" x")
                entries[0] = Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(EVENT))
            batch = encode_batch(
                entries,
                term=0,
                position=position,
                timestamp_ms=1_000_000 + number,
                commit_position=max(0, position - 64),
            )
            await store.append_durably(batch)
            position += len(batch)
        nursery.cancel_scope.cancel()
    store.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trio.run(record, tmp_path / "log")
    return tmp_path


def test_describe_tells_whose_it_is_and_its_terms(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "describe", str(directory)]) == 0
    text = capsys.readouterr().out
    assert 'member 2 of cluster "orders"' in text
    assert "4 batches" in text
    assert "open" in text
    assert "1970-01-01 00:16:40.000Z" in text
    assert "1,234 ms" in text
    assert "leader heartbeat" in text


def test_describe_as_json_holds_everything(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "describe", str(directory / "log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["identity"]["cluster"] == "orders"
    assert found["batches"] == BATCHES
    assert found["terms"][0]["opened"] == attrs.asdict(EVENT)


def test_the_plan_of_a_witness_says_what_it_keeps(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = tuple(MemberConfig(n, HOST, 100 + n, 200 + n, witness=n == 2) for n in range(3))
    (directory / "node.toml").write_text(NodeConfig("orders", 2, Path(), members).to_toml())
    assert run(["log", "recovery-plan", str(directory)]) == 0
    text = capsys.readouterr().out
    assert "none, it is a witness" in text
    assert "A witness keeps the log, and no keys" in text
    assert run(["log", "recovery-plan", str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replay_from"] == found["append_position"]


def test_verify_of_a_sound_recording_succeeds(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "verify", str(directory)]) == 0
    assert "Every record is sound." in capsys.readouterr().out


def test_verify_names_the_damage_and_fails(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "log" / "data.mdb"
    # older pages may hold a copy
    file.write_bytes(file.read_bytes().replace(NEEDLE + b" 1", NEEDLE + b" 7"))
    assert run(["log", "verify", str(directory)]) == 1
    told = capsys.readouterr().out
    assert "member 2, term 0, position " in told
    assert "DAMAGED: 1 finding." in told
    assert run(["log", "verify", str(directory), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_dump_prints_batches_and_entries(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "dump", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == BATCHES * 3
    assert lines[0].startswith("term 0  0 to ")
    assert lines[1].split()[0] == "NEW_LEADERSHIP_TERM"
    assert lines[2].split() == ["COMMAND", *NEEDLE.decode().split(), "x"]
    assert "not known to be committed" in lines[-3]


def test_dump_as_json_begins_where_asked(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "dump", str(directory), "--json"]) == 0
    batches = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(batch["entries"]) for batch in batches] == [2] * BATCHES
    second = batches[1]["position"]
    assert run(["log", "dump", str(directory), "--json", "--from", str(second)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == batches[1]


@pytest.mark.parametrize("verb", ["describe", "verify", "dump"])
def test_a_directory_without_a_recording_is_told(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", verb, str(tmp_path)]) == EX_CONFIG
    assert capsys.readouterr().err == f"quorate: {tmp_path}: no recording there\n"


def test_what_is_not_the_recording_but_near_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        trio.run(record, tmp_path / f"member-{number}" / "log")
    assert run(["log", "verify", str(tmp_path)]) == EX_CONFIG
    assert "ask for one of member-0, member-1 in it" in capsys.readouterr().err
    tables = tmp_path / "member-0" / "tables"
    Tables.open(tables, cluster="orders", member_id=0).close()
    assert run(["log", "verify", str(tables)]) == EX_CONFIG
    assert f"the recording is {tmp_path / 'member-0' / 'log'}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["describe", "verify", "dump"])
def test_another_store_of_lmdb_is_told(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tables.open(tmp_path, cluster="orders", member_id=0).close()
    assert run(["log", verb, str(tmp_path)]) == EX_CONFIG
    told = capsys.readouterr().err
    assert told == f"quorate: {tmp_path}: a store of LMDB, but of other tables\n"


def test_a_missing_argument_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify"]) == EX_USAGE
    assert "DIRECTORY" in capsys.readouterr().err


def set_user(name: str, *words: str) -> Entry:
    command = resp.encode_command(["ACL", "SETUSER", name, *words])
    return Entry(EntryKind.COMMAND, command)


async def write(store: Store, position: int, *entries: Entry) -> int:
    batch = encode_batch(
        entries, term=0, position=position, timestamp_ms=1_000_000, commit_position=position
    )
    await store.append_durably(batch)
    return position + len(batch)


async def record_users(directory: Path, kind: str, *, flushed: bool) -> None:
    """Record what alice and a deleted user did; the tables have nothing, or alice only."""
    log, tables = directory / "log", directory / "tables"
    store = Store.open(
        log, cluster="orders", member_id=2, rng=random.Random(1), executor=InlineExecutor
    )
    store.opened_with(kind)
    alice, bob = set_user("alice", "on"), set_user("b\x1b[1mob", "on")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        event = Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(EVENT))
        position = await write(store, 0, event)
        position = await write(store, position, alice, set_user("wrong", "+nosuch"))
        if flushed:
            service = KeyValueService.open(tables, cluster="orders", member_id=2)
            service.users.set(b"alice", [b"on"], position)
            service.advance(position, 1_000_000)
            async with trio.open_nursery() as flushing:
                await flushing.start(service.run)
                flushing.cancel_scope.cancel()  # it flushes at its end
            service.close()
        position = await write(
            store,
            position,
            bob,
            *(Entry(EntryKind.COMMAND, NEEDLE, principal=number) for number in (0, 1, 2, 3)),
        )
        gone = resp.encode_command(["ACL", "DELUSER", "b\x1b[1mob"])
        position = await write(store, position, Entry(EntryKind.COMMAND, gone, principal=1))
        await write(store, position, Entry(EntryKind.CLUSTER_ACTION, b"snapshot", principal=1))
        nursery.cancel_scope.cancel()
    store.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_dump_tells_who_wrote_an_entry(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    flushed: bool,
) -> None:
    trio.run(partial(record_users, tmp_path, KEY_VALUE, flushed=flushed))
    assert run(["log", "dump", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if "easily" in line or "DELUSER" in line or "ACTION" in line]
    assert [line.strip().partition("by ")[2].partition(" ")[0] for line in found] == [
        *("", "alice", r"b\x1b[1mob", "#3", "alice", "alice")
    ]
    assert run(["log", "dump", str(tmp_path), "--json"]) == 0
    entries = [
        (entry["kind"], entry["principal"], entry["user"])
        for line in capsys.readouterr().out.splitlines()
        for entry in json.loads(line)["entries"]
    ]
    assert entries == [
        ("NEW_LEADERSHIP_TERM", 0, ""),
        *[("COMMAND", 0, "default")] * 4,
        ("COMMAND", 1, "alice"),
        ("COMMAND", 2, r"b\x1b[1mob"),
        ("COMMAND", 3, "#3"),
        ("COMMAND", 1, "alice"),
        ("CLUSTER_ACTION", 1, "alice"),
    ]


def test_the_numbers_of_a_service_of_ones_own_have_no_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.run(partial(record_users, tmp_path, "counter", flushed=False))
    assert run(["log", "dump", str(tmp_path), "--json"]) == 0
    users = [
        entry["user"]
        for line in capsys.readouterr().out.splitlines()
        for entry in json.loads(line)["entries"]
    ]
    assert users == ["", "", "", "", "", "#1", "#2", "#3", "#1", "#1"]


@pytest.mark.parametrize("interrupts", ["default_int_handler", "SIG_IGN"])
def test_a_tool_that_gets_sigterm_leaves_no_readers_slot(directory: Path, interrupts: str) -> None:
    """A slot that is left behind holds back the space of a running member.

    A shell starts its background jobs with SIGINT ignored.
    """
    code = (
        "import os, signal, sys\n"
        f"signal.signal(signal.SIGINT, signal.{interrupts})\n"
        "from quorate.cli import log as cli_log\n"
        "from quorate.cli.app import main\n"
        "cli_log.lines_of = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or []\n"
        f"sys.argv = ['quorate', 'log', 'dump', {str(directory)!r}]\n"
        "main()\n"
    )
    with lmdb.open(str(directory / "log"), create=False) as raw:  # as a running member has it
        with subprocess.Popen([sys.executable, "-c", code]) as child:
            pass
        assert str(child.pid) not in raw.readers()
    assert child.returncode == 143
