"""Sequential specifications: what operations do to one key when they run one after another.

`apply` is the specification, a pure function. The other methods are hints: they save the checker
(`linearizability`) from finding the same facts by trial. One specification serves every key of a
key-value store. A *register* is a key that sees ``get``, ``set``, ``cas`` and ``del``. A *counter*
sees ``incr`` and ``get``. An *append list* sees ``append`` and ``get``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ..errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .history import Value

__all__ = ["ANY", "GROWN", "KEPT", "Specification", "Strings", "Unnamed"]

S = TypeVar("S", bound="Hashable")


class Unnamed(enum.Enum):
    """States that are not named one by one."""

    KEPT = "the one that was there"
    GROWN = "one that no operation of this kind leads back from"
    ANY = "any"


KEPT: Final = Unnamed.KEPT
GROWN: Final = Unnamed.GROWN
ANY: Final = Unnamed.ANY

_NO_CHANGE: Final[dict[str, Value]] = {"cas": 0, "del": 0, "incr": None}
"""Results that tell that nothing was changed."""

_MAX_INTEGER: Final = 2**63 - 1


class Specification(Protocol[S]):
    """What operations do; states are compared with ``==`` and hashed. Can be pickled.

    Attributes:
        initial: the state before the first operation.
        overwriters: operations whose new state does not depend on the old one.
    """

    initial: S
    overwriters: frozenset[str]

    def apply(self, state: S, op: str, args: tuple[Value, ...]) -> tuple[S, Value]:
        """Return the new state and the result.

        Raises:
            HistoryError: there is no such operation, or not with these arguments.
        """
        ...

    def needs(self, op: str, args: tuple[Value, ...], result: Value) -> S | Unnamed:
        """Return the only state in which an operation can have this result, ANY if several."""
        ...

    def makes(self, op: str, args: tuple[Value, ...], result: Value, *, known: bool) -> S | Unnamed:
        """Return the only state that an operation can change another one into.

        KEPT if it certainly changes nothing. GROWN if no sequence of such operations leads back to
        a state that one of them has changed. ANY if nothing more is known. `result` is
        meaningless unless `known`.
        """
        ...

    def grows(self, state: S, into: S) -> bool:
        """Say whether GROWN operations alone may lead from one state to another."""
        ...


class Strings:
    """The strings of Redis: the state is the key's bytes, None if there is no such key.

    ======================= ===================================================================
    ``get``                 the value, or null
    ``set`` value           ``"OK"``
    ``del``                 1, or 0 if there was none
    ``cas`` expected, new   1, or 0 if the value was another one; null expects that there is none
    ``incr``                the new number; null, and no change, if the value is not one
    ``append`` value        the new length in bytes
    ======================= ===================================================================
    """

    initial: bytes | None = None
    overwriters: frozenset[str] = frozenset({"set", "del"})

    def apply(
        self, state: bytes | None, op: str, args: tuple[Value, ...]
    ) -> tuple[bytes | None, Value]:
        """Return the new value and the result, as the table above."""
        match op, args:
            case "get", ():
                return state, state
            case "set", (bytes() as value,):
                return value, b"OK"
            case "append", (bytes() as value,):
                appended = (state or b"") + value
                return appended, len(appended)
            case "incr", ():
                return _incremented(state)
            case "cas", (bytes() | None as expected, bytes() as value):
                return (value, 1) if state == expected else (state, 0)
            case "del", ():
                return None, int(state is not None)
            case _:
                raise HistoryError(f"no such operation on a string: {op} with {args!r:.60}")

    def needs(self, op: str, args: tuple[Value, ...], result: Value) -> bytes | Unnamed | None:
        """Return what a read found, or what a change from one value to another expected."""
        needed = args[0] if op == "cas" and result == 1 else result if op == "get" else 0
        if needed is None or isinstance(needed, bytes):
            return needed
        if op == "incr" and isinstance(result, int) and result != 1:  # 1 comes of nothing too
            return b"%d" % (result - 1)
        return ANY

    def makes(
        self, op: str, args: tuple[Value, ...], result: Value, *, known: bool
    ) -> bytes | Unnamed | None:
        """Return the value that is written, if the call or its result determines it."""
        if op == "get" or (known and result == _NO_CHANGE.get(op, b"")):
            return KEPT
        if op == "append":
            return GROWN
        if op == "incr":
            return b"%d" % result if known and isinstance(result, int) else ANY
        written = args[-1] if args else None
        assert not isinstance(written, int)
        return written

    def grows(self, state: bytes | None, into: bytes | None) -> bool:
        """Say whether one begins with the other."""
        return state is None or (into is not None and into.startswith(state))


def _incremented(state: bytes | None) -> tuple[bytes | None, int | None]:
    number = _integer(b"0" if state is None else state)
    if number is None or number == _MAX_INTEGER:
        return state, None
    return b"%d" % (number + 1), number + 1


def _integer(text: bytes) -> int | None:
    """The number that a value is to Redis: 64 bits, written the shortest way."""
    if len(text) > len(b"-9223372036854775808"):
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return (
        number if b"%d" % number == text and -_MAX_INTEGER - 1 <= number <= _MAX_INTEGER else None
    )
