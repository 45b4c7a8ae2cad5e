"""Tests that are scenarios of `recipes_world`, as a decorator."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Concatenate, ParamSpec

import pytest

from tests.support.recipes_world import BACKENDS, World, play

P = ParamSpec("P")
Body = Callable[Concatenate[World, P], Awaitable[None]]


def played(*backends: str) -> Callable[[Body[P]], Callable[..., None]]:
    """Make a test of a function that takes a new world; it runs once on each backend.

    Args:
        backends: all of them if none is named.
    """

    def decorated(body: Body[P]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(tmp_path: Path, backend: str, *args: P.args, **kwargs: P.kwargs) -> None:
            async def scenario(world: World) -> None:
                await body(world, *args, **kwargs)

            play(backend, tmp_path, scenario)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fixtures = [inspect.Parameter(name, kind) for name in ("tmp_path", "backend")]
        of_its_own = list(inspect.signature(body).parameters.values())[1:]
        vars(test)["__signature__"] = inspect.Signature([*fixtures, *of_its_own])
        return pytest.mark.parametrize("backend", backends or BACKENDS)(test)

    return decorated
