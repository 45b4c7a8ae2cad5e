"""What makes a run of the tests repeatable: what is random in them is the same in every run.

Hypothesis draws the same examples each time, and trio runs ready tasks in the same order. How
fast the machine is decides nothing: an example has no deadline. To look for what no run has met
yet, ``make test ARGS="--hypothesis-profile=search tests/storage"`` draws other examples each time,
and more of them.

And what the tests of several rooms need, and which of them may run beside each other: two processes
share them (``make test``), of which one takes all that start members or Spark.
"""

from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

PROGRAMS: Final = tuple(
    f"tests/{room}/" for room in ("programs", "documents", "cli", "pipeline", "bench")
)
"""What starts members or Spark: these have clocks, and need room."""

any_speed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", any_speed, derandomize=True)
settings.register_profile("search", any_speed, max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def same_schedule() -> None:
    """Let trio's scheduler draw the same numbers in every run of a test."""
    trio_run._r.seed(0)  # pyright: ignore[reportPrivateUsage]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `tests/conformance` needs."""
    parser.addoption("--regenerate", action="store_true", help="write the golden transcripts anew")


class Sharing(LoadScopeScheduling):
    """Gives all of `PROGRAMS` to one process, one after the other, and the rest to both.

    xdist's own groups are part of a test's id, which pytest 9 makes anew: they come to nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "programs" if nodeid.startswith(PROGRAMS) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing:
    """Say how several processes share the tests."""
    return Sharing(config, log)
