"""What makes a run of the tests repeatable, and how several processes share them.

**Repeatable.** Hypothesis draws the same examples in each run, and trio runs ready tasks in the
same order. No example has a deadline, so the speed of the machine decides nothing. To look for
what no run has found yet, ``make test ARGS="--hypothesis-profile=search tests/storage"`` draws
other examples each time, and more of them.

**Shared.** ``make test`` has three processes on two cores. Tests that start members or Spark form
two lanes (`LANES`), each in one process, one test after the other. They mostly wait. All other
tests run in virtual time and go to any process.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

LANES: Final = ("tests/programs/", "tests/pipeline/")
"""Real members and Spark. They have real clocks: if two tests of one lane ran at the same time,
members would miss heartbeats for want of a processor."""

ON_DISK: Final = ("tests/programs/crash/", "tests/programs/power/", "tests/storage/writing/")
"""What a disk keeps, or how it is written, is part of these tests. The files of all other tests are
in memory: members wait for a disk, and it takes longer to remove their files than to run tests."""

RAM_DISK: Final = Path("/dev/shm")  # noqa: S108 - Linux has it
ROOM_BYTES: Final = 4 << 30
"""Room that the RAM disk must have. In a container it often has 64 MiB, and tests would fill it."""

DISK: Final = tempfile.gettempdir()


def _room_in_memory() -> bool:
    """Whether the RAM disk has room, and runs what tests compile."""
    if not RAM_DISK.is_dir() or os.statvfs(RAM_DISK).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(RAM_DISK).free >= ROOM_BYTES


if _room_in_memory():
    tempfile.tempdir = str(RAM_DISK)  # pytest's own folders follow it

any_speed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", any_speed, derandomize=True)
settings.register_profile("search", any_speed, max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def same_schedule() -> None:
    """Seed trio's scheduler, so that a test runs in the same order every time."""
    trio_run._r.seed(0)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a new folder, on the disk where that matters."""
    # Not by the option basetemp: xdist sets it for its processes.
    if not request.node.nodeid.startswith(ON_DISK) or not tmp_path.is_relative_to(RAM_DISK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="quorate-", dir=DISK) as folder:
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `tests/conformance`."""
    parser.addoption("--regenerate", action="store_true", help="write the golden transcripts anew")


class Sharing(LoadScopeScheduling):
    """Gives each lane to one process, which takes it from its start, and the rest to all.

    xdist has groups for this (``--dist loadgroup``), but puts a group's name into the ids of its
    tests, and pytest 9 makes ids anew: with it the groups have no effect.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((lane for lane in LANES if nodeid.startswith(lane)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing:
    """Return the scheduler that gives tests to processes."""
    return Sharing(config, log)
