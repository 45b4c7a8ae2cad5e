"""A test for each edge of the election: which one it takes is declared, and then observed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

from quorate.node import State
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Edge: TypeAlias = tuple[State, State]

TAKEN: dict[Edge, str] = {}
"""By which test an edge is taken."""

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

    The member has a log of `batches` and has just begun to canvass. When the function returns the
    edge must have been taken, or be taken by the member's own timeouts, and as its last argument
    says so: the observer of the member's transitions is the witness.
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
