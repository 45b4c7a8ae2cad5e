"""The base class of replicated objects."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

import attrs
import msgspec

from ..errors import ConfigurationError, StorageError
from .methods import Decorated, Signature, substituted
from .shapes import Shape, check_type
from .tracked import UndoLog
from .wire import check_result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import trio

    from ..node import Command

__all__ = ["Home", "Replicated"]

R = TypeVar("R")

MAX_NAME: Final = 200
"""Names are in each entry of the log. If larger, they would cost more than the calls."""

_RAW: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


class Home(Protocol):
    """Where the calls of an object go: to the member that it was opened with."""

    async def send(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Record and apply a call; return the bytes of its result."""
        ...

    async def ask(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Ask linearizably; return the bytes of the result."""
        ...

    def moved(self) -> trio.Event:
        """Return an event that is set once this member has applied more."""
        ...


@attrs.define(eq=False)
class _Inner:
    """What an object has next to its state.

    Args:
        name: by which the log knows it.
        undo: of the call that is being applied.
        signatures: of its methods, by name and version.
        shapes: of the parts of its state.
        home: where its calls go; None before it is opened.
        position: of the call that is being applied, or of the last one.
        now_ms: the log's time there.
        first: the first state.
    """

    name: str
    undo: UndoLog
    signatures: dict[tuple[str, int], Signature]
    shapes: dict[str, Shape]
    home: Home | None = None
    position: int = 0
    now_ms: int = 0
    first: bytes = b""


class Replicated:
    """An object whose state is the same on all members; see the package's docstring.

    Declare each attribute of the state in the body of the class, with its type. They get their
    first values in `__init__`, the same on all members. From the opening on, only replicated
    methods change them.

    Args:
        name: by which the log knows it; no other object of the cluster may have it.
        types: what the type variables of a generic class stand for, by their names.

    Raises:
        ConfigurationError: the name is empty or too long, or a type can't be in a state.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check the types of the class: what can't work fails here, not at the first snapshot."""
        super().__init_subclass__(**keywords)
        signatures_of(cls, {})
        for name, declared in state_of(cls, {}).items():
            check_type(declared, f"{cls.__name__}.{name}", state=True)

    def __init__(self, name: str, types: Mapping[str, Any] | None = None) -> None:
        if not (isinstance(cast("object", name), str) and 1 <= len(name.encode()) <= MAX_NAME):
            what = f"expected a text of 1 to {MAX_NAME} bytes"
            raise ConfigurationError(f"name = {name!r:.60}: {what}")
        cls, undo = type(self), UndoLog()
        shapes: dict[str, Shape] = {}
        for field, declared in state_of(cls, types or {}).items():
            check_type(declared, f"{cls.__name__}.{field}", state=True)
            shapes[field] = Shape(declared, f"{cls.__name__}.{field}", undo)
        # Past __setattr__, which is for the state.
        self.__dict__["_inner"] = _Inner(name, undo, signatures_of(cls, types or {}), shapes)

    @property
    def _own(self) -> _Inner:
        try:
            return cast("_Inner", self.__dict__["_inner"])
        except KeyError:
            raise TypeError(f"{type(self).__name__}: call super().__init__(name) first") from None

    @property
    def object_name(self) -> str:
        """By which the log knows it."""
        return self._own.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.object_name!r})"

    def __setattr__(self, name: str, value: Any) -> None:
        inner, state = self._own, self.__dict__
        shape = inner.shapes.get(name)
        if shape is None:
            raise TypeError(
                f"{type(self).__name__}.{name} is no part of the state: declare it in the body of "
                "the class, with its type"
            )
        if inner.home is None:
            state[name] = value  # the first value: taken when the object is opened
            return
        inner.undo.check()
        taken, old = shape.take(value), state[name]
        inner.undo.note(lambda: state.__setitem__(name, old))
        state[name] = taken

    def __delattr__(self, name: str) -> None:
        raise TypeError(f"{type(self).__name__}.{name}: a part of the state can't be deleted")

    # --- for the methods of subclasses

    @property
    def now_ms(self) -> int:
        """The log's time, in milliseconds since the epoch; of the call that is being applied."""
        return self._own.now_ms

    @property
    def position(self) -> int:
        """A number that rises from call to call of the cluster; of the one being applied."""
        return self._own.position

    def next_deadline_ms(self) -> int | None:
        """Return the log time at which `expire` is due; None (the default) for never."""
        return None

    def expire(self) -> None:
        """Change the state at that time, on all members; the default does nothing."""

    async def changed(self) -> None:
        """Wait until this member has applied more calls, perhaps of other objects."""
        await self._opened.moved().wait()

    # --- for the state machine; see `machine.Part`

    def open(self, home: Home) -> None:
        """Take the first state; from now on only replicated methods change it.

        Raises:
            ConfigurationError: it was opened before, or a part of the state is missing or wrong.
        """
        inner, state = self._own, self.__dict__
        if inner.home is not None:
            what = "make a new object for each opening"
            raise ConfigurationError(f"{self!r} was opened before: {what}")
        for name, shape in inner.shapes.items():
            if name not in state and not hasattr(type(self), name):
                what = f"expected a first value in {type(self).__name__}.__init__"
                raise ConfigurationError(f"{self!r}: {name} is not set: {what}")
            try:
                state[name] = shape.take(getattr(self, name))
            except TypeError as error:
                raise ConfigurationError(f"{self!r}: {error}") from None
        inner.home = home
        inner.first = self.dump()

    def knows(self, method: str, version: int) -> bool:
        """Return whether there is such a method."""
        return (method, version) in self._own.signatures

    def apply(self, command: Command, method: str, version: int, arguments: bytes) -> bytes:
        """Run a replicated method; return the bytes of its result.

        Raises:
            Exception: of the method, or of its arguments or its result; nothing has changed.
        """
        inner = self._own
        self.note_time(command.position + command.index, command.timestamp_ms)
        inner.undo.begin()
        try:
            signature = inner.signatures[method, version]
            return check_result(signature.run_untrusted(self, arguments))
        except Exception:
            inner.undo.roll_back()
            raise
        finally:
            inner.undo.end()

    def note_time(self, position: int, timestamp_ms: int) -> None:
        """Note the position and the time of the log."""
        self._own.position, self._own.now_ms = position, timestamp_ms

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Run `expire` if it is due."""
        deadline, inner = self.next_deadline_ms(), self._own
        self.note_time(position, timestamp_ms)
        if deadline is None or deadline > timestamp_ms:
            return
        inner.undo.begin()
        try:
            self.expire()
        finally:
            inner.undo.end()

    def answer(self, method: str, version: int, arguments: bytes) -> bytes:
        """Run a query; return the bytes of its result.

        Raises:
            Exception: of the query, or of its arguments or its result.
        """
        return self._own.signatures[method, version].run_untrusted(self, arguments)

    def dump(self) -> bytes:
        """Return the state."""
        state = {
            name: msgspec.Raw(shape.codec.pack(self.__dict__[name]))
            for name, shape in self._own.shapes.items()
        }
        return msgspec.msgpack.encode(state)

    def restore_untrusted(self, data: bytes) -> None:
        """Replace the state. What the bytes do not have gets its first value again.

        Raises:
            StorageError: they are none of this class.
        """
        inner = self._own
        try:
            found = _RAW.decode(inner.first) | _RAW.decode(data)
            for name, shape in inner.shapes.items():
                value = shape.codec.decode_untrusted(bytes(found[name]))
                self.__dict__[name] = shape.wrap(value)
        except (ValueError, TypeError) as error:
            raise StorageError(f"{self!r}: saved state: {error}") from None

    # --- calls

    @property
    def _opened(self) -> Home:
        home = self._own.home
        if home is None:
            raise ConfigurationError(f"{self!r} is not open: call it inside of open_objects(...)")
        return home

    def send(self, method: Decorated[Any, ..., R], args: Any, kwargs: Any) -> Awaitable[R]:
        """Send a call of a replicated method; see :class:`.methods.BoundCall`."""
        if self._own.undo.is_open:
            raise TypeError(
                f"{type(self).__name__}.{method.name} was called inside of a replicated method: "
                "move what both do into a method without @replicated"
            )
        return self._call(method, args, kwargs, self._opened.send)

    def ask(self, method: Decorated[Any, ..., R], args: Any, kwargs: Any) -> Awaitable[R]:
        """Ask a query; see :class:`.methods.BoundQuery`."""
        if self._own.undo.is_open:
            raise TypeError(
                f"{type(self).__name__}.{method.name} was asked inside of a replicated method: "
                f"write {method.name}.local(...) there"
            )
        return self._call(method, args, kwargs, self._opened.ask)

    async def _call(
        self,
        method: Decorated[Any, ..., R],
        args: Any,
        kwargs: Any,
        send: Callable[[str, str, int, bytes], Awaitable[bytes]],
    ) -> R:
        signature = self._own.signatures[method.name, method.version]
        arguments = signature.encode_arguments(self, args, kwargs)
        data = await send(self.object_name, method.name, method.version, arguments)
        return cast("R", signature.decode_result_untrusted(data))


def signatures_of(cls: type, types: Mapping[str, Any]) -> dict[tuple[str, int], Signature]:
    """Return the methods of a class, by name and version; queries have version 0.

    Raises:
        ConfigurationError: two are the same, or one has a type that can't be carried.
    """
    found: dict[tuple[str, int], Signature] = {}
    for attribute in dir(cls):
        found_here: object = inspect.getattr_static(cls, attribute)
        if not isinstance(found_here, Decorated):
            continue
        method: Decorated[Any, Any, Any] = found_here  # pyright: ignore[reportUnknownVariableType]
        signature = Signature(cls.__name__, method, types)
        key = method.name, method.version
        if key in found:
            both = f"{found[key].where} and {signature.where}"
            raise ConfigurationError(f"{both}: both are version {key[1]} of {key[0]!r}")
        found[key] = signature
    return found


def state_of(cls: type, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared parts of the state, by name, with their types.

    Raises:
        ConfigurationError: the name of a type is not known.
    """
    owners = [owner for owner in reversed(cls.__mro__) if issubclass(owner, Replicated)]
    try:
        names = [name for owner in owners for name in inspect.get_annotations(owner)]
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{cls.__name__}: {error}: import it outside of `if TYPE_CHECKING`, so that its type "
            "is known when the program runs"
        ) from None
    return {
        name: substituted(hints[name], types)
        for name in dict.fromkeys(names)
        if typing.get_origin(hints[name]) is not ClassVar and hints[name] is not ClassVar
    }
