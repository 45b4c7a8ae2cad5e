"""`quorate run` as a process: signals, the pid file, log lines, exit status."""

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
import trio

from quorate.cli.app import EX_CONFIG, EX_TEMPFAIL
from quorate.client.resp import RespError, open_resp
from quorate.keyvalue.port.listener import RESERVED_DESCRIPTORS
from quorate.local.cluster import free_client_port, lay_out
from quorate.local.survey import ask
from quorate.node.config.config import NodeConfig
from quorate.node.requests.status import MemberAddress

PATIENCE_SECONDS = 60.0
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    """A cluster of one."""
    (alone,) = lay_out(tmp_path, members=1, client_port=free_client_port(1), profile="test")
    return alone


@pytest.fixture
def start(config: NodeConfig) -> Iterator[Start]:
    """Starts `quorate run`; whatever still runs is killed at the end."""
    children: list[subprocess.Popen[str]] = []

    def start(*options: str, files: tuple[int, int] | None = None) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "quorate"]
        if files is not None:
            limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {files}); "
            command[1:] = ["-c", limit + "from quorate.cli.app import main; main()"]
        child = subprocess.Popen(
            [*command, "run", *options, str(config.directory / "node.toml")],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def wait_until_ready(config: NodeConfig) -> None:
    """Wait until the member leads, since it answers before it does."""
    address = MemberAddress(0, config.own.host, config.own.client_port)
    end = time.monotonic() + PATIENCE_SECONDS
    while (status := (answer := trio.run(ask, address)).status) is None or status.role != "leader":
        assert time.monotonic() < end, answer
        time.sleep(0.02)


def test_nobody_has_to_read_its_log(config: NodeConfig) -> None:
    there, here = os.pipe()
    os.set_blocking(here, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(here, b"x" * 4096)
    os.set_blocking(here, True)
    command = [sys.executable, "-m", "quorate", "run", str(config.directory / "node.toml")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=here)
    os.close(here)
    with child, os.fdopen(there, "rb") as read:
        try:
            wait_until_ready(config)
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE_SECONDS) == 0
        finally:
            child.kill()
        assert read.read().strip(b"x") == b"", "its lines were dropped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_in_order(
    config: NodeConfig, start: Start, number: signal.Signals
) -> None:
    child = start()
    wait_until_ready(config)
    assert (config.directory / "pid").read_text() == f"{child.pid}\n"
    child.send_signal(number)
    _, told = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0
    assert f"{number.name}: stopping in order" in told
    assert not (config.directory / "pid").exists()


def test_busy_clients_get_their_last_replies_and_a_plain_end(
    config: NodeConfig, start: Start
) -> None:
    child = start()
    wait_until_ready(config)
    increments, clients = 16, 20

    async def ask_on_and_on(client: trio.SocketStream, name: bytes) -> int:
        """Send pipelines until the end of the stream; count the replies."""
        pipeline = b"*2\r\n$4\r\nINCR\r\n$2\r\n%b\r\n" % name * increments
        received, asked = b"", 0
        while True:
            try:
                await client.send_all(pipeline)
            except trio.BrokenResourceError:
                break  # closed already; what there is can still be read
            asked += increments
            while received.count(b"\n") < asked and (more := await client.receive_some(65536)):
                received += more
            if received.count(b"\n") < asked:
                break
        assert received == b"".join(b":%d\r\n" % (n + 1) for n in range(received.count(b"\n")))
        return received.count(b"\n")

    async def main() -> list[int]:
        counts: list[int] = []

        async def one(number: int) -> None:
            address = config.own.host, config.own.client_port
            async with await trio.open_tcp_stream(*address) as client:
                counts.append(await ask_on_and_on(client, b"%02d" % number))

        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(one, number)
            await trio.sleep(0.3)
            child.terminate()
        return counts

    counts = trio.run(main)
    assert len(counts) == clients
    assert min(counts) > 0
    assert all(count % increments == 0 for count in counts), "whole pipelines are answered"
    _, told = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0, told


