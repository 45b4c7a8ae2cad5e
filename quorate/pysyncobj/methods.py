"""PySyncObj's decorators."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, overload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bodies_of", "replicated", "replicated_sync"]

F = TypeVar("F", bound="Callable[..., Any]")

_BODIES: Final = "_quorate_bodies"


class _Called(Protocol):
    """An object with replicated methods: a `SyncObj` or a consumer."""

    def call_replicated(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


@overload
def replicated(body: Callable[..., Any], /) -> Callable[..., Any]: ...
@overload
def replicated(*, ver: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def replicated(body: Callable[..., Any] | None = None, /, *, ver: int = 0) -> Any:
    """Make a method change the object on all nodes.

    Its callers may add `callback=f`, which is called as `f(result, error)` with an error of
    `FAIL_REASON`; or `sync=True` and `timeout=seconds` to wait for the result.

    Args:
        body: the method.
        ver: of the body. After `setCodeVersion` the one with the highest version up to that is
            called; a body of the same name that stands above it serves the older versions.
    """
    return _decorator(body, ver, {})


@overload
def replicated_sync(body: Callable[..., Any], /) -> Callable[..., Any]: ...
@overload
def replicated_sync(
    *, ver: int = 0, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def replicated_sync(
    body: Callable[..., Any] | None = None, /, *, ver: int = 0, timeout: float | None = None
) -> Any:
    """Make a replicated method that waits for its result unless it is called with `sync=False`.

    Args:
        body: the method.
        ver: as for :func:`replicated`.
        timeout: how long it waits, in seconds; None for as long as it takes.
    """
    return _decorator(body, ver, {"sync": True, "timeout": timeout})


def _decorator(body: Callable[..., Any] | None, ver: int, defaults: dict[str, Any]) -> Any:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    namespace = frame.f_back.f_back.f_locals  # of the class that is being made

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        @functools.wraps(function)
        def method(self: _Called, *args: Any, **kwargs: Any) -> Any:
            return self.call_replicated(name, args, defaults | kwargs)

        # A body of an older version is about to be replaced in the class by this one.
        older = bodies_of(namespace.get(name))
        setattr(method, _BODIES, older | {ver: function})
        return method

    return decorate if body is None else decorate(body)


def bodies_of(method: object) -> dict[int, Callable[..., Any]]:
    """Return the bodies of a replicated method by their versions; none for anything else."""
    return cast("dict[int, Callable[..., Any]]", getattr(method, _BODIES, {}))
