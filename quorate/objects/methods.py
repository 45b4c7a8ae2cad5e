"""The decorators of replicated methods, and the types of their arguments and results.

A decorated method is called from outside with `await`, and sent to the cluster. The state machine
calls its body. The annotations are the contract: arguments and results outside of them are refused
where they appear, at the caller or in the body.
"""

from __future__ import annotations

import inspect
import typing
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

import msgspec

from ..errors import ConfigurationError
from .shapes import Codec, check_type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["BoundCall", "BoundQuery", "Method", "Query", "Signature", "query", "replicated"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_VERSION: Final = 2**31 - 1
_PLAIN: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Target(Protocol):
    """An object with such methods: :class:`.base.Replicated`."""

    def send(self, method: Decorated[Any, ..., R], args: Any, kwargs: Any) -> Awaitable[R]:
        """Send a call."""
        ...

    def ask(self, method: Decorated[Any, ..., R], args: Any, kwargs: Any) -> Awaitable[R]:
        """Ask a query."""
        ...


S = TypeVar("S", bound=Target)


class BoundCall(Generic[P, R]):
    """A replicated method of an object, as its callers see it."""

    def __init__(self, target: Target, method: Method[Any, P, R]) -> None:
        self._target, self._method = target, method

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Record and apply the call on all members, once; return the result.

        Raises:
            TypeError: an argument is not of its type; nothing was sent.
            CallError: the method has raised an exception; the state is as before.
            NoLeaderError: it was not sent, and never takes effect.
            UnknownOutcomeError: it was sent, and may or may not take effect.
        """
        return self._target.send(self._method, args, kwargs)


class BoundQuery(Generic[P, R]):
    """A query of an object, as its callers see it."""

    def __init__(self, target: Target, method: Query[Any, P, R]) -> None:
        self._target, self._method = target, method

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Ask linearizably: the answer sees every call that was answered before.

        Raises:
            TypeError: an argument is not of its type.
            CallError: the method has raised an exception.
            NoLeaderError: no leader answered in time.
        """
        return self._target.ask(self._method, args, kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask this member's state, as far as it has applied the log; also from other methods."""
        return self._method.body(self._target, *args, **kwargs)


class Decorated(Generic[S, P, R]):
    """A decorated method of a class.

    Args:
        body: the function.
        name: by which the log knows it.
        version: of the body.
    """

    def __init__(self, body: Callable[Concatenate[S, P], R], name: str, version: int) -> None:
        self.body, self.name, self.version = body, name, version
        self.__doc__ = body.__doc__
        self.__wrapped__ = body  # whose signature `help` and editors show

    def __call__(self, target: S, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call it as a method of an object."""
        bound = cast("Any", self).__get__(target, type(target))
        return cast("Awaitable[R]", bound(*args, **kwargs))


class Method(Decorated[S, P, R]):
    """A method that changes the state; see :func:`replicated`."""

    @overload
    def __get__(self, target: None, owner: type) -> Self: ...
    @overload
    def __get__(self, target: S, owner: type) -> BoundCall[P, R]: ...
    def __get__(self, target: S | None, owner: type) -> Self | BoundCall[P, R]:
        """Return the method of an object."""
        return self if target is None else BoundCall(target, self)


class Query(Decorated[S, P, R]):
    """A method that only reads; see :func:`query`."""

    @overload
    def __get__(self, target: None, owner: type) -> Self: ...
    @overload
    def __get__(self, target: S, owner: type) -> BoundQuery[P, R]: ...
    def __get__(self, target: S | None, owner: type) -> Self | BoundQuery[P, R]:
        """Return the query of an object."""
        return self if target is None else BoundQuery(target, self)


@overload
def replicated(body: Callable[Concatenate[S, P], R], /) -> Method[S, P, R]: ...
@overload
def replicated(
    *, version: int = 1, name: str | None = None
) -> Callable[[Callable[Concatenate[S, P], R]], Method[S, P, R]]: ...
def replicated(body: Any = None, /, *, version: int = 1, name: str | None = None) -> Any:
    """Make a method of a :class:`Replicated` class change the state on all members.

    It must depend on the state and its arguments alone. Time is `self.now_ms`, and
    `self.position` is a number that rises from call to call.

    Args:
        body: the method.
        version: of the body, from 1. A call in the log is applied by the body of its own version,
            so give a changed body the next number, and keep the old one under another name.
        name: by which the log knows it; the method's own if left out.

    Raises:
        ConfigurationError: the version is no positive integer.
    """
    if isinstance(version, bool) or not 1 <= version <= MAX_VERSION:
        raise ConfigurationError(f"version = {version!r}: expected an integer from 1")

    def decorate(function: Callable[..., Any]) -> Method[Any, ..., Any]:
        return Method(function, name or function.__name__, version)

    return decorate if body is None else decorate(body)


def query(body: Callable[Concatenate[S, P], R], /) -> Query[S, P, R]:
    """Make a method of a :class:`Replicated` class one that reads, linearizably.

    It can't change the state. ``obj.method.local(...)`` reads what this member has applied.
    """
    return Query(body, body.__name__, 0)


class Signature:
    """The types of the arguments and of the result of a method.

    Args:
        owner: name of the class.
        method: the method.
        types: what the type variables of the class stand for, by their names.

    Raises:
        ConfigurationError: an annotation is missing, or can't be carried.
    """

    def __init__(
        self, owner: str, method: Decorated[Any, Any, Any], types: Mapping[str, Any]
    ) -> None:
        self.method = method
        self.where = where = f"{owner}.{method.body.__name__}"
        self._inspected = inspect.signature(method.body)
        hints = _hints(method.body, where)
        fields: list[tuple[str, Any]] = []
        for parameter in list(self._inspected.parameters.values())[1:]:
            name = parameter.name
            if parameter.kind not in _PLAIN:
                raise ConfigurationError(f"{where}: {parameter}: expected plain parameters only")
            fields.append((name, _type_of(hints, name, where, types)))
        result = _type_of(hints, "return", where, types)
        self._names = [name for name, _ in fields]
        self._types = dict(fields)
        packed = msgspec.defstruct("Arguments", fields, array_like=True, forbid_unknown_fields=True)
        self._pack = packed
        self._arguments: Codec[Any] = Codec(packed, f"{where}: arguments")
        self._result: Codec[Any] = Codec(result, f"{where}: result")

    def encode_arguments(self, target: object, args: Any, kwargs: Any) -> bytes:
        """Return the bytes of arguments.

        Raises:
            TypeError: they do not fit the method.
        """
        try:
            bound = self._inspected.bind(target, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.where}: {error}") from None
        bound.apply_defaults()
        values = [bound.arguments[name] for name in self._names]
        try:
            return self._arguments.encode(self._pack(*values))
        except TypeError:
            for name, value in zip(self._names, values, strict=True):
                self._check(name, value)
            raise

    def _check(self, name: str, value: object) -> None:
        """Name the argument that is wrong, and its type."""
        expected = self._types[name]
        try:
            Codec[Any](expected, f"{self.where}: {name}").encode(value)
        except TypeError as error:
            shown = expected.__name__ if isinstance(expected, type) else expected
            raise TypeError(f"{error}; the type of {name} is {shown}") from None

    def run_untrusted(self, target: object, arguments: bytes) -> bytes:
        """Run the body with arguments from outside; return the bytes of the result.

        Raises:
            ValueError: the bytes are no arguments of it.
            Exception: what the body raises; TypeError if its result is not of its type.
        """
        given = self._arguments.decode_untrusted(arguments)
        result = self.method.body(target, **{name: getattr(given, name) for name in self._names})
        return self._result.encode(result)

    def decode_result_untrusted(self, data: bytes) -> Any:
        """Return the result of some bytes.

        Raises:
            ValueError: they are none.
        """
        return self._result.decode_untrusted(data)


def _hints(body: Callable[..., Any], where: str) -> dict[str, Any]:
    if inspect.iscoroutinefunction(body):
        raise ConfigurationError(f"{where}: expected a plain method, not an async one")
    try:
        return typing.get_type_hints(body, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: {error}: import it outside of `if TYPE_CHECKING`, so that its type is known "
            "when the program runs"
        ) from None


def _type_of(hints: Mapping[str, Any], name: str, where: str, types: Mapping[str, Any]) -> Any:
    if name not in hints:
        what = "the result" if name == "return" else name
        raise ConfigurationError(f"{where}: {what} has no type: expected an annotation")
    found = substituted(hints[name], types)
    check_type(found, f"{where}: {name}")
    return found


def substituted(hint: Any, types: Mapping[str, Any]) -> Any:
    """Return a type with its type variables replaced."""
    if isinstance(hint, TypeVar):
        return types.get(hint.__name__, int)
    parameters = cast("tuple[Any, ...]", getattr(hint, "__parameters__", ()))
    if parameters and not isinstance(hint, type):
        return hint[tuple(types.get(each.__name__, int) for each in parameters)]
    return hint