@pytest.mark.parametrize("hard", [160, 8192])
def test_as_many_clients_are_taken_as_files_can_be_opened(
    config: NodeConfig, start: Start, hard: int
) -> None:
    child = start(files=(128, hard))
    wait_until_ready(config)
    address = config.own.host, config.own.client_port

    async def main() -> tuple[int, list[bytes]]:
        async with open_resp(*address) as client:
            told = await client.call("CONFIG", "GET", "maxclients")
            assert isinstance(told, list)
            assert isinstance(told[1], bytes)
            opened = [await trio.open_tcp_stream(*address) for _ in range(100)]
            answers: list[bytes] = []
            for stream in opened:
                await stream.send_all(b"PING\r\n")
                with trio.fail_after(PATIENCE_SECONDS):
                    answers.append(await stream.receive_some(100))
            assert await client.call("SET", "a", "1") == b"OK"
            for stream in opened:
                await stream.aclose()
        return int(told[1]), answers

    most, answers = trio.run(main)
    served = answers.count(b"+PONG\r\n")
    child.terminate()
    _, log = child.communicate(timeout=PATIENCE_SECONDS)
    if hard > 4096:
        assert (served, most) == (100, 4096)
        assert "WARNING" not in log
    else:
        assert 20 < most < 160 - RESERVED_DESCRIPTORS
        assert most - 3 <= served + 1 <= most
        assert set(answers) == {b"+PONG\r\n", b"-ERR max number of clients reached\r\n"}
        assert f"max_clients is 4096, but the limit of open files, {hard}, leaves room" in log


def test_a_start_and_a_stop_are_a_few_lines(config: NodeConfig, start: Start) -> None:
    child = start()
    wait_until_ready(config)
    child.terminate()
    _, told = child.communicate(timeout=PATIENCE_SECONDS)
    names = list[str]()
    for line in told.splitlines():
        at, level, event, _text = line.split(maxsplit=3)
        assert time.strptime(at.partition(".")[0], "%Y-%m-%dT%H:%M:%S")
        assert level == "INFO"
        names.append(event)
    assert names == ["starts:", "founded:", "leads:", "stops:", "ends:"]


def test_log_lines_are_json_if_the_file_says_so(config: NodeConfig, start: Start) -> None:
    file = config.directory / "node.toml"
    file.write_text(file.read_text() + '\n[log]\nformat = "json"\nlevel = "DEBUG"\n')
    child = start()
    wait_until_ready(config)
    child.terminate()
    _, told = child.communicate(timeout=PATIENCE_SECONDS)
    lines = [json.loads(line) for line in told.splitlines()]
    assert {line["member"] for line in lines} == {0}
    names = [line["event"] for line in lines]
    assert (names[0], names[-1]) == ("starts", "ends")
    (leads,) = [line for line in lines if line["event"] == "leads"]
    assert (leads["level"], leads["leader"], leads["cause"]) == ("INFO", 0, "node started")
    entered = [line["after"] for line in lines if line["event"] == "enters"]
    assert "CLOSED" in entered


def test_the_log_level_is_heeded(config: NodeConfig, start: Start) -> None:
    child = start("--log-level", "ERROR")
    wait_until_ready(config)
    child.terminate()
    assert child.communicate(timeout=PATIENCE_SECONDS)[1] == ""


def test_a_second_member_on_the_same_store_is_told_that_it_is_busy(
    config: NodeConfig, start: Start
) -> None:
    first = start()
    wait_until_ready(config)
    second = start()
    _, told = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == EX_TEMPFAIL
    assert told.splitlines()[-1].startswith("quorate: ")
    assert first.poll() is None
    assert (config.directory / "pid").read_text() == f"{first.pid}\n"


def test_a_store_of_another_member_is_refused(config: NodeConfig, start: Start) -> None:
    child = start()
    wait_until_ready(config)
    child.terminate()
    child.communicate(timeout=PATIENCE_SECONDS)
    file = config.directory / "node.toml"
    file.write_text(file.read_text().replace("member_id = 0", "member_id = 1"))
    other = start()
    _, told = other.communicate(timeout=PATIENCE_SECONDS)
    assert other.returncode == EX_CONFIG
    assert told.splitlines()[-1].startswith("quorate: ")


