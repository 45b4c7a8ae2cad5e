"""The same seed is the same run; a release of trio that changes this fails here, and loudly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio

from quorate.simulation import Plan, run, simulate

SHORT = 0.004  # virtual hours

PRINT_DIGEST = f"""
from quorate.simulation import Plan, simulate
print(simulate(Plan(7, 3, {SHORT})).digest)
"""


async def schedule(tasks: int) -> list[int]:
    """The order in which tasks that are ready at the same time run."""
    order: list[int] = []

    async def note(i: int) -> None:
        for _ in range(3):
            await trio.sleep(1.0)
            order.append(i)

    async with trio.open_nursery() as nursery:
        for i in range(tasks):
            nursery.start_soon(note, i)
    return order


def test_the_seed_gives_the_order_of_tasks() -> None:
    """The canary: trio's private switch still does what the simulation needs."""
    orders = {tuple(run(schedule, 20, seed=seed)) for seed in range(10) for _ in range(3)}
    assert len(orders) == 10


def test_time_is_virtual() -> None:
    async def sleep() -> float:
        began = trio.current_time()
        await trio.sleep(5000.0)
        return trio.current_time() - began

    assert run(sleep, seed=0) == 5000.0


def test_a_run_in_which_all_wait_for_each_other_ends() -> None:
    program = "import trio; from quorate.simulation import run; run(trio.sleep_forever, seed=0)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "nothing will ever happen again" in ended.stderr


def test_a_seed_gives_one_digest_in_all_processes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1")
    }
    assert digests == {simulate(Plan(7, 3, SHORT)).digest}


@pytest.mark.slow
def test_another_seed_gives_another_digest() -> None:
    assert len({simulate(Plan(seed, 3, SHORT / 4)).digest for seed in range(3)}) == 3
