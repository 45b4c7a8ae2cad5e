"""A test for each edge of the election: the test declares its edge, and an observer verifies it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

from quorate.node import State
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Edge: TypeAlias = tuple[State, State]

TAKEN: dict[Edge, str] = {}
"""The test that takes each edge."""

if TYPE_CHECKING:
    Drive: TypeAlias = Callable[[Script], Awaitable[None]]
    Test: TypeAlias = Callable[..., Awaitable[None]]


def takes(
    before: State,
    after: State,
    *,
    size: int = 3,
    batches: Sequence[bytes] = (),
    read_seconds: float = 0.0,
) -> Callable[[Drive], Test]:
    """Make a test of a function that drives a member over an edge.

    The member has a log of `batches` and has just begun to canvass. When the function returns, the
    member must have taken the edge, or take it by its own timeouts. The observer of the member's
    transitions verifies this.
    """

    def make(drive: Drive) -> Test:
        @scripted(size=size, batches=batches, read_seconds=read_seconds)
        @functools.wraps(drive)
        async def test(script: Script) -> None:
            await drive(script)
            await script.until(
                lambda: (before, after) in [(t.before, t.after) for t in script.transitions]
            )

        name = drive.__name__
        assert TAKEN.setdefault((before, after), name) == name, "another test takes this edge"
        return test

    return make
