"""The examples of locks, elections, queues and caches run on a real cluster."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import redis
import trio

from tests.support.real import RealCluster

ROOT = Path(__file__).parents[3]
MOST_LINES = 60


def load(name: str) -> ModuleType:
    file = ROOT / "examples" / f"{name}.py"
    assert len(file.read_text().splitlines()) < MOST_LINES
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def members(whole: RealCluster) -> list[str]:
    return [f"127.0.0.1:{port}" for port in whole.ports]


def test_the_elected_worker_works(members: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(load("elected_worker").main, members, 2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["round 1", "round 2"]


def test_the_configuration_reloads_live(members: list[str], whole: RealCluster) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:

            async def change() -> None:
                with redis.Redis(port=whole.ports[0]) as client:
                    for number in range(100):
                        client.set("config/colour", number)
                        await trio.sleep(0.1)

            nursery.start_soon(change)
            seen.extend(await load("live_config").main(members, 3))
            nursery.cancel_scope.cancel()

    trio.run(run)
    colours = [int(each.get(b"colour", -1)) for each in seen]
    assert len(colours) == 4
    assert colours == sorted(set(colours))


def test_the_rate_limiter_allows_the_first_calls(members: list[str]) -> None:
    found = trio.run(load("rate_limiter").main, members)
    assert found[:5] == [True] * 5
    assert found.count(False) >= 1


def test_each_job_of_the_queue_counts_once(members: list[str]) -> None:
    assert asyncio.run(load("job_queue").main(members)) == 55


def test_the_command_runs_under_a_lock(members: list[str]) -> None:
    command = ["sh", "-c", "exit $((TOKEN > 0 ? 3 : 4))"]
    assert trio.run(load("locked_command").main, members, command) == 3
