"""An object's attributes as a replicated state.

As in PySyncObj, the attributes that are set after `super().__init__(...)` are the state, and those
set before are the node's own. Only replicated methods change the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ..errors import ConfigurationError, StorageError
from ..objects.tracked import UndoLog
from ..objects.wire import check_result
from .config import SyncObjException
from .methods import bodies_of, replicated
from .plain import decode_untrusted, encode, taker

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..node import Command
    from ..objects.base import Home

__all__ = ["AttributesPart", "CodeVersion", "Replicating", "SyncObjConsumer"]

_PART: Final = "_quorate_part"
_OF_CALLERS: Final = ("callback", "sync", "timeout")
"""Arguments of callers that the method does not get."""


class Replicator(Protocol):
    """The `SyncObj` that replicates an object."""

    def getCodeVersion(self) -> int:
        """Return the version of the methods that callers mean."""
        ...

    def call(
        self, part: AttributesPart, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a replicated method on all nodes."""
        ...


class Replicating:
    """An object whose attributes are a replicated state."""

    def _quorate_begin(self) -> None:
        """Note the attributes that are the node's own: those that are there now."""
        self.__dict__[_PART] = AttributesPart(self, frozenset(self.__dict__))

    @property
    def _quorate_own(self) -> AttributesPart:
        part: AttributesPart = self.__dict__[_PART]
        return part

    def __setattr__(self, name: str, value: Any) -> None:
        part: AttributesPart | None = self.__dict__.get(_PART)
        if part is None or not part.set_attribute(name, value):
            object.__setattr__(self, name, value)

    def _quorate_syncobj(self) -> Replicator:
        raise NotImplementedError

    def call_replicated(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a replicated method."""
        part = self._quorate_own
        if part.undo.is_open:  # in the body of another one: they are one change
            version = self._quorate_syncobj().getCodeVersion()
            kwargs = {key: kwargs[key] for key in kwargs if key not in _OF_CALLERS}
            return part.body_of(name, version)[1](self, *args, **kwargs)
        return self._quorate_syncobj().call(part, name, args, kwargs)


class SyncObjConsumer(Replicating):
    """An object that a `SyncObj` replicates: give it to that as one of its `consumers`."""

    def __init__(self) -> None:
        self.__dict__["_syncObj"] = None
        self._quorate_begin()

    def _quorate_syncobj(self) -> Replicator:
        found: Replicator | None = self.__dict__["_syncObj"]
        if found is None:
            raise SyncObjException(
                "NotReady",
                f"{type(self).__name__} is not replicated yet: give it to SyncObj(consumers=...)",
            )
        return found

    def _destroy(self) -> None:
        self.__dict__["_syncObj"] = None


class CodeVersion(SyncObjConsumer):
    """The code version in force, on all nodes.

    Attributes:
        version: see above.
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = 0

    @replicated
    def enable(self, version: int) -> None:
        """Put a version into force; an older one than now is refused."""
        if version < self.version:
            raise ValueError(f"version {version}: {self.version} is in force already")
        self.version = version


class AttributesPart:
    """The attributes of one object, as a part of the state machine; see `objects.machine.Part`.

    Args:
        owner: the object.
        own: names of its attributes that are not of the state.

    Attributes:
        undo: the changes of the call that is being applied.
        object_name: by which the log knows it.
    """

    def __init__(self, owner: Replicating, own: frozenset[str]) -> None:
        self._owner = owner
        self._own = own | {_PART}
        self.undo = UndoLog()
        self.object_name = ""
        self._take = taker(self.undo)
        self._names: set[str] = set()
        self._first: dict[str, bytes] | None = None
        cls = type(owner)
        self._bodies = {
            name: found for name in dir(cls) if (found := bodies_of(getattr(cls, name)))
        }

    def set_attribute(self, name: str, value: Any) -> bool:
        """Set an attribute of the state; return False if it is none."""
        if self._first is None or name in self._own or name.startswith("__"):
            return False
        if name not in self._names and not self.undo.is_open:
            self._own |= {name}  # of this node alone
            return False
        self.undo.check()
        state, taken = self._owner.__dict__, self._take(value)
        if name in self._names:
            old = state[name]
            self.undo.note(lambda: state.__setitem__(name, old))
        else:
            self._names.add(name)
            self.undo.note(lambda: state.pop(name))
            self.undo.note(lambda: self._names.discard(name))
        state[name] = taken
        return True

    def body_of(self, name: str, version: int) -> tuple[int, Callable[..., Any]]:
        """Return the body of a method with the highest version up to the one in force.

        Raises:
            SyncObjException: there is none yet.
        """
        bodies = self._bodies.get(name, {})
        usable = [each for each in bodies if each <= version]
        if not usable:
            raise SyncObjException(
                "wrongVer", f"{name} needs a newer code version than {version}: call setCodeVersion"
            )
        return max(usable), bodies[max(usable)]

    @property
    def newest(self) -> int:
        """The highest version of all methods."""
        return max((version for bodies in self._bodies.values() for version in bodies), default=0)

    # --- for the state machine

    def open(self, home: Home) -> None:
        """Take the first state: the attributes that were set after `super().__init__`.

        Raises:
            ConfigurationError: one can't be replicated.
        """
        del home
        state = self._owner.__dict__
        for name in sorted(set(state) - self._own):
            try:
                state[name] = self._take(state[name])
            except TypeError as error:
                raise ConfigurationError(
                    f"{type(self._owner).__name__}.{name}: {error}. Set what belongs to this node "
                    "alone before super().__init__(...)"
                ) from None
            self._names.add(name)
        self._first = {name: encode(state[name]) for name in self._names}

    def knows(self, method: str, version: int) -> bool:
        """Return whether there is such a method."""
        return version in self._bodies.get(method, {})

    def apply(self, command: Command, method: str, version: int, arguments: bytes) -> bytes:
        """Run a method; see :meth:`Replicated.apply`."""
        del command
        args, kwargs = _arguments_untrusted(arguments)
        self.undo.begin()
        try:
            result = self._bodies[method][version](self._owner, *args, **kwargs)
            return check_result(encode(result))
        except Exception:
            self.undo.roll_back()
            raise
        finally:
            self.undo.end()

    def note_time(self, position: int, timestamp_ms: int) -> None:
        """Do nothing: PySyncObj's methods have no log time."""

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Do nothing: there are no timers."""

    def next_deadline_ms(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def answer(self, method: str, version: int, arguments: bytes) -> bytes:
        """Refuse: PySyncObj has no queries."""
        raise NotImplementedError(f"{method}, version {version}: {arguments!r:.40}")

    def dump(self) -> bytes:
        """Return the state."""
        state = self._owner.__dict__
        return encode({name: state[name] for name in sorted(self._names)})

    def restore_untrusted(self, data: bytes) -> None:
        """Replace the state; what the bytes do not have gets its first value again.

        Raises:
            StorageError: they are no state.
        """
        assert self._first is not None
        state = self._owner.__dict__
        try:
            found: Any = decode_untrusted(data)
            if not isinstance(found, dict):
                raise ValueError("expected a dict of attributes")  # noqa: TRY004, TRY301
            first = {name: decode_untrusted(packed) for name, packed in self._first.items()}
            values: dict[str, Any] = first | found
        except ValueError as error:
            raise StorageError(f"{type(self._owner).__name__}: saved state: {error}") from None
        for name in self._names - set(values):
            del state[name]
        self._names = set(values)
        state.update({name: self._take(value) for name, value in values.items()})


def _arguments_untrusted(data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call.

    Raises:
        ValueError: the bytes are none.
    """
    found = decode_untrusted(data)
    if not (isinstance(found, tuple) and len(cast("Any", found)) == 2):  # noqa: PLR2004
        raise ValueError(f"no arguments: {found!r:.80}")
    args, kwargs = cast("tuple[Any, dict[str, Any]]", found)
    if not (isinstance(args, tuple) and isinstance(cast("Any", kwargs), dict)):
        raise ValueError(f"no arguments: {found!r:.80}")  # noqa: TRY004 - see above
    return args, kwargs  # pyright: ignore[reportUnknownVariableType]
