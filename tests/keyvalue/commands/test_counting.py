"""Plain commands of one kind are counted as they come from a socket."""

from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.keyvalue.native.plain import NATIVE, count_untrusted
from quorate.keyvalue.port.routes import RUN_COMMANDS
from tests.keyvalue.native.test_plain import plain_commands, stream
from tests.support.client_port_world import command

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")


def counted(data: bytes) -> int:
    """The specification of `count_untrusted`."""
    commands, end = plain_commands(data, 3)
    calls = {(arguments[0].lower(), len(arguments)) for arguments in commands}
    if end < len(data) or len(commands) > RUN_COMMANDS or len(calls) != 1:
        return 0
    return {(b"set", 3): len(commands), (b"get", 2): -len(commands)}.get(calls.pop(), 0)


CALLS = (
    command("SET", "a", "1"),
    command("set", "b", "\r\n*3"),
    command("GET", "a"),
    command("gEt", "b"),
    command("SET", "a", "1", "NX"),
    command("SET", "a"),
    command("GET", "a", "b"),
    command("GEX", "a"),
    command("PING"),
    b"PING\r\n",
    b"*0\r\n",
)
calls = st.lists(st.sampled_from(CALLS), max_size=12)


@given(st.one_of(stream, calls.map(b"".join)))
@example(b"")
@example(command("GET", "a") * RUN_COMMANDS)
@example(command("SET", "a", "1") * RUN_COMMANDS)
@example(command("SET", "a", "1") * (RUN_COMMANDS + 1))
@example(command("SET", "a", "1")[:-1])
@example(command("SET", "a", "1") + b"\0")
@example(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$999999999\r\n")
@example(b"*2\r\n$4\r\nGETS\r\n$1\r\na\r\n")
def test_runs_are_counted(data: bytes) -> None:
    assert count_untrusted(data) == counted(data)


@pytest.mark.parametrize("data", ["text", bytearray(b"*1"), None])
def test_wrong_arguments_are_refused(data: object) -> None:
    with pytest.raises(TypeError):
        count_untrusted(cast("bytes", data))
