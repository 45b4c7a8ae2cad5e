"""What clients do is counted once, by the names of commands and the first words of errors."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quorate.keyvalue.clients.counters import UNKNOWN, Counters
from quorate.keyvalue.port.figures import port_families
from quorate.keyvalue.port.listener import ClientPort
from quorate.metrics import exposition
from tests.support.client_port_world import World, command


def figures(port: ClientPort) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels, as a parser reads it."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(port_families(port.state)))
        for sample in family.samples
    }


async def test_commands_errors_and_durations(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        one, other = await world.connect(), await world.connect()
        # Joined, a pipeline, a mixed one, by a spelling of its own, and two that are no commands.
        await one.ask(command("SET", "a", "1"), b"+OK\r\n")
        await other.ask(command("SET", "b", "\r\n-ERR x") * 3, b"+OK\r\n" * 3)
        await one.ask(command("GeT", "a"), b"$1\r\n1\r\n")
        await one.ask(command("GET", "b") * 2, b"$8\r\n\r\n-ERR x\r\n" * 2)
        await one.ask(command("SETEX", "c", "9", "x") + command("GET", "c"), b"+OK\r\n$1\r\nx\r\n")
        await one.ask(command("PING") * 2, b"+PONG\r\n" * 2)
        wrong = command("SET", "n", "x") + command("INCR", "n") + command("GET", "n")
        await one.send(wrong)
        await one.receive_until(b"$1\r\nx\r\n")
        await one.send(command("NO.SUCH", "\xff") + command("HGETALL"))
        await one.receive_until(b"\r\n")
        await world.until(lambda: world.port.state.counters.errors["ERR"] >= 3)
        found = figures(world.port)
        names = {key[1]: n for key, n in found.items() if key[0] == "quorate_commands_total"}
        assert names == {"set": 5, "get": 5, "setex": 1, "ping": 2, "incr": 1, UNKNOWN: 2}
        assert found["quorate_command_errors_total", "ERR"] == 3
        name = "quorate_command_duration_seconds_count"
        counts = {key[1]: n for key, n in found.items() if key[0] == name}
        assert counts["write"] == 4 + 2 + 3  # a run with a write is one
        assert counts["read"] == 3
        assert counts["admin"] == 4
        assert sum(counts.values()) == sum(names.values()) == world.port.state.counters.commands
        assert found["quorate_clients_connected",] == 2
        assert found["quorate_client_output_bytes_total",] > 100
        assert found["quorate_clients_refused_total", "too_many"] == 0
        assert found["quorate_stale_reads_total",] == 0
        # The objects stay: readers of live events hold them.
        counters = world.port.state.counters
        held = counters.durations["write"]
        await one.ask(command("CONFIG", "RESETSTAT"), b"+OK\r\n")
        assert held.count == counters.by_command["set"] == counters.commands == 0
        assert counters.durations["write"] is held


async def test_a_read_that_may_be_old_is_counted_as_such(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        client = await world.connect()
        await client.ask(command("READONLY"), b"+OK\r\n")
        world.member.follow(1)
        await client.ask(command("GET", "a") * 2, b"$-1\r\n" * 2)
        await client.ask(command("GET", "a"), b"$-1\r\n")
        assert figures(world.port)["quorate_stale_reads_total",] == 3


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"$4\r\n-ERR\r\n", b":-1\r\n"])
def test_only_errors_are_errors(reply: bytes) -> None:
    counters = Counters()
    counters.count_reply(reply)
    counters.count_replies(reply * 3, 3)
    assert not counters.errors


def test_the_words_of_errors_are_bounded() -> None:
    counters = Counters()
    for n in range(1000):
        counters.count_reply(b"-W%d no\r\n" % n)
    assert len(counters.errors) == 65
    assert counters.errors[UNKNOWN] == 1000 - 64
