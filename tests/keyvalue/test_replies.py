"""Every reply is Redis's, byte for byte."""

import shutil
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import hiredis
import pytest
from replies import SCRIPTS, Script
from service_world import Fed, Line, encode, open_service

from quorate.keyvalue.commands import Kind, all_commands, lookup

scripts = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


@scripts
def test_replies_are_those_of_redis(fed: Fed, script: Script) -> None:
    for line, reply in script:
        assert (line, fed.apply(line)) == (line, reply)


@scripts
def test_a_query_answers_as_a_command_would(fed: Fed, script: Script) -> None:
    for line, reply in script:
        name = encode(line).split(b"\r\n")[2]
        spec = lookup(name)
        if spec is not None and spec.kind is Kind.WRITE:
            fed.apply(line)
        else:
            assert (line, fed.query(line)) == (line, reply)


@scripts
def test_a_chunk_is_answered_as_its_commands_would_be(fed: Fed, script: Script) -> None:
    reply = fed.apply(*(line for line, _ in script))
    assert reply == b"".join(one for _, one in script)


@scripts
def test_a_transaction_answers_with_one_array(fed: Fed, script: Script) -> None:
    reply = fed.apply(*(line for line, _ in script), flags=2)
    assert reply == b"*%d\r\n" % len(script) + b"".join(one for _, one in script)


@scripts
def test_resp3_has_another_null_and_nothing_else(fed: Fed, script: Script) -> None:
    for line, reply in script:
        assert fed.apply(line, flags=1) == reply.replace(b"$-1\r\n", b"_\r\n")


def test_every_command_of_the_state_machine_is_in_the_scripts() -> None:
    used = {
        encode(line).split(b"\r\n")[2].lower() for script in SCRIPTS.values() for line, _ in script
    }
    known = {spec.name.encode() for spec in all_commands() if spec.kind is not Kind.CONNECTION}
    assert known - used == set()


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
