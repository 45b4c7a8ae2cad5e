"""The start of most tests of complete members: three members with a leader."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from quorate.simulation.ledger import open_ledgers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from quorate.simulation import Ledger, World

P = ParamSpec("P")


def settled(
    body: Callable[Concatenate[World[Ledger], P], Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Make a test of a function that takes a cluster of three members with a leader.

    This is not a fixture, since pytest-trio runs each async fixture in its own task. That changes
    the order in which the cluster's tasks and the test run, and some tests fail in that order.
    """

    @functools.wraps(body)
    async def test(
        tmp_path: Path, autojump_clock: object, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        async with open_ledgers(tmp_path) as world:
            await world.start()
            await world.settled()
            await body(world, *args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fixtures = [inspect.Parameter(name, kind) for name in ("tmp_path", "autojump_clock")]
    of_its_own = list(inspect.signature(body).parameters.values())[1:]
    vars(test)["__signature__"] = inspect.Signature([*fixtures, *of_its_own])
    return test