def test_it_ends_in_order_when_its_parent_is_gone(config: NodeConfig, start: Start) -> None:
    child = start("--stop-at-eof")
    wait_until_ready(config)
    _, told = child.communicate(timeout=PATIENCE_SECONDS)  # closes its standard input
    assert child.returncode == 0
    assert "standard input has ended: stopping in order" in told


def test_it_ends_in_order_when_a_signal_follows_the_end_of_its_parent(
    config: NodeConfig, start: Start
) -> None:
    child = start("--stop-at-eof")
    wait_until_ready(config)
    stdin, child.stdin = child.stdin, None
    assert stdin
    assert child.stderr
    stdin.close()
    assert any("standard input has ended" in line for line in child.stderr)
    child.terminate()
    child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0


def test_a_write_that_finds_no_room_ends_nothing_for_good(config: NodeConfig, start: Start) -> None:
    async def command(*words: str) -> object:
        async with open_resp(config.own.host, config.own.client_port) as client:
            return await client.call(*words)

    async def write_until_refused() -> int:
        for number in range(100):
            with trio.move_on_after(2.0) as waiting:
                try:
                    assert await command("SET", f"large:{number}", "x" * 1_000_000) == b"OK"
                except (OSError, RespError, trio.BrokenResourceError):
                    return number
            if waiting.cancelled_caught:
                return number
        raise AssertionError("the limit was not noticed")

    child = start()
    wait_until_ready(config)
    assert trio.run(command, "SET", "key", "value") == b"OK"
    size = (config.directory / "log" / "data.mdb").stat().st_size
    _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (size + 3_000_000, -1))
    written = trio.run(write_until_refused)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (-1, hard))
    assert child.stderr
    told = next(line for line in child.stderr if "the disk is full" in line)
    assert "the member starts again when there is room" in told
    wait_until_ready(config)
    assert trio.run(command, "GET", "key") == b"value"
    for number in range(written):
        assert trio.run(command, "STRLEN", f"large:{number}") == 1_000_000
    assert trio.run(command, "SET", "key", "anew") == b"OK"
    child.terminate()
    child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0


def test_damaged_tables_are_thrown_away_and_made_anew(config: NodeConfig, start: Start) -> None:
    async def command(*words: str) -> object:
        async with open_resp(config.own.host, config.own.client_port) as client:
            return await client.call(*words)

    first = start()
    wait_until_ready(config)
    for number in range(3):
        assert trio.run(command, "SET", f"key:{number}", "value") == b"OK"
    first.terminate()
    first.communicate(timeout=PATIENCE_SECONDS)
    with lmdb.open(str(config.directory / "tables"), max_dbs=8) as raw:
        records = raw.open_db(b"records", create=False)
        with raw.begin(write=True) as txn:
            row = txn.get(b"key:1", db=records)
            assert row is not None
            txn.put(b"key:1", row[:-1] + b"?", db=records)
    again = start()
    wait_until_ready(config)
    assert trio.run(command, "GET", "key:0") == b"value"
    with contextlib.suppress(OSError, RespError, trio.BrokenResourceError):
        trio.run(command, "GET", "key:1")  # which ends the member
    assert again.stderr
    told = "".join(
        itertools.takewhile(lambda line: "they are thrown away" not in line, again.stderr)
    )
    assert "the tables are damaged, the member starts again" in told
    wait_until_ready(config)
    for number in range(3):
        assert trio.run(command, "GET", f"key:{number}") == b"value"
    again.terminate()
    again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0


def test_what_was_acknowledged_survives_kill_9(config: NodeConfig, start: Start) -> None:
    async def command(*words: str) -> object:
        async with open_resp(config.own.host, config.own.client_port) as client:
            return await client.call(*words)

    first = start()
    wait_until_ready(config)
    assert trio.run(command, "SET", "key", "value") == b"OK"
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    start()
    wait_until_ready(config)
    assert trio.run(command, "GET", "key") == b"value"
