"""Every reply is Redis's, byte for byte."""

import itertools
import shutil
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import hiredis
import pytest

from quorate.keyvalue.commands.table import Kind, all_commands, lookup
from quorate.keyvalue.commands.walk import NO_WALK
from tests.keyvalue.commands.replies import SCRIPTS, Script
from tests.keyvalue.port.connection_replies import CONNECTION_REPLIES
from tests.support.service_world import Fed, Line, encode, open_service

scripts = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


WALKS = {b"KEYS", b"SCAN", b"RANDOMKEY"}


def kind_of(line: Line) -> Kind | None:
    spec = lookup(encode(line).split(b"\r\n")[2])
    return None if spec is None else spec.kind


def walks(line: Line) -> bool:
    return encode(line).split(b"\r\n")[2].upper() in WALKS


def in_the_log(line: Line, reply: bytes) -> bytes:
    """Return what a command is answered that comes through the log: walks have no place there."""
    return NO_WALK if walks(line) and b"-ERR wrong number" not in reply else reply


@scripts
def test_replies_are_those_of_redis(fed: Fed, script: Script) -> None:
    for line, reply in script:
        assert (line, (fed.query if walks(line) else fed.apply)(line)) == (line, reply)


@scripts
def test_a_query_answers_as_a_command_would(fed: Fed, script: Script) -> None:
    for line, reply in script:
        if kind_of(line) is Kind.WRITE:
            fed.apply(line)
        else:
            assert (line, fed.query(line)) == (line, reply)


@scripts
def test_a_chunk_is_answered_as_its_commands_would_be(fed: Fed, script: Script) -> None:
    reply = fed.apply(*(line for line, _ in script))
    assert reply == b"".join(itertools.starmap(in_the_log, script))


@scripts
def test_a_transaction_answers_with_one_array(fed: Fed, script: Script) -> None:
    reply = fed.apply(*(line for line, _ in script), flags=2)
    assert reply == b"*%d\r\n" % len(script) + b"".join(itertools.starmap(in_the_log, script))


@scripts
def test_resp3_has_another_null_and_nothing_else(fed: Fed, script: Script) -> None:
    for line, reply in script:
        wanted = in_the_log(line, reply).replace(b"$-1\r\n", b"_\r\n")
        assert fed.apply(line, flags=1) == wanted


def test_every_command_of_the_state_machine_is_in_the_scripts() -> None:
    used = {
        encode(line).split(b"\r\n")[2].lower() for script in SCRIPTS.values() for line, _ in script
    }
    known = {spec.name.encode() for spec in all_commands() if spec.kind is not Kind.CONNECTION}
    of_ours = {name for name in known if name.startswith(b"quorate.")}  # Redis has none of them
    assert known - used == of_ours


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Generator[socket.socket]:
    """A connection to a real Redis 7.0; without one the tests that need it are skipped."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here")
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", "0", "--unixsocket", "redis", "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder) as server:
        try:
            assert server.stdout is not None
            banner = b""
            while b"ready to accept" not in banner.lower() and (line := server.stdout.readline()):
                banner += line
            if b"version=7.0" not in banner:
                pytest.skip("the redis-server here is another version")
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(folder / "redis"))
                yield link
        finally:
            server.kill()


def ask(link: socket.socket, line: Line) -> bytes:
    link.sendall(encode(line))
    reader, reply = hiredis.Reader(), b""
    while not reply or reader.gets(False) is False:
        data = link.recv(65536)
        reader.feed(data)
        reply += data
    return reply


@scripts
def test_redis_itself_answers_so(redis: socket.socket, script: Script) -> None:
    ask(redis, "FLUSHALL")
    for line, reply in script:
        assert (line, ask(redis, line)) == (line, reply)


def test_redis_itself_answers_connection_commands_so(redis: socket.socket) -> None:
    end = b"$7\r\nthe end\r\n"
    for line, expected in CONNECTION_REPLIES:
        redis.sendall(encode("RESET", "FLUSHALL", *line.split(" ; "), ["ECHO", "the end"]))
        reply = b""
        while not reply.endswith(end):
            reply += redis.recv(65536)
        reply = reply.removesuffix(end).removeprefix(b"+RESET\r\n+OK\r\n")
        assert (line, reply) == (line, expected)
