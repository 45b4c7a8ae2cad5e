"""The flight recorder of a real member: what is in its files, across starts and on full disks."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from quorate import open_node
from quorate.errors import StorageError
from quorate.local.cluster import free_client_port
from quorate.node import MemberConfig, NodeConfig
from quorate.node.live import flight
from quorate.node.live.flight import flight_file
from quorate.recordings import Event
from quorate.recordings.head import WALL
from quorate.recordings.reading import open_recording_untrusted
from quorate.recordings.ring import files_of


def config_at(directory: Path) -> NodeConfig:
    first = free_client_port(2)
    return NodeConfig("c", 0, directory, (MemberConfig(0, "127.0.0.1", first, first + 1),))


def events_of(config: NodeConfig) -> list[Event]:
    found: list[Event] = []
    for file in files_of(flight_file(config.directory)):
        with open_recording_untrusted(file) as recording:
            assert recording.head.reporter == 0
            assert recording.head.clock == WALL
            found += recording.events
    return found


async def run_once(config: NodeConfig) -> None:
    async with open_node(config) as node:
        with trio.fail_after(20):
            await node.wait_for_leader()
        await trio.sleep(0.3)


async def test_a_start_goes_on_in_the_file_of_the_one_before(tmp_path: Path) -> None:
    config = config_at(tmp_path / "m")
    await run_once(config)
    first = events_of(config)
    kinds = [each.kind for each in first]
    assert kinds[0] == "starts"
    assert kinds[-1] == "stops"
    assert {"keyframe", "enters", "leads", "positions"} <= set(kinds)
    path = flight_file(config.directory)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'{"at":3,"mem')  # it was killed
    await run_once(config)
    both = events_of(config)
    assert both[: len(first)] == first
    assert [each.kind for each in both if each.kind in {"starts", "stops"}] == [
        "starts",
        "stops",
    ] * 2
    times = [each.at for each in both]
    assert times == sorted(times)
    assert len(files_of(path)) == 1


async def test_a_file_that_is_none_is_put_aside(tmp_path: Path) -> None:
    config = config_at(tmp_path / "m")
    path = flight_file(config.directory)
    path.parent.mkdir(parents=True)
    path.write_text("something else\n")
    await run_once(config)
    older, newest = files_of(path)
    assert older.read_text() == "something else\n"
    with open_recording_untrusted(newest) as recording:
        assert next(recording.events).kind == "starts"


async def test_a_full_disk_loses_events_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, write, full = config_at(tmp_path / "m"), os.write, True

    def refuse(fileno: int, data: bytes) -> int:
        if full and "flight" in str(Path(f"/proc/self/fd/{fileno}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fileno, data)

    monkeypatch.setattr(os, "write", refuse)
    async with open_node(config) as node:
        with trio.fail_after(20):
            await node.wait_for_leader()
        await trio.sleep(0.2)
        full = False
    assert caplog.text.count("can't be written: No space left on device") == 1
    notes = [each.fields["text"] for each in events_of(config) if each.kind == "note"]
    assert notes
    assert notes[0].endswith("events were lost: the disk could not take them")


async def test_why_a_member_ended_is_the_last_that_it_says(tmp_path: Path) -> None:
    config = config_at(tmp_path / "m")
    with pytest.raises(StorageError, match="planted"):
        async with open_node(config):
            raise StorageError("planted")
    kinds = [(each.kind, each.fields.get("why")) for each in events_of(config)]
    assert kinds[-2:] == [("fails", "StorageError: planted"), ("stops", None)]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyError("alice@example.com"), "KeyError"),
        (OSError(errno.EIO, "alice@example.com"), "OSError: Input/output error"),
    ],
)
async def test_what_a_state_machine_quotes_is_not_recorded(
    tmp_path: Path, error: Exception, why: str
) -> None:
    config = config_at(tmp_path / "m")
    with pytest.raises(type(error)):
        async with open_node(config):
            raise error
    assert [each.fields["why"] for each in events_of(config) if each.kind == "fails"] == [why]


async def test_a_start_whose_clock_is_behind_begins_a_file(tmp_path: Path) -> None:
    config = config_at(tmp_path / "m")
    await run_once(config)
    path = flight_file(config.directory)
    with path.open("ab") as file:
        # Its clock was an hour ahead, until somebody set it right.
        file.write(b'{"at":3600,"member":0,"kind":"stops"}\n')
    await run_once(config)
    assert len(files_of(path)) == 2
    with open_recording_untrusted(path) as recording:
        times = [each.at for each in recording.events]
    assert times == sorted(times)
    assert times[-1] < 60


async def test_a_new_file_begins_with_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "FILE_BYTES", 6_000)
    monkeypatch.setattr(flight, "FILES", 3)
    monkeypatch.setattr(flight, "KEYFRAME_SECONDS", 0.0)
    monkeypatch.setattr(flight, "FLUSH_STATUSES", 1)
    config = config_at(tmp_path / "m")
    async with open_node(config) as node:
        with trio.fail_after(30):
            number = 0
            while len(files_of(flight_file(config.directory))) < 3:
                await node.kv.set(b"key", b"%d" % (number := number + 1))
                await trio.sleep(0.05)
    for file in files_of(flight_file(config.directory)):
        with open_recording_untrusted(file) as recording:
            kinds = [each.kind for each in recording.events]
        assert kinds[0] in {"starts", "keyframe"}


async def test_a_directory_that_could_not_be_made_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mkdir, full = config_at(tmp_path / "m"), Path.mkdir, True

    def refuse(path: Path, **how: Any) -> None:
        if full and path.name == "flight":
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, **how)

    monkeypatch.setattr(Path, "mkdir", refuse)
    async with open_node(config) as node:
        with trio.fail_after(20):
            await node.wait_for_leader()
        await trio.sleep(0.2)
        full = False
    found = events_of(config)
    assert found[0].fields["text"].endswith("events were lost: the disk could not take them")
    assert found[-1].kind == "stops"
