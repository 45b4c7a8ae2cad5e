"""The audit log's file: lines, rotation, bounds, and disks that fail."""

import errno
import json
import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from quorate.node.config.config import MemberConfig, NodeConfig, Security
from quorate.node.upkeep import audit
from quorate.node.upkeep.audit import AuditLog, open_audit, writing
from quorate.transport import NoAudit
from tests.support.logged import events

T = TypeVar("T")
NOW_MS = 1_700_000_000_123


class Inline:
    """Runs calls at once; while `held` is set, they wait for its end."""

    def __init__(self) -> None:
        self.held: trio.Event | None = None

    async def read(self, fn: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        if self.held is not None:
            await self.held.wait()
        return fn()


@asynccontextmanager
async def opened(path: Path, lane: Inline | None = None) -> AsyncGenerator[AuditLog]:
    made = AuditLog(path, 2, lambda: NOW_MS, lane=lane or Inline())
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_an_event_is_a_line_that_only_the_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with opened(path) as made:
        made.note("login", user="al\N{ESCAPE}[1m\nice", client=7)
        await trio.testing.wait_all_tasks_blocked()
        assert path.read_bytes() == (
            b'{"time": "2023-11-14T22:13:20.123+00:00", "member": 2, "event": "login", '
            b'"user": "al\\u001b[1m\\nice", "client": 7}\n'
        )
        made.note("left")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line["event"] for line in lines_of(path)] == ["login", "left"]


async def test_the_last_events_are_written_at_the_end(tmp_path: Path) -> None:
    path, lane = tmp_path / "audit.jsonl", Inline()
    made = AuditLog(path, 2, lambda: NOW_MS, lane=lane)
    async with writing(made):
        lane.held = trio.Event()
        made.note("last")
        lane.held.set()
    assert [line["event"] for line in lines_of(path)] == ["started", "last", "stopped"]
    async with writing(NoAudit()):
        pass


async def test_half_a_line_of_a_crash_stays_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"event": "ha')
    path.chmod(0o644)
    async with opened(path) as made:
        made.note("next")
    first, second = path.read_bytes().splitlines()
    assert first == b'{"event": "ha'
    assert json.loads(second)["event"] == "next"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_files_are_rotated_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 150)
    monkeypatch.setattr(audit, "FILES", 3)
    path = tmp_path / "audit.jsonl"
    async with opened(path) as made:
        for number in range(9):
            made.note("login", number=number)
            await trio.testing.wait_all_tasks_blocked()
    kept = [path, path.with_name("audit.jsonl.1"), path.with_name("audit.jsonl.2")]
    assert sorted(tmp_path.iterdir()) == kept  # noqa: ASYNC240 - a test
    numbers = [line["number"] for file in reversed(kept) for line in lines_of(file)]
    assert numbers == [*range(9)][-len(numbers) :]
    assert all(file.stat().st_size <= 150 for file in kept)


async def test_a_disk_that_fails_is_warned_of_once_and_the_losses_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, broken = tmp_path / "audit.jsonl", True
    fdatasync = os.fdatasync

    def fail(fileno: int) -> None:
        if broken:
            raise OSError(errno.EIO, "Input/output error")
        fdatasync(fileno)

    monkeypatch.setattr(os, "fdatasync", fail)
    async with opened(path) as made:
        for number in range(3):
            made.note("login", number=number)
            await trio.testing.wait_all_tasks_blocked()
        broken = False
        made.note("login", number=9)
    failed = {"path": str(path), "why": "Input/output error"}
    assert events(caplog, "audit_log_failed") == [failed]
    assert [
        (line["event"], line.get("count"), line.get("number")) for line in lines_of(path)[-2:]
    ] == [("events_lost", 3, None), ("login", None, 9)]


async def test_a_disk_that_hangs_takes_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING_BYTES", 1000)
    path, lane = tmp_path / "audit.jsonl", Inline()
    lane.held = trio.Event()
    async with opened(path, lane) as made:
        for number in range(100):
            made.note("login", number=number)
        await trio.testing.wait_all_tasks_blocked()
        lane.held.set()
    lost = [line["count"] for line in lines_of(path) if line["event"] == "events_lost"]
    written = [line for line in lines_of(path) if line["event"] == "login"]
    assert sum(lost) + len(written) == 100
    assert len(written) < 20


async def test_a_stranger_causes_few_events_a_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "audit.jsonl"
    async with opened(path) as made:
        for _ in range(1000):
            made.note("login_failed", of="10.0.0.1")
        made.note("login_failed", of="10.0.0.2")
        made.note("login")
        await trio.sleep(1)
        made.note("login_failed", of="10.0.0.1", user="x")
        for number in range(6000):  # what is remembered of them is bounded
            made.note("login_failed", of=f"host{number}")
        assert len(made._seconds) <= 4096  # pyright: ignore[reportPrivateUsage]
    events = [line for line in lines_of(path) if "left_out" in line or line["event"] == "login"]
    assert [(line["event"], line.get("left_out")) for line in events] == [
        ("login", None),
        ("login_failed", 1000 - audit.MOST_A_SECOND),
    ]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, None),
        ({"cluster_key_file": "k"}, "member/audit.jsonl"),
        ({"cluster_key_file": "k", "audit_log": "off"}, None),
        ({"audit_log": "auto"}, None),
        ({"audit_log": "/var/log/a"}, "/var/log/a"),
        ({"audit_log": "logs/a"}, "conf/logs/a"),
    ],
)
def test_where_the_file_is(settings: dict[str, str], path: str | None) -> None:
    security = Security(**settings).within(Path("conf"))  # type: ignore[arg-type]
    config = NodeConfig(
        cluster="c",
        member_id=0,
        directory=Path("member"),
        members=(MemberConfig(0, "127.0.0.1", 1, 2),),
        security=security,
    )
    assert security.audit_path(config.directory) == (None if path is None else Path(path))
    assert isinstance(open_audit(config, lambda: 0), NoAudit) == (path is None)
