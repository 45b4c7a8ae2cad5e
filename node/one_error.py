"""One error out of a block that runs tasks, in place of groups within groups.

A nursery raises what ends it as a group, and a member has nurseries within nurseries. So an error
of the caller, or the one documented error of a member, would come out three groups deep, and
``except OSError`` would not catch it. :func:`one_error` wraps a function that opens such a block:

- An error of the block's body comes out as itself, the same object, also if it is a group.
- A failure inside comes out as one error. If several tasks failed, it is the gravest one (a safety
  violation, then a bug), and a group of the other errors is its cause. An error that the body
  raised when the failure cancelled it is only noted, since it is a consequence.
- A cancellation comes out as a cancellation, KeyboardInterrupt as KeyboardInterrupt.
"""

from __future__ import annotations

import functools
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

import anyio

from ..errors import QuorateError, SafetyViolationError, leaves

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

__all__ = ["one_error"]

P = ParamSpec("P")
T = TypeVar("T")


def one_error(
    opens: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Have the block that a function opens raise one error; see above."""

    @asynccontextmanager
    @functools.wraps(opens)
    async def opened(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        body: BaseException | None = None
        cancelled = False
        try:
            async with opens(*args, **kwargs) as value:
                try:
                    yield value
                except BaseException as error:
                    body, cancelled = error, anyio.current_effective_deadline() == -math.inf
                    raise
        except BaseException as error:  # noqa: BLE001 - raised below, outside of its context
            failure = error
        else:
            return
        _raise_one(failure, body, cancelled=cancelled)

    return opened


def _raise_one(failure: BaseException, body: BaseException | None, *, cancelled: bool) -> NoReturn:
    """Raise what matters of a failure.

    Args:
        failure: with which the block ended.
        body: what the block's body raised, if anything.
        cancelled: the body was cancelled when it raised that.
    """
    of_body = {id(leaf) for leaf in leaves(body)} if body is not None else set[int]()
    cancelled_error = anyio.get_cancelled_exc_class()
    found = [leaf for leaf in leaves(failure) if not isinstance(leaf, cancelled_error)]
    inside = [leaf for leaf in found if id(leaf) not in of_body]
    inside.sort(key=_gravity)
    interrupted = bool(inside) and not isinstance(inside[0], Exception)
    if body is not None and not interrupted and (not inside or not cancelled):
        for other in inside:
            body.add_note(f"while this was raised, a task failed too: {other!r}")
        raise body
    if not inside:
        raise next(leaves(failure))  # a Cancelled stands for all
    first = inside[0]
    # One error may end several tasks, and it may be the cause of another one already.
    others = [leaf for leaf in {id(leaf): leaf for leaf in inside}.values() if leaf is not first]
    others = [leaf for leaf in others if not _came_from(leaf, first)]
    for leaf in found:
        if id(leaf) in of_body:
            first.add_note(f"the block's body was cancelled, and raised {leaf!r}")
    if others and first.__cause__ is None:
        raise first from BaseExceptionGroup("other tasks failed, too", others)
    raise first from first.__cause__


def _came_from(error: BaseException, origin: BaseException) -> bool:
    """Say whether an error was caused by another one, over as many steps as it takes."""
    causes = [error]
    for each in causes:
        if each is origin:
            return True
        if each.__cause__ is not None:
            causes += (one for one in leaves(each.__cause__) if one not in causes)
    return False


def _gravity(error: BaseException) -> int:
    """Order errors: an interrupt, a safety violation, a bug, all other errors."""
    if not isinstance(error, Exception):
        return 0
    if isinstance(error, SafetyViolationError):
        return 1
    return 3 if isinstance(error, QuorateError | OSError) else 2
