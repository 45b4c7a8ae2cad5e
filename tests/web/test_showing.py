"""What live events show of the clients of a port."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quorate.metrics import Histogram
from quorate.web.showing import count_clients
from tests.support.client_port_world import World, command

READS = 60


async def test_each_read_counts_once_however_it_is_answered(tmp_path: Path) -> None:
    reporter = SimpleNamespace(counts={}, histograms={})
    member: Any = SimpleNamespace(reporter=reporter)
    async with World.opened(tmp_path / "tables", redirect="never") as world:
        count_clients(member, world.port)
        reads = reporter.counts["reads"]
        client = await world.connect()
        # Sent together, they are one request.
        ones = b"$1\r\n1\r\n" * READS
        await client.ask(command("SET", "key", "1"), b"+OK\r\n")
        await client.ask(command("GET", "key") * READS, ones)
        assert reads() == READS
        await client.ask(command("READONLY"), b"+OK\r\n")
        world.member.follow(1)
        await client.ask(command("GET", "key"), b"$1\r\n1\r\n")
        assert world.member.stale
        assert reads() == READS + 1


async def test_calls_of_clients_of_etcd_count_too(tmp_path: Path) -> None:
    reporter = SimpleNamespace(counts={}, histograms={})
    member: Any = SimpleNamespace(reporter=reporter)
    calls = {"read": Histogram(), "write": Histogram()}
    async with World.opened(tmp_path / "tables", redirect="never") as world:
        count_clients(member, world.port, calls)
        client = await world.connect()
        await client.ask(command("SET", "key", "1"), b"+OK\r\n")
        before = reporter.counts["commands"]()
        calls["read"].observe(0.001, 3)
        calls["write"].observe(0.002)
        assert reporter.counts["commands"]() == before + 4
        assert reporter.counts["reads"]() == 3
        assert reporter.histograms["command"]().count == 1 + 4
