"""The examples run, and the documents that are drawn from code are up to date."""

import importlib.util
import socket
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from quorate.node import diagram

ROOT = Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_ports(count: int) -> int:
    """A first port after which `count` ports are free now."""
    for first in range(21000, 32000, count):
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    bound = stack.enter_context(socket.socket())
                    bound.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


async def test_the_counter_example_adds_up_on_every_member(tmp_path: Path) -> None:
    assert await load("counter").main(tmp_path, free_ports(20)) == [55, 55, 55]


def test_the_drawn_election_is_the_one_in_the_code() -> None:
    assert diagram() in (ROOT / "docs" / "election.md").read_text()
